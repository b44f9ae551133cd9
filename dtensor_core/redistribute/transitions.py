"""Table of transitions: the step that takes a tensor from one placement to another.

Each row names the `Step` kind and the payload bytes that it moves. A pair without a row has no
direct step and is planned through others. A step acts on one mesh axis, or on several that a
group joins if all of them take the same row. Backward: the gradient of a transition goes the other
way with Partial read as Replicate, since every partial value receives the full gradient.

    source  target  step            payload per rank        communicates
    R       S       slice           0                       no
    R       P       to_partial      0                       no
    S       R       all_gather      n * longest piece       yes
    P       R       all_reduce      full tensor             yes
    P       S       reduce_scatter  n * longest piece       yes
    S       S'      all_to_all      local tensor            yes
    P(sum)  P(avg)  rescale         0                       no, and the same back

S is a shard of any kind, strided or not. Invariant: a step neither reads nor produces data outside
of its group. That holds if the axes that the step leaves alone select the same part of every
dimension before and after (`is_closed`). Read by `cost` (bytes), `plan` (legality) and `execute`
(step).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from dtensor_core import layout
from dtensor_core.placement import (
    Partial,
    Placement,
    Replicate,
)
from dtensor_core.redistribute.reduction_values import sent_itemsize


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: the step's kind, and whether it communicates."""

    kind: str
    communicates: bool


_ROWS: dict[tuple[str, str], Transition] = {
    ("R", "S"): Transition("slice", False),
    ("R", "P"): Transition("to_partial", False),
    ("S", "R"): Transition("all_gather", True),
    ("P", "R"): Transition("all_reduce", True),
    ("P", "S"): Transition("reduce_scatter", True),
    ("S", "S"): Transition("all_to_all", True),
    ("P", "P"): Transition("rescale", False),
}
# Reductions that differ only by a factor.
_SCALED = frozenset(("sum", "avg"))
# Limit on the coordinates `is_closed` compares where it can't reason; beyond it, it returns False.
_COMPARED = 512


def transition(source: Placement, target: Placement) -> Transition | None:
    """Return the row for a pair of different placements, or None if no single step does it."""
    if isinstance(source, Partial) and isinstance(target, Partial):
        return _ROWS["P", "P"] if {source.reduce_op, target.reduce_op} <= _SCALED else None
    return _ROWS.get((source.letter, target.letter))


def gradient_placement(placement: Placement) -> Placement:
    """Return the placement of the gradient of a tensor so placed: Partial becomes Replicate."""
    return Replicate() if isinstance(placement, Partial) else placement


@dataclass(frozen=True, slots=True)
class Step:
    """A transition within a plan, on one axis or several joined axes.

    Attributes:
        kind: The step kind, a key of `STEPS`.
        axes: The axes it acts on; `source` and `target` differ on these only.
        source: All placements before.
        target: All placements after.
        communicates: True if it sends anything.
    """

    kind: str
    axes: tuple[int, ...]
    source: tuple[Placement, ...]
    target: tuple[Placement, ...]
    communicates: bool

    @property
    def axis(self) -> int:
        """The axis that the step acts on; the first of several."""
        return self.axes[0]

    def payload_bytes(
        self, shape: Sequence[int], itemsize: int, mesh_shape: Sequence[int], coords: Sequence[int]
    ) -> int:
        """Return the payload of this step at `coords` in bytes, as the recorder counts it.

        For an all-gather this is the output, for a reduce-scatter the input, for others the local
        tensor. Pieces that are sent padded count padded.
        """
        if not self.communicates:
            return 0
        if self.kind in ("all_reduce", "all_to_all"):
            return math.prod(layout.local_shape(shape, self.source, mesh_shape, coords)) * itemsize
        sharded = self.target if self.kind == "reduce_scatter" else self.source
        ranks = math.prod(mesh_shape[axis] for axis in self.axes)
        return self.longest(shape, sharded, mesh_shape, coords) * ranks * itemsize

    def sent_itemsize(self, dtype: torch.dtype) -> int:
        """Return the bytes per element of a dtype as this step sends it."""
        awaited = self.source[self.axis]
        if isinstance(awaited, Partial) and self.communicates:
            return sent_itemsize(awaited.reduce_op, dtype)
        return dtype.itemsize

    def longest(
        self,
        shape: Sequence[int],
        placements: Sequence[Placement],
        mesh_shape: Sequence[int],
        coords: Sequence[int],
    ) -> int:
        """Return the largest number of elements of a rank in the group of `coords`, in a layout.

        Coordinate 0 holds it, unless a shard is strided.
        """
        strided = any(each.num_blocks != 1 for each in placements)
        if not strided:
            first = [0 if axis in self.axes else coord for axis, coord in enumerate(coords)]
            return math.prod(layout.local_shape(shape, placements, mesh_shape, first))
        numel = 1
        for dim, size in enumerate(shape):
            sharding = [axis for axis in self.axes if placements[axis].sharded_dim == dim]
            numel *= max(
                layout.held_size(
                    size,
                    layout.shardings_of(placements, mesh_shape, _at(coords, sharding, there), dim),
                )
                for there in itertools.product(*(range(mesh_shape[axis]) for axis in sharding))
            )
        return numel


