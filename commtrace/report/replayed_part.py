"""The part of a run whose replays a page shows: some steady steps of a run of many calls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commtrace.analyze.excerpts.time_window import of_steps
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.words import why_not_replayed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames

MOST_CALLS = 20_000
"""Number of calls up to which a run is replayed as a whole, which takes seconds."""
MOST_CALLS_OF_A_STEP = 200_000
"""Number of calls of a step from which a page has no replays."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedPart:
    """The part of a run that is replayed.

    Attributes:
        frames: The part; None if it cannot be replayed.
        steps: First and last step of the part; None if it is the whole.
        lacking: Reason why nothing is replayed, in a sentence; else empty.
    """

    frames: Frames | None
    steps: tuple[int, int] | None = None
    lacking: str = ""


@of_run
def replayed_part(run: Frames) -> ReplayedPart:
    """Return the part of a run that is replayed for its page."""
    if not run.num_calls:
        return ReplayedPart(None, lacking="There is no call to replay.")
    if run.num_calls <= MOST_CALLS:
        lacking = why_not_replayed(run)
        return ReplayedPart(None if lacking else run, lacking=lacking)
    steps = run.timed_steps["step"]
    steady = np.unique(steps[is_steady(run, steps)].to_numpy())
    each = run.num_calls // max(steps.nunique(), 1)
    if not len(steady) or each > MOST_CALLS_OF_A_STEP:
        what = f"{each:,} calls in a step" if len(steady) else f"{run.num_calls:,} calls, no steps"
        return ReplayedPart(
            None, lacking=f"Too much to replay for a page: {what}. Use commtrace whatif --window."
        )
    # The middle of the longest sequence of steady steps.
    longest = max(np.split(steady, np.flatnonzero(np.diff(steady) != 1) + 1), key=len)
    num = max(MOST_CALLS // max(each, 1), 1)
    first = max((len(longest) - num) // 2, 0)
    chosen = longest[first : first + num]
    part = of_steps(run, int(chosen[0]), int(chosen[-1]))
    lacking = why_not_replayed(part)
    ends = int(chosen[0]), int(chosen[-1])
    return ReplayedPart(None if lacking else part, ends, lacking)
