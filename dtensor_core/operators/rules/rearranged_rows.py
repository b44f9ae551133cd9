"""Rows of a dimension reordered, repeated or added: lines of copies, and their exchange.

Along each dimension that it changes, an operator reads rows of its argument shifted, reversed, at
several places, or an edge row many times. All other dimensions are sharded freely; along a sharded
dimension only the rows that change owners are sent (`redistribute.halo_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, Extent
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.windows import meeting
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import chunks, sharding_axis
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import structural_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Shard
from dtensor_core.redistribute.halo_exchange import Exchange, Rows


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Rows `of` the argument on a line: row r is at `offset + step * r`.

    With step 0 it is a single row, at `times` positions from `offset` on. Without rows it is all
    `value`.
    """

    offset: int
    of: Extent
    step: int = 1
    times: int = 0
    value: Any = None

    def extent_from(self, piece: Extent) -> Extent:
        """Return the extent of the line that a rank with a piece of the argument holds."""
        rows = meeting(self.of, piece)
        if self.value is not None or self.step == 0:
            return Extent(self.offset, self.times if rows.size or self.value is not None else 0)
        if self.step < 0:
            return Extent(self.offset - rows.offset - rows.size + 1, rows.size)
        return Extent(self.offset + rows.offset, rows.size)

    def made_of(self, block: torch.Tensor, dim: int, piece: Extent) -> torch.Tensor:
        """Make a rank's part of this copy from its piece of the argument."""
        shape = list(block.shape)
        shape[dim] = self.times
        if self.value is not None:
            return block.new_full(shape, self.value)
        rows = meeting(self.of, piece)
        local_rows = block.narrow(dim, rows.offset - piece.offset if rows.size else 0, rows.size)
        if self.step == 0:
            return local_rows.expand(shape) if rows.size else local_rows
        return local_rows.flip(dim) if self.step < 0 else local_rows


@dataclass(frozen=True, slots=True)
class RowLine:
    """A line of copies; the result is its extent `taken`."""

    copies: tuple[RowCopy, ...]
    taken: Extent


@dataclass(frozen=True, slots=True)
class RowChange:
    """Effect of an operator: the line of each changed dim, and its arguments without some dims."""

    lines: Mapping[int, RowLine]
    without: Callable[[Mapping[int, AxisSharding]], tuple[Any, ...]]
    added: int = 0
    algebra: str = "structural"


def changing_rows(
    change_of: Callable[[Call], RowChange], text: str, algebra: str = "structural"
) -> Row:
    """Make a row for an operator that changes rows."""

    def build(call: Call) -> ShardingRule:
        change = change_of(call)
        shape = call.specs[0].shape
        full = full_operand(shape)
        kept = tuple(() if dim in change.lines else names for dim, names in enumerate(full))
        blocked = [f"d{dim}" for dim in change.lines]
        out = (*((),) * change.added, *kept)
        rule = structural_rule((full,), (out,), factor_sizes(shape), blocked)
        return _exchanging(replace(rule, algebra=change.algebra), call, change)

    return Row(build, text, algebra)


def _exchanging(rule: ShardingRule, call: Call, change: RowChange) -> ShardingRule:
    found: dict[int, Candidate] = {}

    def run(op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
        is_all = shards.keys() == change.lines.keys()
        rest = change.without(shards)
        moves = any(found[dim].exchange.moves for dim in shards)  # pyright: ignore

        def local(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            (made,) = rows([x])
            if is_all and not change.added:
                return made if moves else made.clone()
            return op(made, *rest)

        return local

    for dim, line in change.lines.items():
        axis = sharding_axis(call.specs, dim)
        if axis is not None and line.copies:
            exchange = _exchange(line, call, axis, dim, run)
            placements = (Shard(dim),), (Shard(dim + change.added),)
            found[dim] = Candidate(*placements, exchange=exchange)
    return replace(rule, extra=tuple(found.values()))


def _exchange(line: RowLine, call: Call, axis: int, dim: int, run: Any) -> Exchange:
    ranks = call.specs[0].mesh_shape[axis]
    pieces = chunks(call.specs[0].shape[dim], ranks)

    def parts(blocks: Sequence[torch.Tensor], coord: int) -> list[torch.Tensor]:
        return [copy.made_of(blocks[0], dim, pieces[coord]) for copy in line.copies]

    return Exchange(
        axis,
        dim,
        owned=tuple(tuple(map(copy.extent_from, pieces)) for copy in line.copies),
        wanted=(chunks(line.taken.size, ranks, line.taken.offset),),
        run=run,
        arguments=(0,) * len(line.copies),
        parts=parts,
    )
