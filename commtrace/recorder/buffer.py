"""What one recording keeps: calls and operators wait here until they are written to its stream.

The program's threads append, `flush` takes what is there and writes it as one batch. A call is
written once nothing more will become known of it; until then each batch repeats it in the
pseudo-table `outstanding`, so that the trace of a program that hangs shows what it hangs in.
Numbers of calls and operators count from the beginning of the recording.
"""

from __future__ import annotations

import io
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from time import sleep
from typing import Any, BinaryIO, Protocol

from commtrace.event import StepRow
from commtrace.recorder.calls import Call, Numbering
from commtrace.recorder.clock import now
from commtrace.tracefile import OUTSTANDING, SpoolWriter

_MAX_OUTSTANDING_ROWS = 1000
_MAX_CALLS_IN_BATCH = 2000
_MAX_OPS_IN_BATCH = 10_000
_POLL_S = 0.001
_MAX_OPS_PER_CALL = 10
NO_STEP = -1


Span = tuple[int, int, int, Any, str, int, int, str, tuple[str, ...], Any, int, tuple[Any, ...]]
"""One operator that has ended: rank, id, parent, operator, level, start, duration, phase, regions,
module call, thread, and the layouts of its distributed arguments where a sink wants them."""


class Sink(Protocol):
    """What the recorder reports to: calls as they are issued, operators when they have ended.

    `rank` is None, or the only rank of which anything is wanted.
    """

    rank: int | None
    wants_spans: bool
    wants_layouts: bool
    wants_stacks: bool
    keep_span: Callable[[Span], None]

    def add(self, call: Call) -> None:
        """Take a call."""
        ...

    def end_step(self, rank: int) -> None:
        """Take note of the end of a step."""
        ...


