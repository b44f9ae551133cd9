"""The part of a run that is replayed: all of it, or a few steady steps of a large run."""

from __future__ import annotations

from collections.abc import Iterator
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

MOST_CALLS = 500_000
"""Number of calls of a stored run that are replayed at once."""
SAMPLED_CALLS = 150_000
"""Number of calls of a larger run that are replayed, if these are `LEAST_STEPS` steps or more."""
LEAST_STEPS = 5


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
    each = calls_of_a_step(run)
    chosen = middle_steps(run, min(max(SAMPLED_CALLS, LEAST_STEPS * each), MOST_CALLS))
    if chosen is None:
        raise UsageError(
            "cannot replay the run",
            found=f"{run.num_calls} calls and no steps",
            why=f"of a run of more than {MOST_CALLS} calls, some of its steps are replayed",
            attempt="commtrace whatif RUN --window 1s:2s, or rec.step() in the program",
        )
    return _of_steps(run, *chosen)


def blocks_of_steps(run: Frames) -> Iterator[Basis]:
    """Yield consecutive steady steps of a large run in blocks that can be replayed; or the run.

    Raises:
        UsageError: As of `basis_of`.
    """
    part = replayed_calls(run)
    if part.is_whole:
        yield part
        return
    num = max(MOST_CALLS // calls_of_a_step(run), 1)
    for sequence in _steady_sequences(run):
        for first in range(0, len(sequence), num):
            own = sequence[first : first + num]
            yield _of_steps(run, int(own[0]), int(own[-1]))


def _of_steps(run: Frames, first: int, last: int) -> Basis:
    rows = rows_of_steps(run, first, last)
    return Basis(of_steps(run, first, last, rows), rows, False)


def _steady_sequences(run: Frames) -> list[np.ndarray]:
    """Return the numbers of steady steps, divided where one is left out."""
    steps = run.timed_steps["step"]
    steady = np.unique(steps[is_steady(run, steps)].to_numpy())
    return np.split(steady, np.flatnonzero(np.diff(steady) != 1) + 1) if len(steady) else []


def middle_steps(run: Frames, num_calls: int) -> tuple[int, int] | None:
    """Return the first and the last of consecutive steady steps with about that many calls.

    They are in the middle of the longest sequence of steady steps. None if there are no such steps.
    """
    sequences = _steady_sequences(run)
    if not sequences:
        return None
    longest = max(sequences, key=len)
    num = max(num_calls // calls_of_a_step(run), 1)
    first = max((len(longest) - num) // 2, 0)
    chosen = longest[first : first + num]
    return int(chosen[0]), int(chosen[-1])


def calls_of_a_step(run: Frames) -> int:
    """Return the mean number of calls of a step, at least 1."""
    return max(run.num_calls // max(run.timed_steps["step"].nunique(), 1), 1)
