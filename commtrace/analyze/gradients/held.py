"""Sketches of tensors as ranks hold them: shards and contributions of a known layout are combined.

placement    ranks along its axis
S(dim)       hold a tensor together
P(sum)       likewise: its contributions add up
P(avg)       likewise, divided by the number of ranks
R            hold a tensor each
none known   likewise
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commtrace.analyze.gradients.rows import SketchRow, SketchRows
from commtrace.analyze.values.stated_mesh import StatedMesh, mesh_of

_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_COARSEST = 2.0**-4


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that some ranks hold together.

    Attributes:
        ranks: the ranks.
        sketches: its sketches, [NUM_SKETCHES].
        total: sum of its elements.
        norm: its Euclidean norm; nan for a sum of contributions.
        largest: largest magnitude; nan for a sum of contributions.
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


def held(rows: SketchRows) -> list[Held]:
    """Return the tensors that the ranks of some rows hold, of the same name and time.

    Several rows of a rank add up. A tensor that lacks a rank's part, or whose parts cannot be
    combined, is left out.
    """
    by_layout: dict[tuple[str, str], dict[int, list[SketchRow]]] = {}
    for row in rows:
        by_layout.setdefault((row.mesh, row.placements), {}).setdefault(row.rank, []).append(row)
    found: list[Held] = []
    for (mesh, placements), by_rank in by_layout.items():
        layout = mesh_of(mesh, placements)
        alone = [(rank,) for rank in sorted(by_rank)]
        for ranks in alone if layout is None else layout.together:
            if all(rank in by_rank for rank in ranks):
                tensor = _of_parts([by_rank[rank] for rank in ranks], layout)
                if np.isfinite(tensor.sketches).all() and math.isfinite(tensor.total):
                    found.append(tensor)
    return found


def _of_parts(parts: Sequence[SketchRows], layout: StatedMesh | None) -> Held:
    weight, text = (layout.weight, layout.text) if layout else (1.0, "")
    is_partial = layout is not None and layout.is_partial
    last = [own[-1] for own in parts]
    sketches = np.sum([row.sketches for own in parts for row in own], axis=0)
    return Held(
        frozenset(row.rank for row in last),
        sketches * weight,
        math.fsum(row.total for own in parts for row in own) * weight,
        math.nan if is_partial else math.sqrt(math.fsum(row.norm**2 for row in last)),
        math.nan if is_partial else max(row.largest for row in last),
        max(_ROUNDOFF.get(row.dtype, _COARSEST) for row in last),
        text,
    )
