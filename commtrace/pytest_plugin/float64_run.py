"""Random numbers of a program in float64, the same as in float32.

torch draws other numbers for float64 than for float32 from the same state. Inside `float64`,
factories and in-place functions draw float32 numbers and widen them, so that parameters and inputs
of both runs are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from commtrace.torch_internals.dispatcher import TorchDispatchMode


@contextmanager
def float64() -> Iterator[None]:
    """Make float64 the default dtype during the body, on this thread with float32's draws."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)


_aten: Any = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter)


_FACTORIES = (_aten.rand, _aten.randn, _aten.normal)
_OF_ONE = (_aten.rand_like, _aten.randn_like, _aten.bernoulli, _aten.multinomial, _aten.poisson)
"""Operators whose only tensor, a shape or probabilities, may be rounded to float32."""


class _Widened(TorchDispatchMode):
    """Draws float64 numbers as float32."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        is_exact = kwargs.get("dtype") in (None, torch.float64)
        if not tensors:
            if func.overloadpacket not in _FACTORIES or not is_exact:
                return func(*args, **kwargs)
            return _widened(func(*args, **kwargs | {"dtype": torch.float32}))
        first, *others = tensors
        if others or type(first) not in _PLAIN or first.dtype is not torch.float64 or not is_exact:
            return func(*args, **kwargs)
        kwargs.pop("dtype", None)
        if func.overloadpacket in _OF_ONE:
            return _widened(func(first.float(), *args[1:], **kwargs))
        writes = func._schema.arguments[0].alias_info
        if writes is None or not writes.is_write:
            return func(*args, **kwargs)
        return first.copy_(func(torch.empty_like(first, dtype=torch.float32), *args[1:], **kwargs))


def _widened(drawn: torch.Tensor) -> torch.Tensor:
    return drawn.double() if drawn.dtype is torch.float32 else drawn
