"""Recording of a training, with its steps and regions, and the numbers that are due.

    monitor = TrainingMonitor(every_n_steps=100)
    monitor.begin(output_dir)               # on all ranks
    monitor.enter("train")                  # or "evaluate", "save": a region, until the next
    monitor.step()                          # at the end of a step
    log(monitor.scalars())                  # empty on other ranks, and if no numbers are due
    ending = monitor.end()                  # None on other ranks

A recording that is on already gets the steps and regions; otherwise one is made in the output
folder. Reading takes at most a hundredth of the time of rank 0, however long the run is: the next
numbers follow after a hundred times as long as the last took.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import CommtraceError, UsageError
from commtrace.session import Recording, record
from commtrace.session.flusher import FLUSH_INTERVAL_S
from commtrace.settings import settings_of
from commtrace.tracefile.destinations import wait_for_others

if TYPE_CHECKING:
    from commtrace.live.recent import RecentSteps

RUN_NAME, PAGE_NAME = "RUN.comm", "report.html"
EVERY_N_STEPS = 100

_MOST_SHARE = 0.01
_LEAST_S = 4 * FLUSH_INTERVAL_S  # other ranks have written their steps by then
_TO_CLOSE_S = 30.0
_MOST_BYTES = 256 << 20
_FAILURES = (CommtraceError, OSError, ValueError, LookupError, ArithmeticError)
"""Errors of reading and writing, which must not end the training."""


@dataclass(frozen=True, slots=True)
class TrainingEnd:
    """Results of a training that has ended, on rank 0.

    Attributes:
        scalars: numbers of the whole run; empty if it is too large.
        page: the page; None if the run is too large.
        text: the findings and the paths of the page and the run, in Markdown.
    """

    scalars: dict[str, float]
    page: Path | None
    text: str


class TrainingMonitor:
    """Recording of a training, and its numbers on rank 0.

    Attributes:
        recording: the recording, from `begin` to `end`.

    Args:
        every_n_steps: steps between two logs.
        recording: the recording to make if none is on; by default of communication only, to
            RUN.comm in the output folder.

    Raises:
        UsageError: `every_n_steps` is no number of steps.
    """

    def __init__(self, *, every_n_steps: int, recording: Recording | None) -> None:
        if type(every_n_steps) is not int or every_n_steps < 1:
            raise UsageError(
                "cannot log numbers of communication every Nth step",
                found=f"every_n_steps={every_n_steps!r}",
                why="it is a number of steps, from 1",
                attempt=f"every_n_steps={EVERY_N_STEPS}",
            )
        self._every_n_steps = every_n_steps
        self._given = recording
        self.recording: Recording | None = None
        self._recent: RecentSteps | None = None
        self._region_name = ""
        self._on, self._region = contextlib.ExitStack(), contextlib.ExitStack()

    def begin(self, folder: Path | str) -> None:
        """Begin to record, unless a recording is on, and begin a step.

        Args:
            folder: folder for the page and the recording, the same on all ranks.

        Raises:
            RecordingError: the recording cannot be written.
        """
        if self.recording is not None:
            self.stop()
        self._folder = Path(folder)
        self.recording = Recording.in_progress()
        self._is_own = self.recording is None
        if self.recording is None:
            self.recording = self._given or record(self._folder / RUN_NAME, detail="collective")
            self._on.enter_context(self.recording)
        else:
            self._on.enter_context(self.recording.steps())
        self._num_read = self.recording.num_steps
        self._read_s = self._ready_s = time.monotonic()
        self._recent = None
        if self._is_first and self.recording.spools is not None:
            # Now rather than at a step, since it loads pandas.
            from commtrace.integrations.scalars import scalars_of
            from commtrace.live.recent import RecentSteps

            self._scalars_of = scalars_of
            self._recent = RecentSteps(self.recording.spools, settings_of())

    @property
    def _is_first(self) -> bool:
        return self.recording is not None and self.recording.rank == 0

    def enter(self, region: str) -> None:
        """Label what follows on this thread with a region, in place of the last one."""
        if self.recording is not None and region != self._region_name:
            self._region.close()
            self._region.enter_context(self.recording.region(region))
            self._region_name = region

    def step(self) -> None:
        """End a step, and begin the next."""
        if self.recording is not None:
            self.recording.step()

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the steps since the last ones, if they are due, on rank 0."""
        if self._recent is None or self.recording is None:
            return {}
        num_steps, begin_s = self.recording.num_steps, time.monotonic()
        is_due = num_steps - self._num_read >= self._every_n_steps
        if not is_due or begin_s < max(self._ready_s, self._read_s + _LEAST_S):
            return {}
        self._read_s = begin_s
        try:
            part = self._recent.read()
            if part is None:  # another rank has not written them yet
                return {}
            self._num_read = num_steps
            return self._scalars_of(part)
        except _FAILURES as error:
            self._recent = None
            _warn(f"no further numbers of communication are logged: {error}")
            return {}
        finally:
            took_s = time.monotonic() - begin_s
            self._ready_s = begin_s + took_s / _MOST_SHARE

    def stop(self) -> None:
        """End the last step, and the recording if it was made for the training."""
        if self.recording is not None:
            self._region.close()
            self._on.close()
        self.recording, self._recent, self._region_name = None, None, ""

    def end(self) -> TrainingEnd | None:
        """Stop, and write the page; return its numbers on rank 0, and None elsewhere."""
        recording, is_first = self.recording, self._is_first
        self.stop()
        if recording is None or not is_first:
            return None
        source = recording.path if self._is_own else recording.spools
        if source is not None and self._is_own:
            wait_for_others(source, _TO_CLOSE_S)
        elif source is not None:
            time.sleep(2 * FLUSH_INTERVAL_S)  # until other ranks have written what came before
        try:
            return self._ended(recording, source)
        except _FAILURES as error:
            _warn(f"the page of the communication was not written: {error}")
            return None

    def _ended(self, recording: Recording, source: Path | None) -> TrainingEnd:
        from commtrace.integrations.scalars import FINDINGS, scalars_of, titles_of_findings
        from commtrace.views.run import load

        if source is not None and _num_bytes(source) > _MOST_BYTES:
            text = f"The run is large: `commtrace report {source}` writes its page."
            return TrainingEnd({}, None, text)
        run = recording if source is None else load(source)
        frames = run.frames()
        titles = titles_of_findings(frames)
        self._folder.mkdir(parents=True, exist_ok=True)
        page = run.report(self._folder / PAGE_NAME)
        paths = [f"Page: `{page}`", *([] if source is None else [f"Run: `{source}`"])]
        text = "\n".join(["  \n".join(paths), "", *(f"- {title}" for title in titles)])
        return TrainingEnd({**scalars_of(frames), FINDINGS: float(len(titles))}, page, text)


def _num_bytes(path: Path) -> int:
    """Return the size of a file, or of the files of a folder."""
    return sum(each.stat().st_size for each in (path.iterdir() if path.is_dir() else [path]))


def _warn(text: str) -> None:
    warnings.warn(f"commtrace: {text}", RuntimeWarning, stacklevel=3)
