"""Ranks that step alone and average their parameters afterwards, as in local SGD.

Their gradients differ by design: the run reduces none, and reduces tensors of the shapes of its
parameters after steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from commtrace.analyze.gradients.calls import reducing_calls
from commtrace.analyze.gradients.parameters import MISSING, UNKNOWN, Reduction
from commtrace.analyze.gradients.rows import SketchRows, gradient_rows
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.tensor_shapes import numel


def excuse_local_steps(found: Sequence[Reduction], run: Frames) -> None:
    """Make verdicts on gradients that are not reduced unknown if parameters are averaged later."""
    missing = [each for each in found if each.state == MISSING]
    if missing and (source := _averages_at(run)):
        for reduction in missing:
            reduction.state = UNKNOWN
            reduction.explanation = (
                f"no gradient is reduced, and parameters are, at {source}: ranks part between "
                "these averages by design"
            )


@cached_per_run
def _averages_at(run: Frames) -> str:
    """Return the line at which ranks average parameters instead of gradients; else empty."""
    rows = gradient_rows(run)
    sizes = {row.name: numel(row.shape) for row in rows.parameters}
    matrices = {row.shape for row in rows.parameters if "," in row.shape}
    for rank, reductions in reducing_calls(run).items():
        begins, ends = (_of_rounds(of, rank) for of in (rows.locals, rows.reduced))
        rounds = begins.keys() & ends.keys()
        bounds = [(min(begins[number]), max(ends[number])) for number in sorted(rounds)]
        if not bounds:
            continue
        places = [np.searchsorted(reductions.issue_ns, bound) for bound in bounds]
        if any(first != last for first, last in places):
            return ""
        later = reductions.calls[places[0][1] :]
        shapes = {shape: each.source for each in later for shape in each.input_shapes.split(";")}
        flat = [shape for shape in shapes if numel(shape) >= sum(sizes.values()) > 0]
        of_parameters = flat or ([*matrices] if matrices and matrices <= shapes.keys() else [])
        return next((shapes[shape] or "an unknown line" for shape in of_parameters), "")
    return ""


def _of_rounds(rows: Mapping[tuple[int, str], SketchRows], rank: int) -> dict[int, list[int]]:
    """Return when a rank's rows of each step were observed."""
    found: dict[int, list[int]] = {}
    for (number, _), own in rows.items():
        found.setdefault(number, []).extend(row.at_ns for row in own if row.rank == rank)
    return {number: times for number, times in found.items() if times}
