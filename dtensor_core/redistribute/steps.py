"""Kernels of the step kinds: the work of a rank before and after waiting for a collective.

`begin` issues the collective, or does all the work of a local step; `finish` makes the local tensor
from the arrived data. All-gather and reduce-scatter pad pieces of different size to the longest and
trim them afterwards; all-to-all exchanges exact sizes. Called by `execute` through the table
`STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core import collectives
from dtensor_core.collectives import Issued
from dtensor_core.redistribute.reduction_values import WireEncoding, divided
from dtensor_core.redistribute.shard_overlap import Part, join, pad, take
from dtensor_core.tracing import depending

# The neutral element of each reduction; None means that every rank keeps the value.
_NEUTRAL: dict[str, int | None] = {
    "sum": 0,
    "bor": 0,
    "bxor": 0,
    "product": 1,
    "avg": None,
    "min": None,
    "max": None,
    "band": None,
}
# Data that is only moved, not reduced, travels as a dtype that every backend supports.
CARRIERS: dict[torch.dtype, torch.dtype] = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.int16: torch.uint8,
    torch.uint16: torch.uint8,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


@dataclass(slots=True, eq=False)
class RankStep:
    """Rank-specific parameters of a step.

    Not frozen, although it is never modified: setting frozen fields is slow, and there are many.

    Attributes:
        group: The name of the process group.
        ranks: The number of ranks of the group.
        number: This rank's number in the group.
        first: True on the rank that keeps the value where the others hold the neutral element.
        before: The local shape before the step.
        after: The local shape after it.
        sent: The part of the local tensor before that goes to each rank.
        received: The part of the local tensor after that comes from each rank.
        sent_sizes: The numbers of elements of `sent`, in units of the carrier.
        received_sizes: The numbers of elements of `received`, in units of the carrier.
        sent_dim: The dimension that `sent` slices equally in group order, or None.
        received_dim: The same for `received`.
        longest: The number of elements that pieces are padded to, unless they are `even`.
        even: True if all pieces have the same shape.
        reduce_op: The reduction.
        factor: The divisor that turns a sum into an average.
        encoding: The encoding of values that are reduced, or None.
        dtype: The dtype of the tensor.
        carrier: The dtype that unreduced values travel as, if not `dtype`.
    """

    group: str
    ranks: int
    number: int
    first: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    sent: tuple[Part, ...]
    received: tuple[Part, ...]
    sent_sizes: list[int]
    received_sizes: list[int]
    sent_dim: int | None
    received_dim: int | None
    longest: int
    even: bool
    reduce_op: str
    factor: int
    encoding: WireEncoding | None
    dtype: torch.dtype
    carrier: torch.dtype | None


def _slice(local: torch.Tensor, step: RankStep) -> torch.Tensor:
    # A copy: a view would share elements with the replica, and keep all of it in memory.
    return take(local, step.sent[0]).clone(memory_format=torch.contiguous_format)


def _to_partial(local: torch.Tensor, step: RankStep) -> torch.Tensor:
    """Keep the value on the first rank and the neutral element on the others; exact."""
    neutral = _NEUTRAL.get(step.reduce_op, 0)  # of norms, 0
    if neutral is None or step.first:
        return local
    return depending(torch.full_like(local, neutral), local)


def _rescale(local: torch.Tensor, step: RankStep) -> torch.Tensor:
    """Convert partial sums to partial averages, or back."""
    return local * step.factor if step.reduce_op == "sum" else divided(local, step.factor)


def carried(sent: torch.Tensor, carrier: torch.dtype) -> torch.Tensor:
    """View the data as a dtype that backends send; a last dim of size 1 may have any stride."""
    # torch refuses to view a lazily conjugated tensor as another dtype.
    sent = sent.resolve_conj()
    if sent.ndim and sent.stride(-1) != 1:
        sent = sent.clone(memory_format=torch.contiguous_format)
    return sent.view(carrier)


def _delivered(arrived: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """View carried data as its own dtype, or make an empty tensor, whose view may be refused."""
    if arrived.numel():
        return arrived.view(dtype)
    last = arrived.shape[-1] * arrived.dtype.itemsize // dtype.itemsize
    return arrived.new_empty((*arrived.shape[:-1], last), dtype=dtype)


def _gather(local: torch.Tensor, step: RankStep) -> Issued:
    sent = local.contiguous() if step.even else pad(local, step.longest)
    if step.carrier is not None:
        sent = carried(sent, step.carrier)
    return collectives.all_gather(sent, step.ranks, step.group)


def _gathered(arrived: torch.Tensor, step: RankStep) -> torch.Tensor:
    if step.carrier is not None:
        arrived = _delivered(arrived, step.dtype)
    if step.received_dim == 0:
        return arrived
    if step.received_dim is not None:
        return _side_by_side(arrived, step.before, step)
    if step.even:
        blocks = arrived.view(step.ranks, *step.before).unbind(0)
    else:
        rows = arrived.view(step.ranks, step.longest).unbind(0)
        blocks = [
            row[: each.numel].view(each.shape)
            for row, each in zip(rows, step.received, strict=True)
        ]
    return join(blocks, step.received, step.after)


def _side_by_side(arrived: torch.Tensor, shape: Sequence[int], step: RankStep) -> torch.Tensor:
    """Join equal blocks of the same `shape` along a dimension with a single copy."""
    assert step.received_dim is not None
    blocks = arrived.view(step.ranks, *shape)
    # `reshape` may return a view that is not contiguous, if blocks have size 1 along the dim.
    return blocks.movedim(0, step.received_dim).reshape(step.after).contiguous()


def _one_by_one(local: torch.Tensor, step: RankStep) -> torch.Tensor:
    """Lay out equal slices of a dimension end to end in memory, with at most a single copy."""
    dim = step.sent_dim
    assert dim is not None
    size = local.shape[dim] // step.ranks
    slices = local.unflatten(dim, (step.ranks, size)) if size else local
    # Of an expanded tensor, whose strides are 0, `reshape` returns a view.
    return slices.movedim(dim, 0).reshape(-1).contiguous()


def _reduce(local: torch.Tensor, step: RankStep) -> Issued:
    sent = _as_sent(local.contiguous(), step)
    return collectives.all_reduce(sent, _reduce_op(step), step.group)


def _as_sent(local: torch.Tensor, step: RankStep) -> torch.Tensor:
    return local if step.encoding is None else step.encoding.encoded(local)


def _reduce_op(step: RankStep) -> str:
    return step.reduce_op if step.encoding is None else step.encoding.reduce_op


def _reduced(arrived: torch.Tensor, step: RankStep) -> torch.Tensor:
    return arrived if step.encoding is None else step.encoding.decoded(arrived, step.dtype)


def _scatter(local: torch.Tensor, step: RankStep) -> Issued:
    if step.sent_dim == 0:
        sent = local.contiguous()
    elif step.sent_dim is not None:
        sent = _one_by_one(local, step)
    else:
        sent = torch.cat([pad(take(local, each), step.longest) for each in step.sent])
    sent = _as_sent(sent, step)
    return collectives.reduce_scatter(sent, _reduce_op(step), step.ranks, step.group)


def _scattered(arrived: torch.Tensor, step: RankStep) -> torch.Tensor:
    arrived = _reduced(arrived, step)
    if step.sent_dim == 0:
        return arrived
    mine = step.sent[step.number]
    return arrived[: mine.numel].view(mine.shape)


def _exchange(local: torch.Tensor, step: RankStep) -> Issued:
    if step.sent_dim is not None:
        sent = _one_by_one(local, step)
    else:
        sent = torch.cat([take(local, each).reshape(-1) for each in step.sent])
    if step.carrier is not None:
        sent = carried(sent, step.carrier)
    return collectives.all_to_all(sent, step.received_sizes, step.sent_sizes, step.group)


def _exchanged(arrived: torch.Tensor, step: RankStep) -> torch.Tensor:
    if step.carrier is not None:
        arrived = _delivered(arrived, step.dtype)
    if step.received_dim is not None:
        return _side_by_side(arrived, step.received[0].shape, step)
    rows = arrived.split([each.numel for each in step.received])
    blocks = [row.view(each.shape) for row, each in zip(rows, step.received, strict=True)]
    return join(blocks, step.received, step.after)


Act = Callable[[torch.Tensor, RankStep], Any]

# Kind -> (begin, finish).
STEPS: dict[str, tuple[Act, Act | None]] = {
    "slice": (_slice, None),
    "to_partial": (_to_partial, None),
    "rescale": (_rescale, None),
    "all_gather": (_gather, _gathered),
    "all_reduce": (_reduce, _reduced),
    "reduce_scatter": (_scatter, _scattered),
    "all_to_all": (_exchange, _exchanged),
}


def arrives_finished(kind: str, step: RankStep) -> bool:
    """True if the arrived data is the result without further work."""
    if kind == "all_gather":
        return step.carrier is None and step.received_dim == 0
    if kind not in ("all_reduce", "reduce_scatter"):
        return False
    return step.encoding is None and (kind == "all_reduce" or step.sent_dim == 0)
