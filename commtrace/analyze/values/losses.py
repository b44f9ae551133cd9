"""Losses at which backward passes begin: equal in both runs if the forward passes are right."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.tolerance import OF_ROUNDOFF, ROUNDOFF
from commtrace.schema import LOSS


def steps_with_right_losses(left: Frames, right: Frames) -> set[int]:
    """Return the steps whose losses are equal, as the sum or the mean over ranks, in both runs."""
    ours, theirs = (_losses(run) for run in (left, right))
    found = set()
    for step in ours.keys() & theirs.keys():
        whole, parts = sum(ours[step].values()), [*theirs[step].values()]
        close = OF_ROUNDOFF * ROUNDOFF["float32"] * abs(whole)
        sums = (sum(parts), sum(parts) / len(parts))
        if len(ours[step]) == 1 and any(abs(each - whole) <= close for each in sums):
            found.add(step)
    return found


def _losses(run: Frames) -> dict[int, dict[int, float]]:
    """Return the sum of each rank's losses by step: those at which backward passes began."""
    rows = joined(run.by_ranks(_of_losses))
    found: dict[int, dict[int, float]] = {}
    for step, rank, total in zip(rows["step"], rows["rank"], rows["total"], strict=True):
        of_step = found.setdefault(int(step), {})
        of_step[int(rank)] = of_step.get(int(rank), 0.0) + float(total)
    return found


def _of_losses(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    return table.loc[table["role"] == LOSS, ["rank", "step", "total"]]
