"""A further wait for a call, which becomes a row of table `later_waits` when it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

from commtrace.event import LaterWaitRow
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.numbering import Numbering


class LaterWait(NamedTuple):
    """A wait that has ended, for an asynchronous call that another wait was the first for.

    Attributes:
        call: the call.
        at: when it began.
        duration: in ns.
        thread: native id of the thread that waited.
    """

    call: Call
    at: int
    duration: int
    thread: int

    def numbered(self, numbering: Numbering) -> NumberedWait:
        """Return the wait with the number that a recording has for the call."""
        group = self.call.request.group
        number, _, _ = numbering.of(self.call.id, self.call.seq, self.call.op_id, group)
        return NumberedWait(group.rank, number, self)


class NumberedWait(NamedTuple):
    """A wait, with the rank and the number of its call in a recording."""

    rank: int
    call_id: int
    wait: LaterWait

    def row(self, number: int, epoch: int, step: int) -> Any:
        """Return the row of table `later_waits`."""
        wait = self.wait
        return LaterWaitRow(
            rank=self.rank,
            id=number,
            call_id=self.call_id,
            at_ns=wait.at + epoch,
            duration_ns=wait.duration,
            thread=wait.thread,
        )
