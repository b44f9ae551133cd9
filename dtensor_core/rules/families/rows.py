"""Rows reordered, repeated or padded: roll, flip, repeat, padding.

Along each dimension that it changes, such an operator reads rows of its argument shifted, reversed,
at several places, or an edge row many times. All other dimensions are sharded freely; along a
sharded dimension only the rows that change owners are sent (`redistribute.halo_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.operator import Local
from dtensor_core.local.padding import Padded, folding
from dtensor_core.local.windows import extent, meeting
from dtensor_core.placement import Shard
from dtensor_core.redistribute.halo_exchange import Exchange, Rows
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.batched import batched
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.families.view import structural
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Candidate, Rule
from dtensor_core.rules.windows import chunks, cutting_axis, exchanging_rows


@dataclass(frozen=True, slots=True)
class _Copy:
    """Rows `of` the argument on a line: row r is at `offset + step * r`.

    With step 0 it is one row, at `times` positions from `offset` on. Without rows it is all
    `value`.
    """

    offset: int
    of: Extent
    step: int = 1
    times: int = 0
    value: Any = None

    def held(self, piece: Extent) -> Extent:
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
        held = block.narrow(dim, rows.offset - piece.offset if rows.size else 0, rows.size)
        if self.step == 0:
            return held.expand(shape) if rows.size else held
        return held.flip(dim) if self.step < 0 else held


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of copies, of which the result is the extent `taken`."""

    copies: tuple[_Copy, ...]
    taken: Extent


@dataclass(frozen=True, slots=True)
class _Change:
    """Effect of an operator: the line of each changed dim, and its arguments without some dims."""

    lines: Mapping[int, _Line]
    without: Callable[[Mapping[int, Cut]], tuple[Any, ...]]
    added: int = 0
    algebra: str = "structural"


def _changed(change_of: Callable[[Call], _Change], text: str, algebra: str = "structural") -> Row:
    def build(call: Call) -> Rule:
        change = change_of(call)
        shape = call.specs[0].shape
        whole = full_operand(shape)
        kept = tuple(() if dim in change.lines else names for dim, names in enumerate(whole))
        blocked = [f"d{dim}" for dim in change.lines]
        out = (*((),) * change.added, *kept)
        rule = structural(call, (whole,), (out,), factor_sizes(shape), blocked)
        return _exchanging(replace(rule, algebra=change.algebra), call, change)

    return Row(build, text, algebra)


