"""An event on the host, noted where it happens and turned into a row when it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from commtrace.event import HostEventRow
from commtrace.recorder.events.facts import likely_rank
from commtrace.recorder.events.location import text_of_stack
from commtrace.recorder.thread_state import CallStack

UNKNOWN = -1

Raised = Callable[[BaseException], None]
"""Function that receives an exception that the program may catch."""


@dataclass(slots=True)
class HostEvent:
    """An event: its kind, time, thread, rank and the user's line.

    Attributes:
        kind: one of `HOST_EVENT_KINDS`.
        at: when it began.
        rank: rank of the thread; None before there is a process group.
        thread: native id of the thread.
        text: the guard, the exception, a number of batches, a group, a key or a thread.
        duration: in ns; -1 while it goes on.
        code: the user's code; None if the stack has none.
        line: line in it.
        stack: the thread's stack, if it is stuck.
    """

    kind: str
    at: int
    rank: int | None
    thread: int
    text: str = ""
    duration: int = UNKNOWN
    code: CodeType | None = None
    line: int = UNKNOWN
    stack: CallStack = ()

    def row(self, number: int, epoch: int, step: int) -> Any:
        """Return the row of table `host_events`."""
        code = self.code
        return HostEventRow(
            rank=likely_rank() if self.rank is None else self.rank,
            id=number,
            kind=self.kind,
            at_ns=self.at + epoch,
            duration_ns=self.duration,
            step=step,
            thread=self.thread,
            text=self.text,
            source_file=code.co_filename if code else "",
            source_line=self.line if code else UNKNOWN,
            source_function=code.co_name if code else "",
            stack=text_of_stack(self.stack),
        )
