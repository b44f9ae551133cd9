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
from dtensor_core.redistribute.reduction_values import Addends, divided
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


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Rank-specific parameters of a step.

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
        cut_dim: The dimension of which `sent` are equal slices in group order, or None.
        joined_dim: The same of `received`.
        longest: The number of elements that pieces are padded to, unless they are `even`.
        even: True if all pieces have the same shape.
        reduce_op: The reduction.
        factor: The divisor that turns a sum into an average.
        addends: The encoding of values that are reduced, or None.
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
    cut_dim: int | None
    joined_dim: int | None
    longest: int
    even: bool
    reduce_op: str
    factor: int
    addends: Addends | None
    dtype: torch.dtype
    carrier: torch.dtype | None


def _slice(local: torch.Tensor, site: Site) -> torch.Tensor:
    return take(local, site.sent[0]).clone(memory_format=torch.contiguous_format)


def _one_addend(local: torch.Tensor, site: Site) -> torch.Tensor:
    """Keep the value on the first rank and the neutral element on the others; exact."""
    neutral = _NEUTRAL.get(site.reduce_op, 0)  # of norms, 0
    if neutral is None or site.first:
        return local
    return depending(torch.full_like(local, neutral), local)


def _rescale(local: torch.Tensor, site: Site) -> torch.Tensor:
    """Convert partial sums to partial averages, or back."""
    return local * site.factor if site.reduce_op == "sum" else divided(local, site.factor)


def carried(sent: torch.Tensor, carrier: torch.dtype) -> torch.Tensor:
    """View the data as a dtype that backends send; a last dim of size 1 may have any stride."""
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


def _gather(local: torch.Tensor, site: Site) -> Issued:
    sent = local.contiguous() if site.even else pad(local, site.longest)
    if site.carrier is not None:
        sent = carried(sent, site.carrier)
    return collectives.all_gather(sent, site.ranks, site.group)


def _gathered(arrived: torch.Tensor, site: Site) -> torch.Tensor:
    if site.carrier is not None:
        arrived = _delivered(arrived, site.dtype)
    if site.joined_dim == 0:
        return arrived
    if site.joined_dim is not None:
        return _side_by_side(arrived, site.before, site)
    if site.even:
        blocks = arrived.view(site.ranks, *site.before).unbind(0)
    else:
        rows = arrived.view(site.ranks, site.longest).unbind(0)
        blocks = [
            row[: each.numel].view(each.shape)
            for row, each in zip(rows, site.received, strict=True)
        ]
    return join(blocks, site.received, site.after)


def _side_by_side(arrived: torch.Tensor, shape: Sequence[int], site: Site) -> torch.Tensor:
    """Join equal blocks of one `shape` along one dimension with a single copy."""
    assert site.joined_dim is not None
    blocks = arrived.view(site.ranks, *shape)
    return blocks.movedim(0, site.joined_dim).reshape(site.after).contiguous()


def _one_by_one(local: torch.Tensor, site: Site) -> torch.Tensor:
    """Lay out equal slices of one dimension one after the other, with at most a single copy."""
    dim = site.cut_dim
    assert dim is not None
    size = local.shape[dim] // site.ranks
    slices = local.unflatten(dim, (site.ranks, size)) if size else local
    return slices.movedim(dim, 0).reshape(-1)


def _reduce(local: torch.Tensor, site: Site) -> Issued:
    sent = _as_sent(local.contiguous(), site)
    return collectives.all_reduce(sent, _reduce_op(site), site.group)


def _as_sent(local: torch.Tensor, site: Site) -> torch.Tensor:
    return local if site.addends is None else site.addends.encoded(local)


def _reduce_op(site: Site) -> str:
    return site.reduce_op if site.addends is None else site.addends.reduce_op


def _reduced(arrived: torch.Tensor, site: Site) -> torch.Tensor:
    return arrived if site.addends is None else site.addends.decoded(arrived, site.dtype)


def _scatter(local: torch.Tensor, site: Site) -> Issued:
    if site.cut_dim == 0:
        sent = local.contiguous()
    elif site.cut_dim is not None:
        sent = _one_by_one(local, site)
    else:
        sent = torch.cat([pad(take(local, each), site.longest) for each in site.sent])
    sent = _as_sent(sent, site)
    return collectives.reduce_scatter(sent, _reduce_op(site), site.ranks, site.group)


def _scattered(arrived: torch.Tensor, site: Site) -> torch.Tensor:
    arrived = _reduced(arrived, site)
    if site.cut_dim == 0:
        return arrived
    mine = site.sent[site.number]
    return arrived[: mine.numel].view(mine.shape)


def _exchange(local: torch.Tensor, site: Site) -> Issued:
    if site.cut_dim is not None:
        sent = _one_by_one(local, site)
    else:
        sent = torch.cat([take(local, each).reshape(-1) for each in site.sent])
    if site.carrier is not None:
        sent = carried(sent, site.carrier)
    return collectives.all_to_all(sent, site.received_sizes, site.sent_sizes, site.group)


def _exchanged(arrived: torch.Tensor, site: Site) -> torch.Tensor:
    if site.carrier is not None:
        arrived = _delivered(arrived, site.dtype)
    if site.joined_dim is not None:
        return _side_by_side(arrived, site.received[0].shape, site)
    rows = arrived.split([each.numel for each in site.received])
    blocks = [row.view(each.shape) for row, each in zip(rows, site.received, strict=True)]
    return join(blocks, site.received, site.after)


Act = Callable[[torch.Tensor, Site], Any]

# Kind -> (begin, finish).
STEPS: dict[str, tuple[Act, Act | None]] = {
    "slice": (_slice, None),
    "one_addend": (_one_addend, None),
    "rescale": (_rescale, None),
    "all_gather": (_gather, _gathered),
    "all_reduce": (_reduce, _reduced),
    "reduce_scatter": (_scatter, _scattered),
    "all_to_all": (_exchange, _exchanged),
}


def arrives_finished(kind: str, site: Site) -> bool:
    """True if the arrived data is the result without further work."""
    if kind == "all_gather":
        return site.carrier is None and site.joined_dim == 0
    if kind not in ("all_reduce", "reduce_scatter"):
        return False
    return site.addends is None and (kind == "all_reduce" or site.cut_dim == 0)
