"""The part of a run whose replays a page shows: some steady steps of a run of many calls."""

from __future__ import annotations

from dataclasses import dataclass

from commtrace.analyze.excerpts.time_window import of_steps
from commtrace.analyze.replay.basis import calls_of_a_step, middle_steps
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
    each, chosen = calls_of_a_step(run), middle_steps(run, MOST_CALLS)
    if chosen is None or each > MOST_CALLS_OF_A_STEP:
        what = f"{each:,} calls in a step" if chosen else f"{run.num_calls:,} calls, no steps"
        return ReplayedPart(
            None, lacking=f"Too much to replay for a page: {what}. Use commtrace whatif --window."
        )
    part = of_steps(run, *chosen)
    lacking = why_not_replayed(part)
    return ReplayedPart(None if lacking else part, chosen, lacking)
