"""Coalescing: small arguments of an operator with equal pending reductions share a collective.

For example, the norm of all gradients is the norm of a list of norms, which would otherwise be sent
one by one. Coalescing depends on layouts and sizes only. Called by `dispatcher` before it moves the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core.redistribute.execute import Origin, execute
from dtensor_core.redistribute.plan import Plan, plan_between
from dtensor_core.spec import Spec, TensorMeta

# The number of elements up to which a collective takes as long as one of a single number.
SMALL = 1024

PlannedMove = tuple[torch.Tensor, Spec, Plan, Origin]


def reduced_together(moves: Sequence[PlannedMove]) -> dict[int, torch.Tensor]:
    """Execute the moves that can be coalesced; return their local tensors by index in `moves`."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, (_, spec, plan, _) in enumerate(moves):
        is_sum = spec.sums and not spec.is_sharded() and spec.replicated().placements == plan.target
        if is_sum and spec.shape.numel() <= SMALL:
            # The elements of a list may be on different meshes, whose groups differ.
            groups.setdefault((spec._whose, spec.placements, spec.dtype), []).append(place)
    done: dict[int, torch.Tensor] = {}
    for places in groups.values():
        if len(places) > 1:
            done.update(zip(places, _reduced([moves[place] for place in places]), strict=True))
    return done


def _reduced(moves: Sequence[PlannedMove]) -> list[torch.Tensor]:
    locals_, (_, first, _, origin) = [local for local, *_ in moves], moves[0]
    size = sum(spec.shape.numel() for _, spec, *_ in moves)
    spec = Spec(first.mesh, first.placements, TensorMeta(torch.Size([size]), (1,), first.dtype))
    packed = torch.cat([local.reshape(-1) for local in locals_])
    full = execute(packed, spec, plan_between(spec, spec.replicated()), origin)
    parts = full.split([local.numel() for local in locals_])
    return [part.view(local.shape) for part, local in zip(parts, locals_, strict=True)]
