"""Sketches of tensors as ranks hold them: shards and addends of a known layout are combined.

placement    ranks along its axis
S(dim)       hold one tensor together
P(sum)       likewise: its addends add up
P(avg)       likewise, divided by the number of ranks
R            hold a tensor each
none known   likewise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import SKETCHES

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_COARSEST = 2.0**-4


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that some ranks hold together.

    Attributes:
        ranks: the ranks.
        sketches: its sketches, [NUM_SKETCHES].
        total: sum of its elements.
        norm: its Euclidean norm; nan of a sum of addends.
        largest: largest magnitude; nan of a sum of addends.
        roundoff: unit roundoff of its dtype.
        layout: placements by mesh axis; empty if unknown.
    """

    ranks: frozenset[int]
    sketches: np.ndarray
    total: float
    norm: float
    largest: float
    roundoff: float
    layout: str

    @property
    def is_partial(self) -> bool:
        """True of a sum of addends."""
        return "P(" in self.layout


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh and placements of a row of table `fingerprints`."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: np.ndarray
    placements: tuple[str, ...]


def mesh_of(mesh: str, placements: str) -> Mesh | None:
    """Return the mesh of a row; None if its layout is unknown or damaged."""
    axes, _, members = mesh.partition(":")
    names, sizes = [], []
    for axis in axes.split(",") if axes else ():
        name, _, size = axis.rpartition("=")
        if not (size.isascii() and size.isdigit() and 0 < int(size) < 1 << 20):
            return None
        names.append(name)
        sizes.append(int(size))
    ranks = [int(each) for each in members.split(",") if each.isascii() and each.isdigit()]
    letters = placements.split(",") if placements else []
    if not sizes or len(letters) != len(sizes) or len(ranks) != np.prod(sizes):
        return None
    return Mesh(tuple(names), tuple(sizes), np.array(ranks).reshape(sizes), tuple(letters))


def held(rows: pd.DataFrame) -> list[Held]:
    """Return the tensors that the ranks of some rows hold, of one name at one time.

    Several rows of one rank add up. A tensor of which a rank's part is missing, or whose addends
    cannot be combined, is left out.
    """
    found: list[Held] = []
    for (mesh, placements), own in rows.groupby(["mesh", "placements"], sort=False):
        by_rank = own.groupby("rank")[[*SKETCHES, "total"]].sum(min_count=1)
        other = own.groupby("rank")[["norm", "largest", "dtype"]].last()
        layout = mesh_of(str(mesh), str(placements))
        for ranks, weight in _together(layout, sorted(by_rank.index)):
            if not set(ranks) <= set(by_rank.index):
                continue
            sums = by_rank.loc[list(ranks)].sum(skipna=False).to_numpy() * weight
            if not np.isfinite(sums).all():
                continue
            parts = other.loc[list(ranks)]
            text = (
                " ".join(f"{name}:{letter}" for name, letter in zip(
                    layout.names, layout.placements, strict=True)) if layout else ""
            )  # fmt: skip
            is_partial = "P(" in text
            norm = float(np.sqrt((parts["norm"] ** 2).sum(skipna=False)))
            found.append(
                Held(
                    frozenset(ranks), sums[: len(SKETCHES)], float(sums[-1]),
                    float("nan") if is_partial else norm,
                    float("nan") if is_partial else float(parts["largest"].max()),
                    max(_ROUNDOFF.get(each, _COARSEST) for each in parts["dtype"]), text,
                )
            )  # fmt: skip
    return found


def _together(mesh: Mesh | None, ranks: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
    """Return which ranks hold a tensor together, and the weight of each one's part."""
    if mesh is None:
        return [((rank,), 1.0) for rank in ranks]
    weight, kept = 1.0, []
    for axis, (letter, size) in enumerate(zip(mesh.placements, mesh.sizes, strict=True)):
        if letter == "R":
            kept.append(axis)
        elif letter.startswith("P"):
            weight *= {"P(sum)": 1.0, "P(avg)": 1.0 / size}.get(letter, float("nan"))
    others = [axis for axis in range(len(mesh.sizes)) if axis not in kept]
    sets = mesh.ranks.transpose(*kept, *others).reshape(
        int(np.prod([mesh.sizes[axis] for axis in kept], dtype=int)), -1
    )
    return [(tuple(each), weight) for each in sets.tolist()]
