"""Padding by constants, reflection and replication, and its gradients.

Along a padded dimension, edge rows are copied from other rows. All other dimensions are sharded
freely; along a sharded dimension only the rows that change owners are sent
(`redistribute.halo_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.windows import extent
from dtensor_core.operators.padding.local import Padded, folding
from dtensor_core.operators.rules.batched import batched
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import exchanging_rows
from dtensor_core.operators.rules.rearranged_rows import RowChange, RowCopy, RowLine, changing_rows
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.placement import Shard

_TEXT = "rows of a sharded dim move"
_Edges = Callable[[int, int, int], tuple[RowCopy, RowCopy]]


def _reflected(size: int, before: int, behind: int) -> tuple[RowCopy, RowCopy]:
    last = size - 1
    below, above = extent(1, 1 + before), extent(last - behind, last)
    return RowCopy(0, below, -1), RowCopy(2 * last, above, -1)


def _replicated(size: int, before: int, behind: int) -> tuple[RowCopy, RowCopy]:
    below = RowCopy(-before, Extent(0, 1), 0, max(before, 0))
    return below, RowCopy(size, Extent(size - 1, 1), 0, max(behind, 0))


def _padding(call: Call, edges: _Edges, rest: tuple[Any, ...] = ()) -> RowChange:
    """Add rows before and behind; a negative number removes rows."""
    shape, pads = call.specs[0].shape, list(call.argument("padding", call.args[1]))
    lines: dict[int, RowLine] = {}
    for n in range(len(pads) // 2):
        dim, (before, behind) = len(shape) - 1 - n, pads[2 * n : 2 * n + 2]
        if before or behind:
            size = shape[dim]
            below, above = edges(size, before, behind)
            taken = extent(-before, size + behind)
            lines[dim] = RowLine((below, RowCopy(0, Extent(0, size)), above), taken)

    def without(shards: Mapping[int, AxisSharding]) -> tuple[Any, ...]:
        left = [0 if len(shape) - 1 - n // 2 in shards else pad for n, pad in enumerate(pads)]
        return left, *rest

    return RowChange(lines, without)


def _constant_padding(call: Call) -> RowChange:
    value = call.argument("value", 0)

    def edges(size: int, before: int, behind: int) -> tuple[RowCopy, RowCopy]:
        none = Extent(0, 0)
        below = RowCopy(-before, none, 0, max(before, 0), value)
        return below, RowCopy(size, none, 0, max(behind, 0), value)

    change = _padding(call, edges, (value,))
    return replace(change, algebra="linear" if value == 0 else "opaque")


def _reflection(call: Call) -> RowChange:
    return _padding(call, _reflected)


def _replication(call: Call) -> RowChange:
    return _padding(call, _replicated)


def _unpadding(own: int, *, mirrors: bool) -> Row:
    """Make a row of the gradient of padding, which adds rows of edges to their origins."""
    base = batched(own, linear=True)

    def build(call: Call) -> ShardingRule | None:
        rule = base.build(call)
        assert rule is not None
        shape, pads = call.specs[1].shape, call.argument("padding")
        last = len(shape) - 1
        dims = {
            last - n: Padded(shape[last - n], pads[2 * n], pads[2 * n + 1], mirrors)
            for n in range(own)
        }

        def wanted(dim: int, shard: AxisSharding) -> Extent:
            return dims[dim].needs(local_extent(shape[dim], shard.num_shards, shard.coord))

        for dim in dims:
            wants = {0: partial(wanted, dim), 1: lambda shard: Extent(0, 0)}
            run = partial(folding, dims, pads)
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return rule

    return replace(base, build=build, text=_TEXT)


ROWS = {"constant_pad_nd": changing_rows(_constant_padding, _TEXT, "linear")}
ROWS |= {f"reflection_pad{n}d": changing_rows(_reflection, _TEXT) for n in (1, 2, 3)}
ROWS |= {f"replication_pad{n}d": changing_rows(_replication, _TEXT) for n in (1, 2, 3)}
ROWS |= {
    f"{kind}_pad{n}d_backward": _unpadding(n, mirrors=kind == "reflection")
    for kind in ("reflection", "replication")
    for n in (1, 2, 3)
}
