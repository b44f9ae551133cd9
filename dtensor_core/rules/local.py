"""Local operators that differ from the global one: sizes of this rank in place of global sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dtensor_core.rules.rule import LocalMaker
from dtensor_core.spec import Spec


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The stride of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dense_stride(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """The stride of a dense tensor of this shape whose dimensions are ordered as in `like`."""
    order = sorted(range(len(shape)), key=lambda dim: (like[dim], shape[dim]))
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def with_local_size(position: int) -> LocalMaker:
    """The operator with the size argument at `position` replaced by the local shape.

    A stride argument right behind it is replaced by the one of the local shape.
    """

    def maker(
        op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
    ) -> Callable[..., Any]:
        out = outputs[0]
        if out is None or out.local_shape == tuple(out.shape):
            return op
        size = list(out.local_shape)
        stride = list(dense_stride(size, out.stride))

        def local(*args: Any, **kwargs: Any) -> Any:
            changed = list(args)
            changed[position] = size
            if len(args) > position + 1 and isinstance(args[position + 1], (list, tuple)):
                changed[position + 1] = stride
            return op(*changed, **kwargs)

        return local

    return maker
