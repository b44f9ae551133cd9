"""Candidate of a rule for a sharded dimension whose ranks combine summaries of it.

Families that need a replicated dimension offer it as an alternative: see
`redistribute.partial_combine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Placement, Replicate, Shard
from dtensor_core.redistribute.partial_combine import Merge, RankOrder

MergeRunner = Callable[[Callable[..., Any], RankOrder], Callable[..., Any]]


def merged(
    rule: ShardingRule,
    call: Call,
    dims: Sequence[int],
    bytes_each: int,
    run: MergeRunner,
    *,
    stays: bool = False,
) -> ShardingRule:
    """Add to a rule a merge of the ranks' summaries, for every axis that shards any of `dims`.

    The results are sharded like the arguments if the dimension `stays`, and otherwise replicated.

    Args:
        rule: The rule to extend.
        call: Its call.
        dims: The dimensions that are summarized.
        bytes_each: The summary bytes of a rank per element of the other dims.
        run: See `Merge.run`.
        stays: True if the results have the dimension.
    """
    extra: list[Candidate] = []
    for axis, dim in sharded_axes(call, dims).items():
        sharded = Shard(dim)
        result: Placement = sharded if stays else Replicate()
        exchange = Merge((axis,), tuple(dims), bytes_each, run)
        inputs = (sharded,) * len(call.specs)
        extra.append(Candidate(inputs, (result,) * len(call.outputs), exchange=exchange))
    return replace(rule, extra=(*rule.extra, *extra)) if extra else rule


def sharded_axes(call: Call, dims: Sequence[int]) -> dict[int, int]:
    """Return the dimension that each axis shards, if among `dims`; empty if any is strided."""
    found: dict[int, int] = {}
    for spec in call.specs:
        for axis, placement in enumerate(spec.placements):
            dim = placement.sharded_dim
            if (
                dim is not None
                and dim in dims
                and spec.mesh_shape[axis] > 1
                and 0 not in spec.shape
            ):
                if type(placement) is not Shard:
                    return {}
                found.setdefault(axis, dim)
    return found
