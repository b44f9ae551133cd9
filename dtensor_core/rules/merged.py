"""The candidate of a rule for a dimension that is cut, where ranks share summaries of it.

Families that need a dimension whole offer it beside: see `redistribute.merge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtensor_core.placement import Placement, Replicate, Shard, sharded_dim
from dtensor_core.redistribute.partial_combine import Line, Merge
from dtensor_core.rules.call import Call
from dtensor_core.rules.rule import Candidate, Rule

Run = Callable[[Callable[..., Any], Line], Callable[..., Any]]


def merged(
    rule: Rule,
    call: Call,
    dims: Sequence[int],
    bytes_each: int,
    run: Run,
    *,
    stays: bool = False,
) -> Rule:
    """The rule with a merge of what ranks say of `dims` offered to every axis that cuts one.

    The results are cut as the arguments are if the dimension `stays`, and whole if not.
    """
    extra: list[Candidate] = []
    for axis, dim in cuts(call, dims).items():
        cut = Shard(dim)
        result: Placement = cut if stays else Replicate()
        exchange = Merge((axis,), tuple(dims), bytes_each, run)
        inputs = (cut,) * len(call.specs)
        extra.append(Candidate(inputs, (result,) * len(call.outputs), exchange=exchange))
    return replace(rule, extra=(*rule.extra, *extra)) if extra else rule


def cuts(call: Call, dims: Sequence[int]) -> dict[int, int]:
    """The axes that cut one of the dimensions, and which; none if any does it in blocks."""
    found: dict[int, int] = {}
    for spec in call.specs:
        for axis, placement in enumerate(spec.placements):
            dim = sharded_dim(placement)
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
