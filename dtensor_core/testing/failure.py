"""Outcome of each rank of a run, and the error that a failing run raises.

The runners (threads, processes) make a `RankReport` for each rank that did not return; the first of
them is the cause. `RankFailure` puts the cause's traceback first and the other ranks' tracebacks
after it, marked as consequences, so that a test's log starts with the relevant line.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType

import torch.distributed


class Outcome(Enum):
    """Way in which a rank ended; the value completes the sentence "rank 2 ..."."""

    FAILED = "failed"
    DIED = "died"
    DEADLOCKED = "can't go on"
    UNFINISHED = "had not finished"
    RELEASED = "was released"


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank that did not return: a line with the reason, then its traceback and output."""

    rank: int
    outcome: Outcome
    summary: str
    detail: str = ""
    output: str = ""

    @property
    def sentence(self) -> str:
        """The report in a single line."""
        return f"rank {self.rank} {self.outcome.value}: {self.summary}"


class RankFailure(AssertionError):
    """At least one rank of a run did not return.

    With threads, the exception of the first rank to fail is `__cause__`. This is an AssertionError,
    so that unittest counts a failure and not an error.

    Attributes:
        reports: One report for each rank that did not return, the cause first.
        world_size: The number of ranks.
    """

    def __init__(self, reports: Sequence[RankReport], world_size: int) -> None:
        self.reports = tuple(reports)
        self.world_size = world_size
        super().__init__(describe(self.reports, world_size))

    @property
    def rank(self) -> int:
        """The rank that failed first."""
        return self.reports[0].rank


def describe(reports: Sequence[RankReport], world_size: int) -> str:
    """Describe a failure: the cause in full, then its consequences on the other ranks.

    A rank that ended with the same text as the cause is named but not repeated.
    """
    cause, *others = reports
    lines = [f"{cause.sentence} (world size {world_size})", "", *_section(cause, "cause")]
    alike = [r for r in others if _words(r) == _words(cause)]
    if alike:
        ranks = ", ".join(str(report.rank) for report in alike)
        lines += ["", f"the same on rank {ranks}"]
        lines += [line for report in alike if report.output for line in _output(report)]
    for report in others:
        if report not in alike:
            lines += ["", *_section(report, "after that")]
    return "\n".join(lines)


def _section(report: RankReport, role: str) -> list[str]:
    title = f"---- {role}: {report.sentence}"
    body = report.detail.rstrip().splitlines()
    return [title, *body, *(_output(report) if report.output else [])]


def _words(report: RankReport) -> tuple[Outcome, str, str]:
    return report.outcome, report.summary, report.detail


def _output(report: RankReport) -> list[str]:
    return [f"---- output of rank {report.rank}", *report.output.rstrip().splitlines()]


def summarize(error: BaseException) -> str:
    """Return `TypeName: first line of the message`."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def format_error(error: BaseException) -> str:
    """Format the traceback of `error`, from where the harness called the test's function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def format_wait(error: BaseException) -> str:
    """Format the position at which a rank was waiting: the test's own frames of the traceback."""
    return _format_frames(traceback.extract_tb(error.__traceback__))


def format_stack(frame: FrameType) -> str:
    """Format the position of a running rank: the test's own frames of its stack."""
    return _format_frames(traceback.extract_stack(frame))


def _format_frames(frames: traceback.StackSummary) -> str:
    """Format a stack without the frames of the harness and of the communication library."""
    kept = list(frames)
    while kept and kept[0].filename.startswith((_HERE, _THREADING)):
        del kept[0]
    while kept and kept[-1].filename.startswith((_HERE, _DISTRIBUTED)):
        del kept[-1]
    return "".join(traceback.format_list(kept))


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_HERE)


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_THREADING = threading.__file__
_DISTRIBUTED = os.path.dirname(os.path.abspath(torch.distributed.__file__)) + os.sep
