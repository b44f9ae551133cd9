"""The part of a run that is replayed: all of it, or a few steady steps of a large run."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from commtrace.analyze.excerpts.excerpt import of_ranks
from commtrace.analyze.excerpts.time_window import of_steps
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError

MOST_CALLS = 2_000_000
"""Number of calls of a stored run that are replayed at most."""


@of_run
def basis_of(run: Frames) -> Frames:
    """Return the run in memory, or as many steady steps of a large run as can be replayed.

    Raises:
        UsageError: It is a stored run without steps, or with steps of too many calls.
    """
    if not run.is_stored:
        return run
    if run.num_calls <= MOST_CALLS:
        with suppress(UsageError):  # it has too many operators or kernels
            return of_ranks(run).in_memory()
    steps = run.timed_steps["step"]
    steady = np.unique(steps[is_steady(run, steps)].to_numpy())
    if not len(steady):
        raise UsageError(
            "cannot replay the run",
            found=f"{run.num_calls} calls and no steps",
            why=f"of a run of more than {MOST_CALLS} calls, some of its steps are replayed",
            attempt="commtrace whatif RUN --window 1s:2s, or rec.step() in the program",
        )
    each = max(run.num_calls // max(steps.nunique(), 1), 1)
    num = int(max(MOST_CALLS // each, 1))
    # The middle of the longest sequence of steady steps.
    pieces = np.split(steady, np.flatnonzero(np.diff(steady) != 1) + 1)
    longest = max(pieces, key=len)
    first = max((len(longest) - num) // 2, 0)
    chosen = longest[first : first + num]
    return of_steps(run, int(chosen[0]), int(chosen[-1]))
