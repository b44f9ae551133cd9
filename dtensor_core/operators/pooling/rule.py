"""Pooling: samples and channels are sharded freely; sharded spatial dimensions exchange halos.

Fractional pooling draws its windows at random and needs replicated spatial dimensions. Returned
indices count positions of the global tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.windows import Shares, Windows, per_dim
from dtensor_core.operators.pooling.local import (
    PooledWindows,
    adapted,
    pooled,
    scattered,
    shared_out,
    spread,
)
from dtensor_core.operators.rules.batched import batched
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import exchanging_rows
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.placement import Shard


def _fixed(call: Call, own: int) -> PooledWindows:
    """Return windows of given kernel, stride, padding and dilation."""
    x, out = (call.argument("self"), call.outputs[0])
    if call.op._schema.name.endswith("_backward"):
        out = call.argument("grad_output")
    first = x.ndim - own
    kernel = per_dim(call.argument("kernel_size"), own)
    stride = per_dim(call.argument("stride") or kernel, own)
    pads, dilation = (per_dim(call.argument(*it), own) for it in (("padding", 0), ("dilation", 1)))
    windows = {
        first + n: Windows(
            x.shape[first + n],
            out.shape[first + n],
            stride[n],
            dilation[n] * (kernel[n] - 1) + 1,
            pads[n],
        )
        for n in range(own)
    }
    return PooledWindows(windows, first, x.shape[first:], bool(call.argument("ceil_mode")))


def _adaptive(call: Call, own: int) -> PooledWindows:
    """Return adaptive windows, which divide the input."""
    x, out = (call.argument("self"), call.outputs[0])
    if call.op._schema.name.endswith("_backward"):
        out = call.argument("grad_output")
    dims = [dim for dim in range(x.ndim - own, x.ndim) if x.shape[dim] and out.shape[dim]]
    windows = {dim: Shares(x.shape[dim], out.shape[dim]) for dim in dims}
    return PooledWindows(windows, x.ndim - own, x.shape[x.ndim - own :])


def _pooling(own: int, windows_of: Callable[[Call, int], PooledWindows], **options: Any) -> Row:
    """Make a row of a pool over `own` dims; further results are indices."""
    base = batched(own, **options)

    def build(call: Call) -> ShardingRule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)
        run = partial(adapted if windows_of is _adaptive else pooled, pool)

        def wanted(dim: int, shard: AxisSharding) -> Extent:
            windows = pool.windows[dim]
            return windows.rows_read(local_extent(windows.count, shard.num_shards, shard.coord))

        for dim in pool.windows:
            wants = {0: partial(wanted, dim)}
            placements = [Shard(dim)] * len(call.outputs)
            rule = exchanging_rows(rule, call, dim, wants, placements, run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _unpooling(own: int, windows_of: Callable[[Call, int], PooledWindows]) -> Row:
    """Make a row of a pool's gradient: an average has an operator, a maximum has indices."""
    base = batched(own, linear=True)

    def build(call: Call) -> ShardingRule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)
        of_average = shared_out if windows_of is _adaptive else spread
        run = partial(of_average if len(call.specs) == 2 else scattered, pool)

        def wanted(dim: int, shard: AxisSharding) -> Extent:
            windows = pool.windows[dim]
            return windows.windows_reading(
                local_extent(windows.size, shard.num_shards, shard.coord)
            )

        for dim in pool.windows:
            wants: dict[int, Callable[[AxisSharding], Extent]] = dict.fromkeys(
                range(len(call.specs)), partial(wanted, dim)
            )
            wants[1] = lambda shard: Extent(0, 0)  # only the shape of the pooled tensor is read
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _rows(own: int) -> dict[str, Row]:
    """Return the rows of pools over `own` dims (two or three)."""
    random = batched(own, random_samples=1)
    unpool = batched(own, linear=True)
    return {
        f"avg_pool{own}d": _pooling(own, _fixed, linear=True),
        f"_adaptive_avg_pool{own}d": _pooling(own, _adaptive, linear=True),
        f"max_pool{own}d_with_indices": _pooling(own, _fixed),
        f"adaptive_max_pool{own}d": _pooling(own, _adaptive),
        f"avg_pool{own}d_backward": _unpooling(own, _fixed),
        f"_adaptive_avg_pool{own}d_backward": _unpooling(own, _adaptive),
        f"max_pool{own}d_with_indices_backward": _unpooling(own, _fixed),
        f"adaptive_max_pool{own}d_backward": _unpooling(own, _adaptive),
        f"fractional_max_pool{own}d": random,
        f"fractional_max_pool{own}d_backward": unpool,
        f"max_unpool{own}d": unpool,
    }


ROWS = _rows(2) | _rows(3)
