"""Page of a comparison of values: an HTML file that names the first wrong tensor of a run.

It has the verdict with its evidence, a heat map of divergence by module and step, a line along the
program, and tables of a module's tensors. Its size is bounded: for a long run the map joins steps
and modules, and the tables have the tensors that are furthest off in each cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.values import (
    Fault,
    ValueComparison,
    agreement,
    layout_of,
    limits,
    name_of,
    title,
)
from commtrace.analyze.values.divergence import Divergence, divergence
from commtrace.atomic_write import atomic_write
from commtrace.figures.divergence import (
    column_name,
    divergence_line,
    divergence_map,
    excess_text,
    row_name,
)
from commtrace.figures.theme import DARK, LIGHT, recolouring
from commtrace.report.diff_page import about_run, labels_of
from commtrace.report.offline import offline_page
from commtrace.report.style import values_style
from commtrace.units import counted

SCRIPTS = ("format.js", "figures.js", "values.js")
MOST_TENSORS = 12_000
"""Largest number of tensors in the tables of a page."""

AGREES, WRONG, DOUBTFUL, UNKNOWN = "agrees", "wrong", "wrong if replicas", "not comparable"
VERDICTS = (AGREES, WRONG, DOUBTFUL, UNKNOWN)


def write_comparison(
    comparison: ValueComparison,
    left: Frames,
    right: Frames,
    path: Path | str,
    *,
    labels: Sequence[str] = (),
) -> Path:
    """Write the page of a comparison of values to `path` atomically, and return the path.

    Args:
        comparison: The comparison.
        left: The run that is taken for right.
        right: The other run.
        path: File to write.
        labels: Names of both runs; by default, their file names.

    Raises:
        OutputError: The path cannot be written.
    """
    path = Path(path)
    text = render_comparison(comparison, left, right, labels or labels_of([left.path, right.path]))
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    return path


def render_comparison(
    comparison: ValueComparison, left: Frames, right: Frames, labels: Sequence[str]
) -> str:
    """Return the page as HTML."""
    found = divergence(comparison, left)
    fault = comparison.fault
    tensors = _tensors(comparison, found)
    data = {
        "map": divergence_map(comparison, found).to_plotly_json(),
        "line": divergence_line(comparison).to_plotly_json(),
        "rows": [f"{row_name(row)} ({row.phase})" for row in found.rows],
        "columns": [column_name(column) for column in found.columns],
        "cells": found.cells[["row", "column"]].to_numpy().tolist(),
        "tensors": tensors,
        "dark": recolouring(LIGHT, DARK),
    }
    return offline_page(
        "values.html",
        style=values_style(),
        scripts=SCRIPTS,
        data=data,
        title=f"Values of {labels[1]} compared with {labels[0]}",
        labels=labels,
        runs=[about_run(run, label) for run, label in zip((left, right), labels, strict=True)],
        verdict=agreement(comparison) if fault is None else title(fault, labels[1]),
        fault=fault,
        sides=_sides(fault),
        facts=_facts(fault),
        calls=[_call(call) for call in fault.communication] if fault is not None else [],
        limits=limits(comparison),
        num_wrong=comparison.num_wrong,
        bounds=_bounds(comparison, found, len(tensors["cell"])),
    )


def _sides(fault: Fault | None) -> list[tuple[str, str, str]]:
    """Return the properties in which the right and the wrong tensor can differ."""
    if fault is None:
        return []
    left, right = fault.left, fault.right
    lines = [("layout", layout_of(left), layout_of(right))]
    lines += [(name, str(left[name]), str(right[name])) for name in ("dtype", "shape")]
    lines.append(("norm", f"{left['norm']:.6g}", f"{right['norm']:.6g}"))
    for name, word in (("num_nan", "nan elements"), ("num_inf", "infinite elements")):
        if left[name] > 0 or right[name] > 0:
            lines.append((word, _count(left[name]), _count(right[name])))
    return lines


def _count(number: int) -> str:
    return "not known" if number < 0 else f"{number:,}"


def _facts(fault: Fault | None) -> list[tuple[str, str]]:
    if fault is None:
        return []
    wrong = fault.right
    excess = math.nan if not fault.tolerance else fault.distance / fault.tolerance
    of_norm = f"{fault.distance:.2g} of the norm, of which rounding explains {fault.tolerance:.2g}"
    times = "" if math.isnan(excess) else f"{_times(excess)} what rounding explains: "
    facts = [
        ("where", f"step {wrong['step']}, {wrong['phase']}"),
        ("distance", f"{times}{of_norm}"),
    ]
    if wrong["source_file"]:
        facts.append(("line", f"{wrong['source_file']}:{wrong['source_line']}"))
    if fault.reduction:
        facts.append(("reduction", fault.reduction))
    before = "none" if fault.before is None else name_of(fault.before)
    return [*facts, ("last tensor that agrees", before)]


def _call(call: Mapping[str, Any]) -> dict[str, str]:
    """Return a call between the last tensor that agrees and the wrong tensor, in words."""
    over = call["axis"] or call["group"]
    by = f" ({call['reduce_op']})" if call["reduce_op"] else ""
    line = f"{call['source_file']}:{call['source_line']}" if call["source_file"] else ""
    often = f"{call['count']} " if call["count"] > 1 else ""
    return {
        "kind": f"{often}{call['kind']}{by}",
        "over": f"over {over}" if over else "",
        "why": call["reason"],
        "line": line,
    }


def _bounds(comparison: ValueComparison, found: Divergence, num_shown: int) -> list[str]:
    """Return what the page joins or leaves out."""
    texts = []
    if any(first != last for first, last in found.columns):
        most = max(last - first + 1 for first, last in found.columns)
        texts.append(f"A column of the map stands for up to {most:,} adjacent steps.")
    if found.depth >= 0:
        texts.append(
            f"Modules are joined with those around them: paths have {found.depth} "
            f"part{'s' * (found.depth != 1)} at most."
        )
    if any(row.module != row.last_module for row in found.rows):
        texts.append("Rows with two names stand for adjacent modules.")
    if texts:
        texts.append("A cell has the colour of its worst tensor.")
    if num_shown < comparison.num_paired:
        texts.append(
            f"Tables have {num_shown:,} of {counted(comparison.num_paired, 'tensor')}, those that "
            "are furthest off in each cell: commtrace compare --csv has all."
        )
    return texts


def _tensors(comparison: ValueComparison, found: Divergence) -> dict[str, Any]:
    """Return the columns of the table of tensors; names and layouts by number in `texts`."""
    pairs = comparison.pairs
    labels = _shown(pairs, found.cell_of_pair)
    if (fault := comparison.fault) is not None:  # it is the first row of its table
        labels.sort(key=lambda label: label != fault.pair)
    shown = pairs.loc[labels]
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    records = shown.to_dict("records")
    # Names of columns repeat in each record; columns are smaller.
    columns = {
        "pair": [int(label) for label in shown.index],
        "cell": found.cell_of_pair[shown.index].tolist(),
        "step": shown["step"].tolist(),
        "name": [number(name_of(each)) for each in records],
        "left": [number(layout_of({"layout": each["layout_left"]})) for each in records],
        "right": [number(layout_of({"layout": each["layout_right"]})) for each in records],
        "norm_left": _few_digits(shown["norm_left"]),
        "norm_right": _few_digits(shown["norm_right"]),
        "distance": [number(_distance(each)) for each in records],
        "excess": [number(_excess(each)) for each in records],
        "verdict": [VERDICTS.index(_verdict(each)) for each in records],
    }
    return columns | {"texts": list(texts), "verdicts": list(VERDICTS)}


def _shown(pairs: pd.DataFrame, cell_of_pair: np.ndarray) -> list[int]:
    """Return the labels of the pairs that tables have: in each cell those furthest off."""
    if len(pairs) <= MOST_TENSORS:
        return pairs.index.tolist()
    excess = pairs["excess"].fillna(-1.0)
    place = excess.groupby(cell_of_pair).rank(method="first", ascending=False)
    order = pd.DataFrame({"place": place, "excess": -excess}).sort_values(["place", "excess"])
    return sorted(order.index[:MOST_TENSORS].tolist())


def _distance(pair: Mapping[Any, Any]) -> str:
    """Return the distance as a multiple of what rounding explains."""
    if math.isnan(pair["excess"]):
        return "not known"
    return "nan or inf" if math.isinf(pair["excess"]) else _times(pair["excess"])


def _times(excess: float) -> str:
    """Format a multiple: `240,000 ×`, `1.5 ×`, `0.02 ×`."""
    return f"{float(f'{excess:.2g}'):,.0f} ×" if excess >= 10 else f"{excess:.2g} ×"


def _excess(pair: Mapping[Any, Any]) -> str:
    """Return the distance and what rounding explains as parts of the norm."""
    of_norm = f"{pair['distance']:.2g} of the norm; rounding explains {pair['tolerance']:.2g}"
    return excess_text(pair["excess"]) if math.isnan(pair["distance"]) else of_norm


def _verdict(pair: Mapping[Any, Any]) -> str:
    if math.isnan(pair["excess"]):
        return UNKNOWN
    if not pair["is_wrong"]:
        return AGREES
    return WRONG if pair["is_certain"] else DOUBTFUL


def _few_digits(values: pd.Series) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
