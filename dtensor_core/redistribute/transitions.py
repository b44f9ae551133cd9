"""THE table of transitions: what takes a tensor from one placement to another on one mesh axis.

Each row says which `Step` kind does it and how many payload bytes that moves; a pair without a
row has no direct step and is planned through others. Backward: the gradient of a transition goes
the other way with Partial read as Replicate, since every addend receives the whole gradient.

    source  target  step            payload per rank        communicates
    R       S       slice           0                       no
    R       P       one_addend      0                       no
    S       R       all_gather      n * chunk               yes
    P       R       all_reduce      whole                   yes
    P       S       reduce_scatter  n * chunk               yes
    S(i)    S(j)    all_to_all      what the rank holds     yes

`chunk` is the padded local piece. Strided shards use the rows of S, except that they have no
all_to_all. Read by `cost` (bytes), `plan` (legality) and `execute` (step).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dtensor_core import layout
from dtensor_core.placement import Partial, Placement, Replicate, Shard, sharded_dim, split_factor
from dtensor_core.redistribute.pieces import piece_sizes


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: the step's kind, and whether it sends anything."""

    kind: str
    communicates: bool


_ROWS: dict[tuple[str, str], Transition] = {
    ("R", "S"): Transition("slice", False),
    ("R", "P"): Transition("one_addend", False),
    ("S", "R"): Transition("all_gather", True),
    ("P", "R"): Transition("all_reduce", True),
    ("P", "S"): Transition("reduce_scatter", True),
    ("S", "S"): Transition("all_to_all", True),
}


def _letter(placement: Placement) -> str:
    if sharded_dim(placement) is not None:
        return "S"
    return "P" if placement.is_partial() else "R"


def transition(source: Placement, target: Placement) -> Transition | None:
    """The row for a pair of different placements, or None if no single step does it."""
    row = _ROWS.get((_letter(source), _letter(target)))
    if row is not None and row.kind == "all_to_all":
        plain = isinstance(source, Shard) and isinstance(target, Shard)
        return row if plain else None
    return row


def gradient_placement(placement: Placement) -> Placement:
    """The placement that the gradient of a tensor so placed has: Partial becomes Replicate."""
    return Replicate() if isinstance(placement, Partial) else placement


@dataclass(frozen=True, slots=True)
class Step:
    """One transition on one axis, within a plan.

    `source` and `target` are all the placements before and after; they differ on `axis` only.
    """

    kind: str
    axis: int
    source: tuple[Placement, ...]
    target: tuple[Placement, ...]
    communicates: bool

    def payload_bytes(
        self, shape: Sequence[int], itemsize: int, mesh_shape: Sequence[int], coords: Sequence[int]
    ) -> int:
        """Payload of this step for the rank at `coords`, in bytes; the recorder counts the same.

        Of an all-gather that is the output, of a reduce-scatter the input, of the others the
        local tensor; pieces that are sent padded count padded.
        """
        if not self.communicates:
            return 0
        before = layout.local_shape(shape, self.source, mesh_shape, coords)
        if self.kind in ("all_reduce", "all_to_all"):
            return math.prod(before) * itemsize
        whole = before if self.kind == "reduce_scatter" else None
        placement = (self.target if self.kind == "reduce_scatter" else self.source)[self.axis]
        dim = sharded_dim(placement)
        assert dim is not None
        if whole is None:
            whole = layout.local_shape(shape, self.target, mesh_shape, coords)
        ranks = mesh_shape[self.axis]
        padded = piece_sizes(whole[dim], ranks, split_factor(placement))[0]
        return math.prod(whole[:dim] + whole[dim + 1 :]) * padded * ranks * itemsize
