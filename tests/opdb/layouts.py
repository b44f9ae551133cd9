"""The layouts that a run tries for the tensors of a call, and tensors with these layouts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import dtensor_core
from dtensor_core.placement import Partial, Placement, Replicate, Shard
from tests.opdb.runs import Run

Layouts = tuple[tuple[Placement, ...], ...]


def placements_of(tensor: torch.Tensor, run: Run, axis_size: int) -> Iterator[Placement]:
    """Yield the placements of a tensor on a mesh axis that a run tries."""
    yield Replicate()
    for dim, size in enumerate(tensor.shape):
        if run.uneven or (size > 0 and size % axis_size == 0):
            yield Shard(dim)
    floating = tensor.dtype.is_floating_point
    for reduce_op in run.partials:
        if floating or (reduce_op == "sum" and tensor.dtype is not torch.bool):
            yield Partial(reduce_op)


def layouts_of(
    tensors: Sequence[torch.Tensor], run: Run, chooser: random.Random, limit: int
) -> list[Layouts]:
    """Return all combinations of placements, or `limit` random ones; all-replicated comes first."""
    choices = [
        [
            each
            for each in itertools.product(*(placements_of(tensor, run, n) for n in run.mesh))
            if len({p for p in each if isinstance(p, Partial)}) < 2
        ]
        for tensor in tensors
    ]
    total = 1
    for each in choices:
        total *= len(each)
    if total <= limit:
        return list(itertools.product(*choices))
    picked = {tuple(each[0] for each in choices): None}
    while len(picked) < limit:
        picked[tuple(chooser.choice(each) for each in choices)] = None
    return list(picked)


def laid_out(
    tensor: torch.Tensor, mesh: Any, placements: Sequence[Placement], kit: Any = dtensor_core
) -> Any:
    """Create a DTensor of `kit`; partial values differ between the ranks and have both signs.

    A kit has the names of `torch.distributed.tensor`.
    """
    full = [_placement_of(kit, None if p.is_partial() else p) for p in placements]
    made = kit.distribute_tensor(tensor.detach().clone(), mesh, full, src_data_rank=None)
    local = made.to_local()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            local = _partial_value(
                local, placement.reduce_op, mesh.get_local_rank(axis), mesh.size(axis)
            )
    result = kit.DTensor.from_local(
        local.contiguous() if local.numel() == 0 else local,
        mesh,
        [_placement_of(kit, placement) for placement in placements],
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return result.requires_grad_(tensor.requires_grad)


def _placement_of(kit: Any, placement: Placement | None) -> Any:
    """Convert a placement to another kit's; None is Replicate."""
    if isinstance(placement, Partial):
        return kit.Partial(placement.reduce_op)
    dim = None if placement is None else placement.sharded_dim
    return kit.Replicate() if dim is None else kit.Shard(dim)


def _partial_value(value: torch.Tensor, reduce_op: str, coord: int, ranks: int) -> torch.Tensor:
    """Return a rank's partial value of a pending reduction whose exact result is `value`.

    Multiples by powers of two keep it exact: v = 2v - v + 0v + ...; non-finite values are on one
    rank.
    """
    if reduce_op in ("max", "min"):
        sign = -1 if reduce_op == "max" else 1
        return value if coord == 1 % ranks else value + sign * (1 + coord)
    share = {0: 2, 1: -1}.get(coord, 0) if ranks > 1 else 1
    part = value * (share * ranks if reduce_op == "avg" else share)
    return torch.where(value.isfinite(), part, value if coord == 0 else torch.zeros_like(value))
