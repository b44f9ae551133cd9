"""Python protocol methods that read a tensor's values or memory without an operator.

Values come from the full tensor, and are the same on every rank. A DTensor has no memory of its
own; access to it, which torch would permit out of bounds, is refused. Installed by `tensor`.
"""

from __future__ import annotations

from typing import Any

import torch

from dtensor_core.errors import RuleError

# Methods that read or write the memory of a tensor, each with an alternative.
_OF_MEMORY = {
    "numpy": "full_tensor().numpy() for the full tensor, to_local().numpy() for the local tensor",
    "__dlpack__": "exchange full_tensor() or to_local()",
    "apply_": "to_local().apply_(...), which changes the local tensor",
    "share_memory_": "to_local().share_memory_(), which shares the local tensor",
}


def install(cls: type[torch.Tensor]) -> None:
    """Install these methods on the class of DTensors."""
    cls.tolist = tolist  # pyright: ignore[reportAttributeAccessIssue]
    cls.__format__ = formatted  # pyright: ignore[reportAttributeAccessIssue]
    for name, hint in _OF_MEMORY.items():
        setattr(cls, name, _refused(name, hint))


def tolist(self: Any) -> Any:
    """Return the full tensor as nested lists, on every rank."""
    return self.full_tensor().tolist()


def formatted(self: Any, format_spec: str) -> str:
    """Format a scalar DTensor, such as `f"{loss:.3f}"`, reducing across ranks if needed."""
    if format_spec and self.ndim == 0:
        return format(self.item(), format_spec)
    return torch.Tensor.__format__(self, format_spec)


def _refused(name: str, hint: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuleError(
            f".{name}() of {self._spec.text}",
            found=f".{name}() is not supported for tensor subclasses",
            why="a DTensor has no memory of its own: its shards are on several ranks",
            hint=hint,
        )

    method.__name__ = name
    method.__doc__ = "Raise RuleError: call full_tensor() or to_local() first."
    return method
