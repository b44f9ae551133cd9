"""Second computation of table `gradients`, of runs without the ranks' own gradients."""

from __future__ import annotations

import math
from typing import Any

from commtrace.schema import NUM_SKETCHES
from tests.commtrace.analyze.second.run import Run

_SKETCHES = [f"sketch_{number}" for number in range(NUM_SKETCHES)]
_ROUNDOFF = 8 * 2.0**-24


def unreduced(run: Run) -> list[dict[str, Any]]:
    """A row for each set of ranks that hold an equal gradient: which sums they are is unknown."""
    firsts: dict[tuple[str, int], Any] = {}
    for row in sorted(run.fingerprints, key=lambda row: (row.rank, row.id)):
        if row.role == "gradient":
            firsts.setdefault((row.name, row.rank), row)
    found = []
    for name in dict.fromkeys(name for name, _ in firsts):
        own = [row for (of, _), row in firsts.items() if of == name]
        held: list[tuple[list[Any], list[float]]] = []
        for rows, sketches in _held(own):
            alike = next((each for each in held if _are_equal(each[1], sketches)), None)
            if alike is not None:
                alike[0].extend(rows)
            else:
                held.append((list(rows), sketches))
        found += [_row(name, rows, own) for rows, _ in held]
    return found


def _held(rows: list[Any]) -> list[tuple[list[Any], list[float]]]:
    """Rows that hold a tensor together, with its sketches."""
    found = []
    for layout in dict.fromkeys((row.mesh, row.placements) for row in rows):
        own = [row for row in rows if (row.mesh, row.placements) == layout]
        mesh, letter = layout
        if letter in ("", "R"):
            found += [([row], [getattr(row, each) for each in _SKETCHES]) for row in own]
            continue
        size = int(mesh.partition("=")[2].partition(":")[0])
        if letter != "P(max)" and len(own) == size:
            weight = 1 / size if letter == "P(avg)" else 1.0
            sums = [sum(getattr(row, each) for row in own) * weight for each in _SKETCHES]
            found.append((own, sums))
    return sorted(found, key=lambda each: min(row.rank for row in each[0]))


def _are_equal(one: list[float], other: list[float]) -> bool:
    size = max(math.hypot(*one), math.hypot(*other))
    return math.dist(one, other) <= _ROUNDOFF * size


def _row(name: str, rows: list[Any], own: list[Any]) -> dict[str, Any]:
    ranks = {row.rank for row in rows}
    first = min((row for row in own if row.rank in ranks), key=lambda row: row.rank)
    return {
        "step": first.step,
        "what": "gradient",
        "name": name,
        "module": first.module,
        "shape": first.shape,
        "dtype": first.dtype,
        "ranks": ",".join(map(str, sorted(ranks))),
        "replicated_on": "",
        "num_contributions": -1,
        "num_reduced": -1,
        "num_losses": -1,
        "reduced_over": "",
        "scale": math.nan,
        "expected_scale": math.nan,
        "state": "unknown",
        "is_fault": False,
        "calls": "",
        "source": "",
        "at_ns": first.at_ns,
    }
