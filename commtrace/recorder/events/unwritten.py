"""Calls of a buffer that are not written yet: new calls, and calls that are not fully known.

The result of a call may be used after the call is over (`Call.may_be_used`). Each batch repeats the
calls that are not written, so only the latest wait for such a use: as many as `DataTimes` follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from commtrace.recorder.events.call import Call

_MAX_IN_BATCH = 5000
_MAX_UNUSED = 256
CallInStep = tuple[Call, int]


class UnwrittenCalls:
    """Calls in the order of their issue, each with its step; threads may add some at any time."""

    def __init__(self) -> None:
        self._new: deque[CallInStep] = deque()
        self._waiting: list[CallInStep] = []
        self._shown: list[tuple[int, bool]] = []

    def __iter__(self) -> Iterator[CallInStep]:
        """Iterate over those present."""
        yield from [*self._waiting, *self._new]

    def add(self, call: Call, step: int) -> None:
        """Keep a call from the moment it is issued."""
        self._new.append((call, step))

    @property
    def num_full_batches(self) -> int:
        """Number of batches that new calls fill."""
        return len(self._new) // _MAX_IN_BATCH

    def take(self, *, all_of_them: bool) -> tuple[list[CallInStep], list[CallInStep]]:
        """Take the fully known calls of a batch, or `all_of_them`.

        Returns:
            The calls taken, and the calls that still wait for a report, or a use.
        """
        entries = self._waiting
        entries += [self._new.popleft() for _ in range(min(len(self._new), _MAX_IN_BATCH))]
        known: list[CallInStep] = []
        self._waiting = []
        num_unused = 0
        for entry in reversed(entries):
            call = entry[0]
            is_known = all_of_them or call.is_over()
            if is_known and not all_of_them and num_unused < _MAX_UNUSED and call.may_be_used():
                num_unused += 1
                is_known = False
            (known if is_known else self._waiting).append(entry)
        known.reverse()
        self._waiting.reverse()
        return known, self._waiting

    def have_changed(self) -> bool:
        """Return whether other calls wait than when last asked."""
        shown, self._shown = self._shown, [call.state_in_flight() for call, _ in self._waiting]
        return shown != self._shown

    def forget_shown(self) -> None:
        """Note that the waiting calls could not be written."""
        self._shown = []
