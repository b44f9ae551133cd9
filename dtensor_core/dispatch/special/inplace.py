"""Fast path of in-place operators on tensors that need no redistribution.

The dispatcher's way down to Python and back takes longer than the work itself. Methods such as
`add_` therefore look up their call directly. A call that `dispatch` has decided before, and that
only runs on local tensors, is run here. Everything else takes the usual path: first calls, calls
recorded for autograd, and anything that a mode, a transform of `torch.func` or a rewrite must see.
Installed by `tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from dtensor_core.dispatch.cache import CACHE
from dtensor_core.dispatch.special import contexts
from dtensor_core.torch_internals.autograd import has_dual_level, increment_version
from dtensor_core.torch_internals.compilation import current_transform
from dtensor_core.torch_internals.dispatcher import (
    OpOverload,
    below_inplace_or_view,
    num_dispatch_modes,
    num_function_modes,
)
from dtensor_core.tracing import untraced

aten = torch.ops.aten
_entries = CACHE.entries
# Each takes another tensor or a number.
_METHODS: dict[str, tuple[str, OpOverload]] = {
    "add_": ("add_", aten.add_.Tensor),
    "sub_": ("sub_", aten.sub_.Tensor),
    "mul_": ("mul_", aten.mul_.Tensor),
    "div_": ("div_", aten.div_.Tensor),
    "__iadd__": ("add_", aten.add_.Tensor),
    "__isub__": ("sub_", aten.sub_.Tensor),
    "__imul__": ("mul_", aten.mul_.Tensor),
    "__itruediv__": ("div_", aten.div_.Tensor),
}


def install(cls: type[torch.Tensor]) -> None:
    """Install the in-place methods on the class."""
    for name, (local, op) in _METHODS.items():
        usual, on_local = getattr(torch.Tensor, name), getattr(torch.Tensor, local)
        setattr(cls, name, _method(cls, usual, on_local, op))


def _method(
    cls: type[Any], usual: Callable[..., Any], on_local: Callable[..., Any], op: OpOverload
) -> Callable[..., Any]:
    op_id = id(op)

    @wraps(usual)
    @untraced
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or type(self) is not cls:
            return usual(self, *args, **kwargs)
        other = args[0]
        is_tensor = type(other) is cls
        kind = type(other)
        if (kind is float or kind is int) and not (other and other - other == 0):
            return usual(self, other)  # keys hold zero and non-finite numbers by value
        entry = _entries.get((op_id, self._spec, other._spec if is_tensor else kind))
        if entry is None or not entry.is_bare or _is_watched(self, other):
            return usual(self, other)
        local = self._local_tensor
        if is_tensor:
            other = other._local_tensor
        # As under `__torch_dispatch__`, the DTensor's version is counted, not the local tensor's.
        with below_inplace_or_view():
            on_local(local, other)
        increment_version((self,))
        return self

    return method


def _is_watched(tensor: Any, other: Any) -> bool:
    """True if a call has effects besides writing local elements."""
    records = tensor.requires_grad or getattr(other, "requires_grad", False)
    return (
        (records and torch.is_grad_enabled())
        or num_dispatch_modes() > 0
        or num_function_modes() > 0
        or current_transform() is not None
        or has_dual_level()
        or bool(contexts.rewrites)
        or tensor._copied is not None
        or type(tensor._local_tensor) is not torch.Tensor
        or tensor.is_inference()
    )