class Buffer:
    """The calls, operators and steps of one recording, on their way to `stream`.

    Keeps the calls of `rank` only where that is not None (threads that play several ranks), and at
    most `max_calls` of them and ten times as many operators; the rest is only counted. What comes
    before `begin_steps` and after `end_steps` belongs to no step.
    """

    def __init__(
        self,
        stream: BinaryIO,
        facts: Mapping[str, Any],
        *,
        epoch: int,
        numbering: Numbering,
        rank: int | None = None,
        max_calls: int | None = None,
        wants_spans: bool = False,
        wants_stacks: bool = False,
    ) -> None:
        self.rank = rank
        self.step = NO_STEP
        self._num_steps = 0
        self._num_in_step = 0
        self.num_dropped = 0
        self.num_ops_dropped = 0
        self.wants_spans = wants_spans
        self.wants_layouts = False
        self.wants_stacks = wants_stacks
        self._num_kept = 0
        self._num_ops_kept = 0
        self._max_calls = max_calls
        self._epoch = epoch
        self._numbering = numbering
        self._calls: deque[tuple[Call, int]] = deque()
        self._spans: deque[Span] = deque()
        self._bounds: list[int] = []
        self._steps_from: list[int] = []
        self._steps: deque[Any] = deque()
        self._outstanding: list[tuple[Call, int]] = []
        self._shown: list[int] = []
        self._groups: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stream = stream
        self._writer = SpoolWriter(stream, facts)
        self.keep_span: Callable[[Span], None] = self._spans.append

    def add(self, call: Call) -> None:
        """Keep a call, from the moment it is issued."""
        if self.rank is not None and call.group.rank != self.rank:
            return
        if self._max_calls is not None and self._num_kept >= self._max_calls:
            self.num_dropped += 1
            return
        self._num_kept += 1
        self._num_in_step += 1
        self._calls.append((call, self.step))

    def begin_steps(self) -> None:
        """Begin a step, unless one is in progress."""
        if self.step == NO_STEP:
            self._set_step(self._num_steps, now())

    def _set_step(self, step: int, begin: int) -> None:
        self.step = step
        self._step_begin = begin
        self._num_in_step = 0
        self._bounds.append(begin)
        self._steps_from.append(step)

    def end_step(self, rank: int) -> None:
        """End the step in progress, and begin the next one."""
        self.begin_steps()
        end = now()
        epoch = self._epoch
        self._steps.append(StepRow(rank, self.step, self._step_begin + epoch, end + epoch))
        self._num_steps += 1
        self._set_step(self._num_steps, end)

    def end_steps(self, rank: int) -> None:
        """End the step in progress; a last one in which nothing happened is none."""
        if self.step != NO_STEP and (self._num_in_step or not self._num_steps):
            self.end_step(rank)
        self._set_step(NO_STEP, now())

    def flush(self, facts: Mapping[str, Any] | None = None, *, is_last: bool = False) -> None:
        """Write what has come in; with `is_last` also what is still outstanding.

        Much of it is written in several batches: what came first is then safe the sooner. Raises
        OSError where some of it could not be written, which is then lost.
        """
        failure = None
        with self._lock:
            num_full = max(
                len(self._calls) // _MAX_CALLS_IN_BATCH, len(self._spans) // _MAX_OPS_IN_BATCH
            )
            for number in range(num_full + 1):
                try:
                    self._write_batch(facts if number == num_full else None, is_last)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _write_batch(self, facts: Mapping[str, Any] | None, is_last: bool) -> None:
        done, waiting = self._sort_out(is_last)
        tables = {
            "groups": self._new_groups([*done, *waiting]),
            "comm": [call.row(self._epoch, step, self._numbering) for call, step in done],
            "ops": self._take_ops(),
            "steps": _take(self._steps, len(self._steps)),
        }
        shown = [call.id for call, _ in waiting]
        if not (facts or shown != self._shown or any(tables.values())):
            return
        tables[OUTSTANDING] = [
            call.row(self._epoch, step, self._numbering)
            for call, step in waiting[:_MAX_OUTSTANDING_ROWS]
        ]
        self._shown = shown
        try:
            self._writer.write(tables, facts)
        except OSError:  # memory stays bounded also where the disk is full
            self._lose(tables)
            raise

    def _lose(self, tables: Mapping[str, Any]) -> None:
        """Count what could not be written; groups and steps are few, and tried again."""
        self.num_dropped += len(tables["comm"])
        self.num_ops_dropped += len(tables["ops"])
        for row in tables["groups"]:
            del self._groups[row.name]
        self._steps.extendleft(reversed(tables["steps"]))
        self._shown = []

    def await_ends(self, timeout_s: float, ask: Callable[[], None]) -> None:
        """Give backends that much time to tell of calls that have completed by now.

        `ask` is called meanwhile: not all tell by themselves.
        """
        deadline = now() + round(timeout_s * 1e9)
        while any(call.is_watched for call, _ in (*self._outstanding, *self._calls)):
            ask()
            if now() > deadline:
                return
            sleep(_POLL_S)

    def _sort_out(self, is_last: bool) -> tuple[list[tuple[Call, int]], list[tuple[Call, int]]]:
        """The calls of which all is known, and those still in the making."""
        waiting: list[tuple[Call, int]] = []
        done: list[tuple[Call, int]] = []
        for entry in [*self._outstanding, *_take(self._calls, _MAX_CALLS_IN_BATCH)]:
            (done if is_last or entry[0].is_over() else waiting).append(entry)
        self._outstanding = waiting
        return done, waiting

    def _new_groups(self, entries: list[tuple[Call, int]]) -> list[Any]:
        """The rows of groups that came up for the first time, or of which more is known now."""
        rows = {}
        for group in dict.fromkeys([call.group for call, _ in entries]):
            row = group.row._replace(name=self._numbering.name(group))
            if self._groups.get(row.name) != row:
                self._groups[row.name] = rows[row.name] = row
        return list(rows.values())

    def _take_ops(self) -> list[Any]:
        taken = _take(self._spans, _MAX_OPS_IN_BATCH)
        spans = [span for span in taken if self.rank in (None, span[0])]
        if self._max_calls is not None:
            room = _MAX_OPS_PER_CALL * self._max_calls - self._num_ops_kept
            self.num_ops_dropped += max(len(spans) - room, 0)
            del spans[room:]
        self._num_ops_kept += len(spans)
        numbering, epoch = self._numbering, self._epoch
        return [_op_row(span, self._step_at(span[5]), numbering, epoch) for span in spans]

    def _step_at(self, instant: int) -> int:
        """The step that was in progress then."""
        position = bisect_right(self._bounds, instant) - 1
        return self._steps_from[position] if position >= 0 else NO_STEP

    def contents(self) -> bytes:
        """All that has been written so far."""
        with self._lock:
            self._stream.seek(0)
            written = self._stream.read()
            self._stream.seek(0, io.SEEK_END)
        return written


def _take(entries: deque[Any], most: int) -> list[Any]:
    """The first that are in a queue now; others may append meanwhile."""
    return [entries.popleft() for _ in range(min(len(entries), most))]


def _op_row(span: Span, step: int, numbering: Numbering, epoch: int) -> tuple[Any, ...]:
    """An operator as a row of table `ops`, in the order of its columns."""
    rank, number, parent, op, level, start, duration, phase, regions, call, thread, _ = span
    place = call[0] if call else None
    return (
        rank,
        numbering.op_id(number),
        numbering.op_id(parent),
        str(op),
        level,
        start + epoch,
        duration,
        step,
        phase,
        regions[-1] if regions else "",
        place.path if place else "",
        place.class_name if place else "",
        call[1] if call else -1,
        thread,
    )
