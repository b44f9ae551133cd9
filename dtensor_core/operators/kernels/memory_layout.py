"""Operators that depend on memory layout, on shards whose layout may differ.

Strides and offsets among the arguments refer to the full tensor. A shard that lacks the layout
of the full tensor, or that can't be viewed like it, is copied first. A view of such a copy shares
no elements with the shard. Its `conversions` map between the two; with them
`dispatch.special.materialized_views` keeps both equal. This involves no other rank, so each rank
does it only if needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, standing_for
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

# The overload itself: it views a tensor that is still arriving without waiting for it.
_VIEW = torch.ops.aten.view.default
_view_op = _VIEW._op
# Raised where a layout forbids a view: by kernels, and by the view of a fake tensor.
_NO_VIEW = (RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class CopyConversions:
    """Conversions of a local shard: `to_copy(part)` makes a copy, `from_copy(part, copy)` writes
    it back.
    """

    to_copy: Callable[[torch.Tensor], torch.Tensor]
    from_copy: Callable[[torch.Tensor, torch.Tensor], Any]


def _copied(part: torch.Tensor, conversions: CopyConversions) -> torch.Tensor:
    """Make a copy in place of a view of a shard, marked as such."""
    made = conversions.to_copy(part)
    made._conversions = conversions  # pyright: ignore[reportAttributeAccessIssue]
    return made


def conversions_of(local: torch.Tensor) -> CopyConversions | None:
    """Return the conversions of a copy that should have been a view; None for a view."""
    return getattr(local, "_conversions", None)


def reshaped(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """View the shard in its local shape, or copy it if its strides don't permit a view.

    Kernels choose strides by their arguments' strides, which differ on shards: a part of a
    contiguous tensor need not be contiguous.
    """
    out = outputs[0]
    assert out is not None
    size = out.local_shape

    def from_copy(part: torch.Tensor, copy: torch.Tensor) -> None:
        part.copy_(copy.reshape(part.shape))

    conversions = CopyConversions(lambda part: torch.reshape(part, size), from_copy)

    def view(x: torch.Tensor, *unused: Any) -> torch.Tensor:
        # Strides differ between ranks, and the kernel alone knows if they permit the view.
        try:
            return _view_op(x, size)
        except _NO_VIEW:
            return _copied(x, conversions)

    return standing_for(_VIEW, view)


def viewed_as(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """View the shard's bytes as another dtype; the last dim is sharded in complete elements."""
    before, out = inputs[0], outputs[0]
    assert out is not None

    def to_copy(part: torch.Tensor) -> torch.Tensor:
        return op(part.clone(memory_format=torch.contiguous_format), out.dtype)

    def from_copy(part: torch.Tensor, copy: torch.Tensor) -> None:
        part.copy_(op(copy.contiguous(), before.dtype))

    conversions = CopyConversions(to_copy, from_copy)

    def view(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not x.numel():  # its strides may forbid the view
            return depending(x.new_empty(out.local_shape, dtype=dtype), x)
        try:
            return op(x, dtype)
        except _NO_VIEW:
            return _copied(x, conversions)

    return view


def as_complex(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """View pairs of the last dim as complex numbers, copying them if their layout forbids it."""

    def from_copy(part: torch.Tensor, copy: torch.Tensor) -> None:
        part.copy_(torch.view_as_real(copy))

    conversions = CopyConversions(
        lambda part: op(part.clone(memory_format=torch.contiguous_format)), from_copy
    )

    def view(x: torch.Tensor) -> torch.Tensor:
        try:
            return op(x)
        except _NO_VIEW:
            return _copied(x, conversions)

    return view


def resolved(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Resolve conjugate and negative bits, since lazy values can't be communicated."""
    conversions = CopyConversions(
        lambda part: op(part).resolve_conj().resolve_neg(),
        lambda part, copy: op(part).copy_(copy),
    )
    return lambda x: _copied(x, conversions)


def strided(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Select elements of a replicated tensor by position in memory.

    Positions count from the tensor's first element. Serves `as_strided`, its copy, and its scatter.
    """
    spec = inputs[0]
    is_view = len(inputs) == 1

    def local(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        *settings, offset = _with_offset(args, kwargs, 3 - is_view)
        if _has_layout_of(x, spec):
            return op(x, *settings, x.storage_offset() + offset)

        def to_copy(part: torch.Tensor) -> torch.Tensor:
            return op(_with_full_layout(part, spec), *settings, offset)

        def from_copy(part: torch.Tensor, copy: torch.Tensor) -> None:
            full = _with_full_layout(part, spec)
            op(full, *settings, offset).copy_(copy)
            part.copy_(full)

        return _copied(x, CopyConversions(to_copy, from_copy)) if is_view else to_copy(x)

    return local


def _with_offset(args: Sequence[Any], kwargs: dict[str, Any], place: int) -> list[Any]:
    """Return the arguments after the tensor, ending with the offset, which defaults to 0."""
    named = [kwargs[name] for name in ("src", "size", "stride") if name in kwargs]
    given = [*args[:place], *named]
    offset = args[place] if len(args) > place else kwargs.get("storage_offset")
    return [*given, offset or 0]


def _has_layout_of(x: torch.Tensor, spec: Spec) -> bool:
    steps = zip(x.stride(), spec.stride, x.shape, strict=True)
    return all(here == there for here, there, size in steps if size > 1)


def _with_full_layout(x: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Make a copy with the memory layout of the full tensor."""
    made = torch.empty_strided(spec.shape, spec.stride, dtype=x.dtype, device=x.device)
    # A dim of stride 0 is narrowed to one element, since torch refuses to write an expanded tensor.
    once = made
    for dim, step in enumerate(spec.stride):
        if step == 0 and spec.shape[dim] > 1:
            once, x = once.narrow(dim, 0, 1), x.narrow(dim, 0, 1)
    once.copy_(x)
    return made


# Makers of which a view may be one of a copy.
MAY_COPY = (reshaped, viewed_as, as_complex, resolved, strided)