def _at(coords: Sequence[int], axes: Sequence[int], there: Sequence[int]) -> list[int]:
    moved = list(coords)
    for axis, coord in zip(axes, there, strict=True):
        moved[axis] = coord
    return moved


def step_between(
    source: tuple[Placement, ...],
    target: tuple[Placement, ...],
    axes: tuple[int, ...],
    shape: Sequence[int],
    mesh_shape: Sequence[int],
) -> Step | None:
    """Return the single step between two layouts that differ on some axes only, or None.

    Joined axes take the same row; an axis that keeps its shard joins an all-to-all. Local steps are
    taken axis by axis.
    """
    rows = {_joined_row(source[axis], target[axis]) for axis in axes}
    row = rows.pop()
    if rows or row is None:
        return None
    if len(axes) > 1 and not (row.communicates and commute(source[axis] for axis in axes)):
        return None
    if not closed(source, target, axes, shape, mesh_shape):
        return None
    return Step(row.kind, axes, source, target, row.communicates)


def _joined_row(source: Placement, target: Placement) -> Transition | None:
    if source is target and source.letter != "S":
        return None
    return transition(source, target)


def commute(placements: Iterable[Placement]) -> bool:
    """True unless the placements have partial values of reductions that do not commute."""
    reductions = {each.reduce_op for each in placements if isinstance(each, Partial)}
    return len(reductions) < 2 or reductions <= _SCALED


# A sharding of a dimension as `is_closed` sees it: ranks, blocks, and whether its axis takes the
# step.
_AxisBlocks = tuple[int, int, bool]


def closed(
    source: Sequence[Placement],
    target: Sequence[Placement],
    axes: Sequence[int],
    shape: Sequence[int],
    mesh_shape: Sequence[int],
) -> bool:
    """True if a step on `axes` between two layouts needs no data from outside of its group."""
    dims = {placements[axis].sharded_dim for placements in (source, target) for axis in axes}
    return all(
        is_closed(
            shape[dim],
            _shards(source, dim, axes, mesh_shape),
            _shards(target, dim, axes, mesh_shape),
        )
        for dim in dims
        if dim is not None
    )


def _shards(
    placements: Sequence[Placement], dim: int, axes: Sequence[int], mesh_shape: Sequence[int]
) -> tuple[_AxisBlocks, ...]:
    return tuple(
        (mesh_shape[axis], placement.num_blocks, axis in axes)
        for axis, placement in enumerate(placements)
        if mesh_shape[axis] > 1 and placement.sharded_dim == dim
    )


@lru_cache(maxsize=16384)
def is_closed(size: int, before: tuple[_AxisBlocks, ...], after: tuple[_AxisBlocks, ...]) -> bool:
    """True if the axes outside of a step select the same part of a dimension before and after it.

    They do if they come first. If all sizes divide evenly, each axis owns digits of the index,
    which must stay the same. Otherwise the held extents are compared.
    """
    if size == 0 or (_outside_first(before) and _outside_first(after)):
        return True
    digits = _digits(size, before), _digits(size, after)
    if digits[0] is not None and digits[1] is not None:
        return digits[0] == digits[1]
    outside = [each[0] for each in before if not each[2]]
    if math.prod(each[0] for each in before) + math.prod(each[0] for each in after) > _COMPARED:
        return False
    return all(
        _held(size, before, there) == _held(size, after, there)
        for there in itertools.product(*(range(ranks) for ranks in outside))
    )


def _outside_first(shardings: Sequence[_AxisBlocks]) -> bool:
    inside = [each[2] for each in shardings]
    return inside == sorted(inside)


def _digits(size: int, shardings: Sequence[_AxisBlocks]) -> list[tuple[int, int]] | None:
    """Return the digits (place value, base) of the index that outside axes own; None if uneven.

    An index of a dimension of 24, sharded over 2 and then 3 ranks, has the digits 2, 3 and 4, of
    place values 12, 4 and 1; the axes own the first two.
    """
    free, owned = [(1, size)], []
    for ranks, blocks, inside in shardings:
        split = _split(free, blocks)
        rest = None if split is None else _split(split[1], ranks)
        if split is None or rest is None:
            return None
        free = [*split[0], *rest[1]]
        if not inside:
            owned += rest[0]
    return owned


def _split(digits: Sequence[tuple[int, int]], count: int):
    """Split digits so that the first part counts to `count`; None if that is impossible."""
    first: list[tuple[int, int]] = []
    rest = list(digits)
    while count > 1:
        if not rest:
            return None
        place, base = rest.pop(0)
        if base and count % base == 0:
            first.append((place, base))
            count //= base
        elif base % count == 0:
            first.append((place * (base // count), count))
            rest.insert(0, (place, base // count))
            count = 1
        else:
            return None
    return first, [digit for digit in rest if digit[1] != 1]


def _held(
    size: int, shardings: Sequence[_AxisBlocks], outside: Sequence[int]
) -> list[layout.Extent]:
    """Return the extents that a group holds of a dimension, at outside coordinates `outside`."""
    held: set[layout.Extent] = set()
    for there in itertools.product(*(range(ranks) for ranks, _, within in shardings if within)):
        mine, theirs = iter(there), iter(outside)
        made = [
            layout.AxisSharding(ranks, next(mine if within else theirs), blocks)
            for ranks, blocks, within in shardings
        ]
        held.update(layout.held_extents(size, made))
    return layout.united(held)
