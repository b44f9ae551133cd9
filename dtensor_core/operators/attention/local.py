"""Attention on shards of queries or keys, and with random dropout.

Queries are [b, h, l, d], keys and values [b, g, s, d].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import (
    Local,
    LocalMaker,
    by_name,
    called_with,
    zeros,
)
from dtensor_core.placement import Partial
from dtensor_core.redistribute.execute import Origin, execute
from dtensor_core.redistribute.partial_combine import RankOrder
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.sharded_rng import apart
from dtensor_core.spec import Spec


def drawn_apart(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Draw from a random state per shard, since kernels draw by position in the local tensor."""
    query = inputs[0]
    assert query.coords is not None
    axes = [axis for axis, each in enumerate(query.placements) if each.sharded_dim is not None]
    if not axes or 0 in query.local_shape:
        return op
    place = 0
    for axis in axes:
        place = place * query.mesh_shape[axis] + query.coords[axis]

    def run(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(query) is not torch.Tensor:  # without data nothing is drawn
            return op(query, *args, **kwargs)
        with apart(query.device.type, place):
            return op(query, *args, **kwargs)

    return run


def part_of(number: int, causal: bool, forward: bool) -> LocalMaker:
    """Attend with shards of the queries (argument `number`) or of the keys (the next argument).

    Causality then becomes a mask. Partial results over shards of the keys are summed, weighted by
    each shard's fraction of the sum of exponentials. For this, ranks share its logarithm, a
    number per query.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Local:
        queries, keys = inputs[number : number + 2]
        order = RankOrder.along(op, keys, (2,), outputs[0], 4) if forward else None
        is_sharded = any(p.sharded_dim == 2 for each in (queries, keys) for p in each.placements)
        empty = 0 in queries.local_shape or 0 in keys.local_shape
        run = zeros(op, outputs) if is_sharded and empty else op  # pyright: ignore[reportArgumentType]
        if not is_sharded or (order is None and not causal):
            return run
        full, of_keys = outputs[0], [each.sharded_dim == 2 for each in keys.placements]
        merged = zip(of_keys, full.placements, strict=True)
        partial = full.with_placements([Partial() if is_of else p for is_of, p in merged])
        origin = Origin(str(op), "output")

        def part(*args: Any, **kwargs: Any) -> Any:
            mask = by_name(op, args, kwargs).get("attn_mask")
            if causal and run is op:
                mask = _mask(args[number], queries, keys)
                found = called_with(op, args, kwargs, is_causal=False, attn_mask=mask)
            else:
                found = run(*args, **kwargs)
            if order is None:
                return found
            out, lse, *rest = found
            if mask is not None:  # a query without keys has no exponentials
                seen = mask if mask.dtype is torch.bool else mask > -torch.inf
                lse = lse.masked_fill(~seen.any(-1), -torch.inf)
            (every,) = order.gather(lse)
            total = every.logsumexp(0)
            none = total == -torch.inf  # any other nan comes from the scores
            # Some kernels pad the logarithms, and some give them a last dim of 1.
            weight = (lse - total).exp().masked_fill(none, 0.0).flatten(2)[..., : out.shape[2]]
            out = (out * weight.unsqueeze(-1)).to(out.dtype)
            out = execute(out, partial, plan_between(partial, full), origin)
            return out, total.masked_fill(none, 0.0), *rest

        return part

    return maker  # pyright: ignore[reportReturnType]


def _mask(like: torch.Tensor, queries: Spec, keys: Spec) -> torch.Tensor:
    """Return a mask with minus infinity where a local key comes after a query."""
    rows, columns = (
        torch.cat([torch.arange(at.size, device=like.device) + at.offset for at in each.extents(2)])
        for each in (queries, keys)
    )
    mask = like.new_zeros(len(rows), len(columns))
    return mask.masked_fill_(columns > rows[:, None], -torch.inf)
