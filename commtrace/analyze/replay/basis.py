"""The part of a run that is replayed: all of it, or a few steady steps of a large run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.excerpts.excerpt import of_ranks
from commtrace.analyze.excerpts.time_window import of_steps, rows_of_steps
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError

MOST_CALLS = 1_000_000
"""Number of calls of a stored run that are replayed at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The part of a run that is replayed.

    Attributes:
        frames: The part.
        labels: Label in table `comm` of the run of each call of the part.
        is_whole: True if it is the whole run.
    """

    frames: Frames
    labels: pd.Index
    is_whole: bool


def basis_of(run: Frames) -> Frames:
    """Return the run in memory, or as many steady steps of a large run as can be replayed.

    Raises:
        UsageError: It is a stored run without steps, or with steps of too many calls.
    """
    return replayed_calls(run).frames


@of_run
def replayed_calls(run: Frames) -> Basis:
    """Return what `basis_of` returns, with the labels of its calls.

    Raises:
        UsageError: As of `basis_of`.
    """
    if not run.is_stored:
        return Basis(run, run.comm.index, True)
    if run.num_calls <= MOST_CALLS:
        with suppress(UsageError):  # it has too many operators or kernels
            whole = of_ranks(run).in_memory()
            return Basis(whole, whole.comm.index, True)
    chosen = middle_steps(run, MOST_CALLS)
    if chosen is None:
        raise UsageError(
            "cannot replay the run",
            found=f"{run.num_calls} calls and no steps",
            why=f"of a run of more than {MOST_CALLS} calls, some of its steps are replayed",
            attempt="commtrace whatif RUN --window 1s:2s, or rec.step() in the program",
        )
    rows = rows_of_steps(run, *chosen)
    return Basis(of_steps(run, *chosen, rows), rows, False)


def middle_steps(run: Frames, num_calls: int) -> tuple[int, int] | None:
    """Return the first and the last of consecutive steady steps with about that many calls.

    They are in the middle of the longest sequence of steady steps. None if there are no such steps.
    """
    steps = run.timed_steps["step"]
    steady = np.unique(steps[is_steady(run, steps)].to_numpy())
    if not len(steady):
        return None
    longest = max(np.split(steady, np.flatnonzero(np.diff(steady) != 1) + 1), key=len)
    num = max(num_calls // calls_of_a_step(run), 1)
    first = max((len(longest) - num) // 2, 0)
    chosen = longest[first : first + num]
    return int(chosen[0]), int(chosen[-1])


def calls_of_a_step(run: Frames) -> int:
    """Return the mean number of calls of a step, at least 1."""
    return max(run.num_calls // max(run.timed_steps["step"].nunique(), 1), 1)
