"""The last steps of a run while it is recorded, as a part of it that every analysis takes.

    recent = RecentSteps(Path("RUN.comm"))
    part = recent.read()        # after some steps, again and again

A reading takes what the ranks have written since the last one, and returns the steps that all ranks
have ended since, with all of their calls. Rows are kept for two readings that return steps; a step
that began before these rows is left out.
"""

from __future__ import annotations

from pathlib import Path

from commtrace.analyze.excerpts.time_window import part_in_time
from commtrace.analyze.run.frame import Frames, frames_of
from commtrace.selection import Selection
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile import SPOOL_SUFFIX, join, joined_segments
from commtrace.tracefile.joining.latest_run import latest_run
from commtrace.tracefile.spool_reading import GrowingSpool


class RecentSteps:
    """Reads the last steps of a growing run; its cost does not depend on the steps before.

    Args:
        folder: the folder of spools, or RUN.comm.
        settings: settings of the project.
    """

    def __init__(self, folder: Path, settings: Settings = DEFAULTS) -> None:
        self._folder = folder
        self._settings = settings
        self._spools: dict[Path, GrowingSpool] = {}
        self._left_out: set[str] = set()
        self._last = -1
        self._begun = [-1, -1]  # steps in progress at the last two readings

    def read(self) -> Frames | None:
        """Return the steps since the last reading; None if not all ranks have ended a new one.

        Raises:
            TraceError: a spool is invalid.
        """
        frames = self._frames()
        if frames is None or frames.steps.empty:
            return None
        ended = frames.steps.groupby("rank")["step"].max()
        # The step after the last that any rank had ended may have begun before the kept rows.
        first = max(self._last, self._begun[0]) + 1
        last = int(ended.min()) if len(ended) == frames.num_ranks else -1
        if last < first:
            return None
        self._last = last
        self._begun = [self._begun[1], int(ended.max()) + 1]
        for spool in self._spools.values():
            spool.age()
        return part_in_time(frames, Selection(steps=(first, last)))

    def _frames(self) -> Frames | None:
        recordings = []
        for path in sorted(self._folder.glob(f"*{SPOOL_SUFFIX}")):
            if path.name in self._left_out:
                continue
            try:
                spool = self._spools.setdefault(path, GrowingSpool(path)).read()
            except FileNotFoundError:  # a segment that was removed
                continue
            recordings += [spool] if spool is not None else []
        if not recordings:
            return None
        chosen, left_out = latest_run(joined_segments(recordings))
        self._left_out.update(left_out)
        self._spools = {
            path: spool for path, spool in self._spools.items() if path.name not in left_out
        }
        return frames_of(join(chosen), self._settings)
