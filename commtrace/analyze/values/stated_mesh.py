"""Mesh and placements that a row of table `fingerprints` states, as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np


@dataclass(frozen=True)
class StatedMesh:
    """Mesh and placements of a row of table `fingerprints`.

    Attributes:
        names: names of the axes.
        ranks: the ranks, in the shape of the mesh.
        placements: placement on each axis.
    """

    names: tuple[str, ...]
    ranks: np.ndarray
    placements: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """Placements by axis, `dp:R tp:S(1)`."""
        pairs = zip(self.names, self.placements, strict=True)
        return " ".join(f"{name}:{placement}" for name, placement in pairs)

    @cached_property
    def weight(self) -> float:
        """Factor of each part in the tensor; nan if its parts cannot be combined."""
        weight = 1.0
        for placement, size in zip(self.placements, self.ranks.shape, strict=True):
            if placement.startswith("P") and size > 1:
                weight *= {"P(sum)": 1.0, "P(avg)": 1.0 / size}.get(placement, math.nan)
        return weight

    @cached_property
    def is_partial(self) -> bool:
        """True if several ranks hold summands of each element."""
        pairs = zip(self.placements, self.ranks.shape, strict=True)
        return any(placement.startswith("P") and size > 1 for placement, size in pairs)

    @cached_property
    def together(self) -> list[tuple[int, ...]]:
        """Sets of ranks that hold a tensor together."""
        kept = [axis for axis, each in enumerate(self.placements) if each == "R"]
        others = [axis for axis in range(self.ranks.ndim) if axis not in kept]
        num_sets = math.prod(self.ranks.shape[axis] for axis in kept)
        sets = self.ranks.transpose(*kept, *others).reshape(num_sets, -1)
        return [tuple(each) for each in sets.tolist()]


@lru_cache(maxsize=1 << 12)
def mesh_of(mesh: str, placements: str) -> StatedMesh | None:
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
    if not sizes or len(letters) != len(sizes) or len(ranks) != math.prod(sizes):
        return None
    return StatedMesh(tuple(names), np.array(ranks).reshape(sizes), tuple(letters))
