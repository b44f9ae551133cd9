"""Second computation of the tables of tensors, fingerprint by fingerprint."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from commtrace.schema import NUM_SKETCHES
from tests.commtrace.analyze.second.run import Run

Row = dict[str, Any]

SKETCHES = [f"sketch_{number}" for number in range(NUM_SKETCHES)]
FACTS = [*SKETCHES, "total", "norm", "largest", "num_nan", "num_inf"]
_SOURCE = ("source_file", "source_line", "source_function")
_KEY = ("step", "phase", "role", "module", "module_call", "name", "op")


def _facts(row: Any) -> list[float]:
    return [getattr(row, name) for name in FACTS]


def _grouped(run: Run) -> list[tuple[tuple[Any, ...], int, str, list[Any]]]:
    """Key with the number among those alike, rank or -1, layout, and the rows of each tensor."""
    seen: Counter[Any] = Counter()
    sharing: dict[Any, list[Any]] = {}
    for row in sorted(run.fingerprints, key=lambda row: (row.rank, row.id)):
        key = tuple(getattr(row, name) for name in _KEY)
        key += (seen[row.rank, key],)
        seen[row.rank, key[:-1]] += 1
        sharing.setdefault((key, row.shape, row.mesh, row.placements), []).append(row)
    ranks = {row.rank for row in run.fingerprints}
    found = []
    for (key, _, mesh, placements), rows in sharing.items():
        if placements:
            axis = mesh.partition("=")[0]
            found.append((key, -1, f"{axis}:{placements}", rows))
        elif (
            len(ranks) > 1
            and len(rows) == len(ranks)
            and len({*map(tuple, map(_facts, rows))}) == 1
        ):
            found.append((key, -1, "equal on all ranks", rows))
        else:
            layout = "on one rank" if len(ranks) == 1 else ""
            found += [(key, row.rank, layout, [row]) for row in rows]
    return found


def tensors(run: Run) -> list[Row]:
    """One row for each tensor."""
    found = []
    grouped = _grouped(run)
    firsts = sorted(min(rows, key=lambda row: row.rank).at_ns for *_, rows in grouped)
    for key, rank, layout, rows in grouped:
        first = min(rows, key=lambda row: row.rank)
        letter = first.placements
        num_members = int(first.mesh.split("=")[1].split(":")[0]) if first.mesh else len(rows)
        is_sharded = letter.startswith(("S", "P"))
        counted = rows if is_sharded else [row for row in rows if _is_first(row, letter)]
        is_known = len(rows) == num_members if is_sharded else bool(counted)
        factor = {"P(avg)": 1 / num_members, "P(max)": math.nan}.get(letter, 1.0)
        differing = [] if is_sharded else [row.rank for row in rows if _facts(row) != _facts(first)]
        values = dict.fromkeys(FACTS, math.nan) | {"num_nan": -1, "num_inf": -1}
        if is_known and not math.isnan(factor):
            for name in (*SKETCHES, "total"):
                values[name] = sum(getattr(row, name) for row in counted) * factor
            if not letter.startswith("P"):
                values["norm"] = math.sqrt(sum(row.norm**2 for row in counted))
                values["largest"] = max(row.largest for row in counted)
                values["num_nan"] = sum(row.num_nan for row in counted)
                values["num_inf"] = sum(row.num_inf for row in counted)
        found.append(
            dict(zip((*_KEY, "occurrence"), key, strict=True))
            | {
                name: getattr(first, name)
                for name in (*_SOURCE, "module_class", "dtype", "shape")
            }
            | {
                "layout": layout,
                "rank": rank,
                "num_ranks": len(rows),
                "num_differing": len(differing),
                "first_differing": min(differing, default=-1),
                "order": firsts.index(first.at_ns),
                "rows": rows,
                "differing": differing,
            }
            | values
        )  # fmt: skip
    return found


def _is_first(row: Any, letter: str) -> bool:
    """Return whether a row counts among its replicas: the first rank's of the mesh does."""
    return letter != "R" or str(row.rank) == row.mesh.partition(":")[2].split(",")[0]


def replicas(run: Run) -> list[Row]:
    """One row for each tensor whose replicas differ."""
    found = []
    for row in tensors(run):
        if row["num_differing"]:
            first = min(row["rows"], key=lambda each: each.rank)
            apart = [
                math.dist([getattr(each, name) for name in SKETCHES],
                          [getattr(first, name) for name in SKETCHES])
                / math.sqrt(NUM_SKETCHES) / first.norm
                for each in row["rows"]
                if each.rank in row["differing"]
            ]  # fmt: skip
            ranks = ",".join(map(str, sorted(row["differing"])))
            found.append(row | {"ranks": ranks, "difference": max(apart)})
    return found
