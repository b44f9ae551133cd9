"""Candidate of a rule for a sharded dimension whose ranks exchange rows of it.

The rows that windows read are computed in `operators.kernels.windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Placement, Replicate, Shard
from dtensor_core.redistribute.halo_exchange import Exchange, ExchangeRunner, Extents
from dtensor_core.spec import Spec


def chunks(size: int, ranks: int, offset: int = 0) -> Extents:
    """Return the extent of every rank, for a dimension at `offset` of the common line."""
    pieces = [local_extent(size, ranks, coord) for coord in range(ranks)]
    return tuple(Extent(offset + piece.offset, piece.size) for piece in pieces)


def sharding_axis(specs: Sequence[Spec], dim: int) -> int | None:
    """Return the axis that shards a dimension, or None.

    None is returned if no axis or several axes shard it, or if it is a strided shard.
    """
    found = {
        axis: placement
        for spec in specs
        for axis, placement in enumerate(spec.placements)
        if spec.mesh_shape[axis] > 1 and placement.sharded_dim == dim
    }
    strided = any(
        type(each.placements[axis]) is not Shard
        for each in specs
        for axis in found
        if each.placements[axis].sharded_dim == dim
    )
    return None if len(found) != 1 or strided else next(iter(found))


def exchanging_rows(
    rule: ShardingRule,
    call: Call,
    dim: int,
    wants: Mapping[int, Callable[[AxisSharding], Extent]],
    outputs: Sequence[Placement],
    run: ExchangeRunner,
) -> ShardingRule:
    """Add to a rule a candidate that exchanges the rows of a sharded dimension.

    Args:
        rule: The rule to extend.
        call: Its call.
        dim: The sharded dimension.
        wants: The sharded arguments, each with a function for the extent that a rank needs of it;
            all others are replicated.
        outputs: The placements of the results.
        run: See `Exchange.run`.
    """
    axis = sharding_axis([call.specs[number] for number in wants], dim)
    if axis is None:
        return rule
    ranks = call.specs[0].mesh_shape[axis]
    owned: list[Extents] = []
    wanted: list[Extents] = []
    start = 0  # of a tensor, on the common line
    for number, want in wants.items():
        size = call.specs[number].shape[dim]
        needs = [want(AxisSharding(ranks, coord)) for coord in range(ranks)]
        owned.append(chunks(size, ranks, start))
        wanted.append(tuple(Extent(start + each.offset, each.size) for each in needs))
        start += size
    inputs = tuple(
        Shard(dim) if number in wants else Replicate() for number in range(len(call.specs))
    )
    exchange = Exchange(axis, dim, tuple(owned), tuple(wanted), run, tuple(wants))
    candidate = Candidate(inputs, tuple(outputs), exchange=exchange)
    return replace(rule, extra=(*rule.extra, candidate))