def _exchanging(rule: Rule, call: Call, change: _Change) -> Rule:
    found: dict[int, Candidate] = {}

    def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
        is_all = cuts.keys() == change.lines.keys()
        rest = change.without(cuts)
        moves = any(found[dim].exchange.moves for dim in cuts)  # pyright: ignore

        def local(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            (made,) = rows([x])
            if is_all and not change.added:
                return made if moves else made.clone()
            return op(made, *rest)

        return local

    for dim, line in change.lines.items():
        axis = cutting_axis(call.specs, dim)
        if axis is not None and line.copies:
            exchange = _exchange(line, call, axis, dim, run)
            cut = (Shard(dim),), (Shard(dim + change.added),)
            found[dim] = Candidate(*cut, exchange=exchange)
    return replace(rule, extra=tuple(found.values()))


def _exchange(line: _Line, call: Call, axis: int, dim: int, run: Any) -> Exchange:
    ranks = call.specs[0].mesh_shape[axis]
    pieces = chunks(call.specs[0].shape[dim], ranks)

    def parts(blocks: Sequence[torch.Tensor], coord: int) -> list[torch.Tensor]:
        return [copy.made_of(blocks[0], dim, pieces[coord]) for copy in line.copies]

    return Exchange(
        axis,
        dim,
        held=tuple(tuple(map(copy.held, pieces)) for copy in line.copies),
        wanted=(chunks(line.taken.size, ranks, line.taken.offset),),
        run=run,
        arguments=(0,) * len(line.copies),
        parts=parts,
    )


def _roll(call: Call) -> _Change:
    """Without dims, this rolls the flattened tensor."""
    shape = call.specs[0].shape
    given = call.argument("dims") or range(len(shape))[:1]
    if not call.argument("dims") and len(shape) != 1:
        return _Change(dict.fromkeys(range(len(shape)), _Line((), Extent(0, 0))), lambda _: ())
    shifts: dict[int, int] = {}
    for dim, shift in zip(given, call.argument("shifts"), strict=True):
        shifts[dim % len(shape)] = shifts.get(dim % len(shape), 0) + shift
    lines: dict[int, _Line] = {}
    for dim, shift in shifts.items():
        rows = Extent(0, shape[dim])
        start = -(shift % rows.size) if rows.size else 0
        lines[dim] = _Line((_Copy(-rows.size, rows), _Copy(0, rows)), Extent(start, rows.size))

    def without(cuts: Mapping[int, Cut]) -> tuple[Any, ...]:
        dims = [dim for dim in shifts if dim not in cuts]
        return [shifts[dim] for dim in dims], dims

    return _Change(lines, without)


def _flip(call: Call) -> _Change:
    shape = call.specs[0].shape
    dims = [dim % len(shape) for dim in call.args[1]]
    lines = {
        dim: _Line((_Copy(shape[dim] - 1, Extent(0, shape[dim]), -1),), Extent(0, shape[dim]))
        for dim in dims
    }
    return _Change(lines, lambda cuts: ([dim for dim in dims if dim not in cuts],))


def _repeat(call: Call) -> _Change:
    shape, times = call.specs[0].shape, list(call.args[1])
    added = len(times) - len(shape)
    lines: dict[int, _Line] = {}
    for dim, size in enumerate(shape):
        number = times[added + dim]
        if number != 1:
            copies = tuple(_Copy(size * n, Extent(0, size)) for n in range(number))
            lines[dim] = _Line(copies or (_Copy(0, Extent(0, 0)),), Extent(0, size * number))

    def without(cuts: Mapping[int, Cut]) -> tuple[Any, ...]:
        return ([1 if n - added in cuts else each for n, each in enumerate(times)],)

    return _Change(lines, without, added)


_Edges = Callable[[int, int, int], tuple[_Copy, _Copy]]


def _reflected(size: int, before: int, behind: int) -> tuple[_Copy, _Copy]:
    last = size - 1
    below, above = extent(1, 1 + before), extent(last - behind, last)
    return _Copy(0, below, -1), _Copy(2 * last, above, -1)


def _replicated(size: int, before: int, behind: int) -> tuple[_Copy, _Copy]:
    below = _Copy(-before, Extent(0, 1), 0, max(before, 0))
    return below, _Copy(size, Extent(size - 1, 1), 0, max(behind, 0))


def _padding(call: Call, edges: _Edges, rest: tuple[Any, ...] = ()) -> _Change:
    """Add rows before and behind; a negative number removes rows."""
    shape, pads = call.specs[0].shape, list(call.argument("padding", call.args[1]))
    lines: dict[int, _Line] = {}
    for n in range(len(pads) // 2):
        dim, (before, behind) = len(shape) - 1 - n, pads[2 * n : 2 * n + 2]
        if before or behind:
            size = shape[dim]
            below, above = edges(size, before, behind)
            taken = extent(-before, size + behind)
            lines[dim] = _Line((below, _Copy(0, Extent(0, size)), above), taken)

    def without(cuts: Mapping[int, Cut]) -> tuple[Any, ...]:
        left = [0 if len(shape) - 1 - n // 2 in cuts else pad for n, pad in enumerate(pads)]
        return left, *rest

    return _Change(lines, without)


def _constant_padding(call: Call) -> _Change:
    value = call.argument("value", 0)

    def edges(size: int, before: int, behind: int) -> tuple[_Copy, _Copy]:
        none = Extent(0, 0)
        below = _Copy(-before, none, 0, max(before, 0), value)
        return below, _Copy(size, none, 0, max(behind, 0), value)

    change = _padding(call, edges, (value,))
    return replace(change, algebra="linear" if value == 0 else "opaque")


def _reflection(call: Call) -> _Change:
    return _padding(call, _reflected)


def _replication(call: Call) -> _Change:
    return _padding(call, _replicated)


def _unpadding(own: int, *, mirrors: bool) -> Row:
    """Make a row of the gradient of padding, which adds rows of edges to their origins."""
    base = batched(own, linear=True)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        shape, pads = call.specs[1].shape, call.argument("padding")
        last = len(shape) - 1
        dims = {
            last - n: Padded(shape[last - n], pads[2 * n], pads[2 * n + 1], mirrors)
            for n in range(own)
        }

        def wanted(dim: int, cut: Cut) -> Extent:
            return dims[dim].needs(local_extent(shape[dim], cut.num_shards, cut.coord))

        for dim in dims:
            wants = {0: partial(wanted, dim), 1: lambda cut: Extent(0, 0)}
            run = partial(folding, dims, pads)
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return rule

    return replace(base, build=build, text="rows of a cut dim move")


ROWS = {
    "roll": _changed(_roll, "rows of a cut dim move"),
    "flip": _changed(_flip, "rows of a cut dim move"),
    "repeat": _changed(_repeat, "rows of a cut dim move"),
    "constant_pad_nd": _changed(_constant_padding, "rows of a cut dim move", "linear"),
}
ROWS |= {f"reflection_pad{n}d": _changed(_reflection, "rows of a cut dim move") for n in (1, 2, 3)}
ROWS |= {
    f"replication_pad{n}d": _changed(_replication, "rows of a cut dim move") for n in (1, 2, 3)
}
ROWS |= {
    f"{kind}_pad{n}d_backward": _unpadding(n, mirrors=kind == "reflection")
    for kind in ("reflection", "replication")
    for n in (1, 2, 3)
}
