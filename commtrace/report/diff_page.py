"""Comparison page: an HTML file that shows growth from a baseline, and the runs' flame graphs.

The first run is the baseline. The page needs no network. Its tables come from
`commtrace.analyze.comparisons.growth`. Its flame graphs share a scale, and blocks of later runs are
coloured by their growth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.comparisons.diff import MEASURED, differences_of_runs, in_steps_of_all
from commtrace.analyze.comparisons.growth import Grown, by_kind, by_line, by_module, totals
from commtrace.analyze.comparisons.sentences import bound_ns, sentences
from commtrace.analyze.measures.measures import MEASURE, recorded_ns
from commtrace.atomic_write import atomic_write
from commtrace.figures.flame import NUM_UNKNOWN, flame, flame_nodes
from commtrace.figures.label import layers_folded
from commtrace.figures.theme import DARK, LIGHT, recolouring
from commtrace.report.offline import offline_page
from commtrace.report.style import diff_style
from commtrace.units import counted, text_of_duration

SCRIPTS = ("format.js", "figures.js", "diff.js")

_OF_NODES = {"wire_bytes": "wire_bytes", "calls": "num_calls", "blocked_ns": "blocked_ns"}


def _folded_modules(runs: Sequence[Frames]) -> list[Grown]:
    """Return growth by module; layers whose calls and bytes are alike in all runs are one row."""
    alike: dict[tuple[str, ...], list[Grown]] = {}
    for row in by_module(runs):
        counted_ones = [
            [f"{value:.9g}" for value in row.values[name]] for name in ("calls", "wire_bytes")
        ]
        key = (layers_folded(row.name), row.scope, repr(counted_ones))
        alike.setdefault(key, []).append(row)
    rows = [_together(name, rows) for (name, *_), rows in alike.items()]
    layers = {(row.name, row.scope): row for row in rows if row.name.endswith(".*")}
    kept = [row for row in rows if not _is_alike(row, layers.get((f"{row.name}.*", row.scope)))]
    return sorted(kept, key=lambda row: (-row.growth("wire_bytes"), -row.growth("calls")))


def _is_alike(row: Grown, other: Grown | None) -> bool:
    """Return whether a row has the calls and bytes of another, as the module around all layers."""
    return other is not None and all(
        math.isclose(one, two)
        for name in ("calls", "wire_bytes")
        for one, two in zip(row.values[name], other.values[name], strict=True)
    )


def _together(name: str, rows: list[Grown]) -> Grown:
    """Return the sum of rows as one row."""
    if len(rows) == 1:
        return rows[0]
    values = {
        measure: tuple(map(sum, zip(*(row.values[measure] for row in rows), strict=True)))
        for measure in rows[0].values
    }
    return replace(rows[0], name=name, detail=f"{len(rows)} modules together", values=values)


MEASURES = {name: MEASURE[of_nodes].long_heading for name, of_nodes in _OF_NODES.items()}
"""Measures of tables and flame graphs, and their titles."""

TABLES: dict[str, Callable[[Sequence[Frames]], list[Grown]]] = {
    "module": _folded_modules,
    "kind": by_kind,
    "line": by_line,
}
MAX_ROWS = 2_000
"""Largest number of rows of a table; the rows that grew least are left out."""


def write_diff(runs: Sequence[Frames], path: Path | str, *, labels: Sequence[str] = ()) -> Path:
    """Write the page that compares runs to `path` atomically, and return the path.

    Args:
        runs: The runs; the first is the baseline.
        path: File to write.
        labels: Names of the runs; by default, their file names.

    Raises:
        OutputError: The path cannot be written.
    """
    path = Path(path)
    text = render_diff(runs, labels or labels_of([frames.path for frames in runs]))
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return path


def labels_of(paths: Sequence[Path | None]) -> list[str]:
    """Return distinct names of runs: file names, or full paths if file names are equal."""
    names = [path.name if path else "a run" for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) if path else "a run" for path in paths]
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return labels


def _most_changed(rows: list[Grown]) -> list[Grown]:
    """Return the rows that grew or shrank most, `MAX_ROWS` at most, in their order."""
    if len(rows) <= MAX_ROWS:
        return rows
    changes = [tuple(abs(row.growth(measure)) for measure in MEASURED) for row in rows]
    numbers = sorted(range(len(rows)), key=changes.__getitem__, reverse=True)
    return [rows[number] for number in sorted(numbers[:MAX_ROWS])]


def render_diff(runs: Sequence[Frames], labels: Sequence[str]) -> str:
    """Return the page as HTML."""
    per_step = in_steps_of_all(runs)
    made = {name: table(runs) for name, table in TABLES.items()}
    data = {
        "labels": list(labels),
        "measures": {name: {"title": MEASURES[name], "unit": MEASURED[name]} for name in MEASURES},
        "totals": [_row(row) for row in totals(runs)],
        "tables": {name: [_row(row) for row in _most_changed(rows)] for name, rows in made.items()},
        # By run, the largest change of the blocked time that may be noise.
        "noise": [
            0.0 if math.isnan(noise) else noise
            for noise in (0.0, *(bound_ns(runs[0], each, "blocked_ns") for each in runs[1:]))
        ],
        "flames": _flames(runs, per_step),
        "dark": recolouring(LIGHT, DARK),
        "growth": {
            "grew": LIGHT.uses["exposed"],
            "shrank": LIGHT.uses["overlapped"],
            "same": LIGHT.modules[0],
        },
    }
    return offline_page(
        "diff.html",
        style=diff_style(),
        scripts=SCRIPTS,
        data=data,
        title=f"{labels[1] if len(runs) == 2 else counted(len(runs) - 1, 'run')} "
        f"compared with {labels[0]}",
        runs=[about_run(frames, label) for frames, label in zip(runs, labels, strict=True)],
        verdicts=[
            (label, sentences(runs[0], frames))
            for label, frames in zip(labels[1:], runs[1:], strict=True)
        ],
        notes=differences_of_runs(*runs),
        measures=MEASURES,
        tables=list(TABLES),
        left_out={name: max(len(rows) - MAX_ROWS, 0) for name, rows in made.items()},
        per_step=per_step,
    )


def _row(row: Grown) -> dict[str, Any]:
    # JSON has no nan.
    values = {
        measure: [None if value != value else value for value in row.values[measure]]
        for measure in MEASURES
    }
    return {"name": row.name, "detail": row.detail, "scope": row.scope, "values": values}


def about_run(frames: Frames, label: str) -> dict[str, str]:
    """Describe a run: its program, numbers of ranks and steps, duration, version of torch."""
    lasted = recorded_ns(frames)
    facts = [
        counted(frames.num_ranks, "rank"),
        counted(int(frames.steps["step"].nunique()), "step"),
        text_of_duration(float(lasted.max())) if len(lasted) else "",
        f"torch {frames.run['torch']}" if frames.run.get("torch") else "",
    ]
    return {
        "label": label,
        "command": str(frames.run.get("command") or ""),
        "facts": ", ".join(filter(None, facts)),
    }


def _flames(runs: Sequence[Frames], per_step: bool) -> list[dict[str, Any]]:
    """Return each run's flame graph, its values per rank, and the baseline's matching nodes."""
    nodes = [flame_nodes(frames) for frames in runs]
    first = {place: number for number, place in enumerate(_places(nodes[0]))}
    return [
        {
            "figure": flame(frames).to_plotly_json(),
            "values": _values(frames, table, per_step),
            "parts": _known_parts(table),
            "baseline": [first.get(place, -1) for place in _places(table)],
        }
        for frames, table in zip(runs, nodes, strict=True)
    ]


def _places(nodes: pd.DataFrame) -> list[tuple[tuple[str, str], ...]]:
    """Return the path of each node from the root."""
    ways: dict[int, tuple[tuple[str, str], ...]] = {-1: ()}
    columns = (nodes[name] for name in ("id", "parent", "role", "name"))
    for number, parent, role, name in zip(*columns, strict=True):
        ways[number] = (*ways[parent], (role, name))
    return [ways[number] for number in nodes["id"]]


def _values(frames: Frames, nodes: pd.DataFrame, per_step: bool) -> dict[str, list[float]]:
    steps = max(int(frames.steps["step"].nunique()), 1) if per_step else 1
    share = 1 / (max(frames.num_ranks, 1) * steps)
    return {name: (nodes[column] * share).tolist() for name, column in _OF_NODES.items()}


def _known_parts(nodes: pd.DataFrame) -> dict[str, list[float]]:
    """Return the fraction of each node's calls that each measure covers.

    Only values that cover equal fractions are compared.
    """
    parts = {
        name: 1 - nodes[NUM_UNKNOWN[column]] / nodes["num_calls"].clip(lower=1)
        for name, column in _OF_NODES.items()
        if column in NUM_UNKNOWN
    }
    return {name: values.tolist() for name, values in parts.items()}
