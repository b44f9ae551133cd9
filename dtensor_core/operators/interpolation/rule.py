"""Interpolation: samples and channels are sharded freely; spatial dimensions exchange halos.

`interpolation.local` computes which rows of the argument a row of the result depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.interpolation.local import Taps, resampled, taps, with_local_size
from dtensor_core.operators.rules.batched import batched
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import exchanging_rows
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.placement import Shard


def _taps(call: Call, own: int, reach: int, *, backward: bool, dim: int) -> Taps:
    """Return the taps of the operator along a dim."""
    given, made = call.specs[0], call.outputs[0].shape
    source, result = (made, given.shape) if backward else (given.shape, made)
    name = call.op._schema.name.removeprefix("aten::").removesuffix("_backward")
    scales = ["scales"] if own == 1 else [f"scales_{each}" for each in "dhw"[-own:]]
    corners = call.argument("align_corners")
    return taps(
        getattr(torch.ops.aten, name).default,
        own,
        (source[dim], result[dim]),
        reach,
        call.argument(scales[dim - given.ndim + own]),
        torch.float64 if given.dtype is torch.float64 else torch.float32,
        () if corners is None else (("align_corners", corners),),
    )


def _resampling(own: int, reach: int, *, backward: bool) -> Row:
    base = batched(own, linear=True)

    def build(call: Call) -> ShardingRule | None:
        rule = base.build(call)
        assert rule is not None
        first = call.specs[0].ndim - own
        taps_of = partial(_taps, call, own, reach, backward=backward)

        def wanted(dim: int, shard: AxisSharding) -> Extent:
            """Return the extent that a rank needs for its rows of the result."""
            found, size = taps_of(dim=dim), call.outputs[0].shape[dim]
            rows = local_extent(size, shard.num_shards, shard.coord)
            return found.windows_reading(rows) if backward else found.rows_read(rows)

        dims = range(first, first + own)
        run = partial(resampled, lambda dim: taps_of(dim=dim), dims, backward)
        is_sum = call.specs[0].dtype.is_floating_point or not reach
        for dim in dims if is_sum and 0 not in call.outputs[0].shape else ():
            wants = {0: partial(wanted, dim)}
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return replace(rule, local=with_local_size(first, backward=backward))

    return Row(build, base.text.replace("!", ""), base.algebra)


# The dims of an operator, and the distance of its taps in rows; if negative, in coarser rows.
_REACH: dict[str, tuple[Sequence[int], int]] = {
    "upsample_nearest{}d": ((1, 2, 3), 0),
    "_upsample_nearest_exact{}d": ((1, 2, 3), 0),
    "upsample_linear{}d": ((1,), 1),
    "upsample_bilinear{}d": ((2,), 1),
    "upsample_trilinear{}d": ((3,), 1),
    "upsample_bicubic{}d": ((2,), 2),
    "_upsample_bilinear{}d_aa": ((2,), -1),
    "_upsample_bicubic{}d_aa": ((2,), -2),
    "_upsample_lanczos{}d_aa": ((2,), -3),
}

ROWS = {
    name.format(own) + ("_backward" if backward else ""): _resampling(own, reach, backward=backward)
    for name, (dims, reach) in _REACH.items()
    for own in dims
    for backward in (False, True)
}
