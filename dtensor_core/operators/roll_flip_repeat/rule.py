"""Rows shifted, reversed or repeated: roll, flip, rot90, repeat.

Along a sharded dimension only the rows that change owners are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtensor_core.layout import AxisSharding, Extent
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.rearranged_rows import RowChange, RowCopy, RowLine, changing_rows
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import structural_rule
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def _roll(call: Call) -> RowChange:
    """Without dims, this rolls the flattened tensor."""
    shape = call.specs[0].shape
    given = call.argument("dims") or range(len(shape))[:1]
    if not call.argument("dims") and len(shape) != 1:
        return RowChange(dict.fromkeys(range(len(shape)), RowLine((), Extent(0, 0))), lambda _: ())
    shifts: dict[int, int] = {}
    for dim, shift in zip(given, call.argument("shifts"), strict=True):
        shifts[dim % len(shape)] = shifts.get(dim % len(shape), 0) + shift
    lines: dict[int, RowLine] = {}
    for dim, shift in shifts.items():
        rows = Extent(0, shape[dim])
        start = -(shift % rows.size) if rows.size else 0
        lines[dim] = RowLine(
            (RowCopy(-rows.size, rows), RowCopy(0, rows)), Extent(start, rows.size)
        )

    def without(shards: Mapping[int, AxisSharding]) -> tuple[Any, ...]:
        dims = [dim for dim in shifts if dim not in shards]
        return [shifts[dim] for dim in dims], dims

    return RowChange(lines, without)


def _flip(call: Call) -> RowChange:
    shape = call.specs[0].shape
    dims = [dim % len(shape) for dim in call.args[1]]
    lines = {
        dim: RowLine((RowCopy(shape[dim] - 1, Extent(0, shape[dim]), -1),), Extent(0, shape[dim]))
        for dim in dims
    }
    return RowChange(lines, lambda shards: ([dim for dim in dims if dim not in shards],))


def _repeat(call: Call) -> RowChange:
    shape, times = call.specs[0].shape, list(call.args[1])
    added = len(times) - len(shape)
    lines: dict[int, RowLine] = {}
    for dim, size in enumerate(shape):
        number = times[added + dim]
        if number != 1:
            copies = tuple(RowCopy(size * n, Extent(0, size)) for n in range(number))
            lines[dim] = RowLine(copies or (RowCopy(0, Extent(0, 0)),), Extent(0, size * number))

    def without(shards: Mapping[int, AxisSharding]) -> tuple[Any, ...]:
        return ([1 if n - added in shards else each for n, each in enumerate(times)],)

    return RowChange(lines, without, added)


def _rot90(call: Call) -> ShardingRule:
    """Half a turn flips two dims; a quarter turn flips one of them and then swaps them."""
    shape = call.specs[0].shape
    quarters = int(call.argument("k")) % 4
    one, other = (dim % len(shape) for dim in call.argument("dims"))
    full = full_operand(shape)
    out = list(full)
    if quarters % 2:
        out[one], out[other] = out[other], out[one]
    flipped = ((), (f"d{other}",), (f"d{one}", f"d{other}"), (f"d{one}",))[quarters]
    return structural_rule((full,), (tuple(out),), factor_sizes(shape), flipped)


ROWS = {
    "roll": changing_rows(_roll, "rows of a sharded dim move"),
    "flip": changing_rows(_flip, "rows of a sharded dim move"),
    "repeat": changing_rows(_repeat, "rows of a sharded dim move"),
    "rot90": Row(_rot90, "flipped dims replicated", "structural"),
}
