"""Pooling: samples and channels are cut freely; of spatial dims neighbours send what windows see.

An adaptive pool has windows of one size where the size of the result divides that of the argument;
otherwise, and where windows are random, spatial dims must be whole. Indices count in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.operator import Local
from dtensor_core.local.pools import Pool, part, pooled, scattered, spread
from dtensor_core.local.windows import Windows
from dtensor_core.placement import Shard
from dtensor_core.redistribute.exchange import Rows
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.batched import batched
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.rules.windows import exchanging_rows


def _fixed(call: Call, own: int) -> Pool:
    """Windows of given kernel, stride, padding and dilation."""
    x, out = (call.argument("self"), call.outputs[0])
    if call.op._schema.name.endswith("_backward"):
        out = call.argument("grad_output")
    first = x.ndim - own
    kernel = _each(call.argument("kernel_size"), own)
    stride = _each(call.argument("stride") or kernel, own)
    pads, dilation = (_each(call.argument(*it), own) for it in (("padding", 0), ("dilation", 1)))
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
    return Pool(windows, first, x.shape[first:], bool(call.argument("ceil_mode")))


def _each(values: Any, number: int) -> list[int]:
    given = [values] if isinstance(values, int) else [*values]
    return given * (number // len(given))


def _adaptive(call: Call, own: int) -> Pool:
    """Windows of one size, where the result's size divides that of the argument."""
    x, out = (call.argument("self"), call.outputs[0])
    backward = call.op._schema.name.endswith("_backward")
    if backward:
        out = call.argument("grad_output")
    first = x.ndim - own
    windows: dict[int, Windows] = {}
    for dim in range(first, x.ndim):
        size, count = x.shape[dim], out.shape[dim]
        if count and size % count == 0:
            windows[dim] = Windows(size, count, size // count, size // count)
    return Pool(windows, first, x.shape[first:], size_at=None if backward else 1)


def _pooling(own: int, windows_of: Callable[[Call, int], Pool], **options: Any) -> Row:
    """A pool that `own` dims are pooled by; what it returns besides are indices."""
    base = batched(own, **options)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)

        def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
            return pooled(pool, op, rows, cuts)

        for dim in pool.windows:
            wants = {0: lambda cut, dim=dim: part(pool, dim, cut).needs}
            placements = [Shard(dim)] * len(call.outputs)
            rule = exchanging_rows(rule, call, dim, wants, placements, run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _unpooling(own: int, windows_of: Callable[[Call, int], Pool]) -> Row:
    """The gradient of a pool: that of an average is an operator, that of a maximum has indices."""
    base = batched(own, linear=True)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        pool = windows_of(call, own)
        way = spread if len(call.specs) == 2 else scattered

        def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
            return way(pool, op, rows, cuts)

        def wanted(dim: int, cut: Cut) -> Extent:
            windows = pool.windows[dim]
            return windows.seeing(local_extent(windows.size, cut.num_shards, cut.coord))

        for dim in pool.windows:
            wants: dict[int, Callable[[Cut], Extent]] = dict.fromkeys(
                range(len(call.specs)), lambda cut, dim=dim: wanted(dim, cut)
            )
            wants[1] = lambda cut: Extent(0, 0)  # of the pooled tensor only the shape is read
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return rule

    return replace(base, build=build, text=base.text.replace("!", ""))


def _rows(own: int) -> dict[str, Row]:
    """The pools of two or three dims."""
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
