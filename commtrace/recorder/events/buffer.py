"""Buffer of a recording: holds calls and operators until they are written to its stream.

The program's threads append; `flush` writes the entries present as a batch. A call is written once
all of it is known, including the first use of its result. Until then each batch repeats it in the
pseudo-table `outstanding`, so that the trace of a hanging program shows the calls in which it
hangs. Call and operator numbers start at 0 where the recording began.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import sleep
from typing import Any, Protocol

from commtrace.event import CommEvent, StepRow
from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.call_row import numbers_of, row_of, site_of
from commtrace.recorder.events.call_sites import CallSites
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.numbering import Numbering
from commtrace.recorder.events.observed_value import ObservedValue, rows_of_values
from commtrace.recorder.events.operator_details import has_details
from commtrace.recorder.events.operator_sites import KIND, SPAN_FIELDS, OperatorSites
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.events.sink import SELF_CHECK, OperatorSpan, SpanKeeper
from commtrace.recorder.events.small_table import SmallTable
from commtrace.recorder.events.sources import Sources
from commtrace.recorder.events.steps import FoundSteps
from commtrace.recorder.events.unwritten import UnwrittenCalls
from commtrace.schema import MAX_ACTIONS, TABLES
from commtrace.tracefile import FOUND_STEPS, OUTSTANDING, sites_of
from commtrace.tracefile.spool import NUMBERS, SITES

# Each batch repeats these rows, so their number is bounded.
_MAX_OUTSTANDING_ROWS = 1000
_MAX_VALUES_IN_BATCH = 5000
_MAX_OPS_IN_BATCH = 50_000
_POLL_S = 0.001
_MAX_OPS_PER_CALL = 10
_SPAN_WIDTH = len(NUMBERS["ops"])
_CALL_SITE_COLUMNS = [column for column, each in enumerate(TABLES["comm"]) if each in SITES["comm"]]
_MAX_HOST_EVENTS = _MAX_LATER_WAITS = 20_000
NO_STEP = -1


class Writer(Protocol):
    """Interface to the file of a recording; see `SpoolWriter`."""

    def write(
        self,
        tables: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        numbers: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Append a batch."""
        ...

    def write_instead(self, facts: Callable[[Mapping[str, int]], Mapping[str, Any]]) -> None:
        """Write last facts over the last batches."""
        ...

    def contents(self) -> list[bytes]:
        """Return everything written so far, by segment."""
        ...


class Buffer:
    """Calls, operators and steps of a recording, on their way to `writer`.

    With a `rank`, only that rank's calls are kept (for threads that play several ranks). At most
    `max_calls` calls and ten times as many operators are kept; the rest are only counted.
    Events before `begin_steps` and after `end_steps` belong to no step, unless steps are found.
    """

    _every = 1

    def __init__(
        self,
        writer: Writer,
        *,
        epoch: int,
        numbering: Numbering,
        rank: int | None = None,
        max_calls: int | None = None,
        wants_spans: bool = False,
        wants_stacks: bool = False,
        wants_values: bool = False,
    ) -> None:
        self.rank = rank
        self.step = NO_STEP
        self._num_steps = 0
        self._num_before_step = 0
        self._num_marks = 0
        self._found = FoundSteps(now(), epoch)
        self.num_dropped = 0
        self.num_ops_dropped = self.num_fingerprints_dropped = 0
        self.wants_spans = wants_spans
        self.wants_layouts = False
        self.wants_stacks = wants_stacks
        self.value_sink = self if wants_values else None
        self.host_sink = self
        self.wants_tensor_identity = wants_spans
        self._num_kept = 0
        self._most_calls = sys.maxsize if max_calls is None else max_calls
        self._epoch = epoch
        self._numbering = numbering
        self._calls = UnwrittenCalls()
        # The values of all spans, one after the other: to keep one is a single call in C, and the
        # garbage collector has no object of it to visit.
        self._spans: list[Any] = []
        self.keep_span: SpanKeeper = self._spans.extend
        self._span_step = NO_STEP
        self._call_sites = {"comm": CallSites(), "ops": CallSites()}
        self._op_sites = OperatorSites(self._call_sites["ops"])
        self._most_ops = sys.maxsize if max_calls is None else _MAX_OPS_PER_CALL * max_calls
        self._values: deque[tuple[ObservedValue, int]] = deque()
        self._num_values = 0
        self._most_values = self._most_ops
        self._host_events = SmallTable(_MAX_HOST_EVENTS)
        self._actions = SmallTable(MAX_ACTIONS)
        self._later_waits = SmallTable(_MAX_LATER_WAITS)
        self.rows_ns = now()
        self._steps: deque[Any] = deque()
        self._sources = Sources()
        self._groups: dict[str, Any] = {}
        self._groups_in_use: dict[Any, None] = {}
        self._lock = threading.Lock()
        self._writer = writer

    @property
    def num_calls(self) -> int:
        """Number of calls kept."""
        return self._num_kept

    def add(self, call: Call) -> None:
        """Keep a call from the moment it is issued."""
        rank = call.request.group.rank
        if rank != self.rank and (self.rank is not None or rank == SELF_CHECK):
            return
        if self._num_kept >= self._most_calls:
            self.num_dropped += 1
            return
        self._num_kept += 1
        self._calls.add(call, self.step)

    def add_value(self, entry: ObservedValue) -> None:
        """Keep the fingerprint of a tensor."""
        if self._num_values + len(self._values) >= self._most_values:
            self.num_fingerprints_dropped += 1
            return
        self._values.append((entry, self.step))

    def add_host_event(self, event: HostEvent) -> None:
        """Keep an event on the host; these are few, so only an endless loop reaches the bound."""
        self._host_events.add(event, self.step)

    def add_action(self, action: PipelineAction) -> None:
        """Keep a computation of a pipeline stage, up to a number that an analysis can hold."""
        self._actions.add(action, self.step)

    def add_later_wait(self, wait: LaterWait) -> None:
        """Keep a further wait for a call of this recording, up to a number."""
        numbered = wait.numbered(self._numbering)
        if numbered.call_id >= 0:
            self._later_waits.add(numbered, self.step)

    @property
    def wants_details(self) -> bool:
        """True if the step in progress is one whose operators have details."""
        return self.wants_spans and has_details(self.num_steps // self._every)

    @property
    def num_steps(self) -> int:
        """Number of steps that have ended, as the program marks them or as they were found."""
        return self._num_steps or self._found.in_progress

    def begin_steps(self) -> None:
        """Begin a step, unless one is in progress."""
        if self.step == NO_STEP:
            self._set_step(self._num_steps, now())

    def _set_step(self, step: int, begin: int) -> None:
        self.step = step
        if self.wants_spans:
            self.keep_span(_step_mark(step))
        self._step_begin = begin
        self._num_before_step = self._num_kept

    def end_step(self, rank: int) -> None:
        """End the step in progress at the program's request and begin the next."""
        self._num_marks += 1
        self.begin_steps()
        end = now()
        self._end_step(rank, end)
        self._set_step(self._num_steps, end)

    def _end_step(self, rank: int, end: int) -> None:
        self._keep_step(rank, end)
        self._num_steps += 1

    def _keep_step(self, rank: int, end: int) -> None:
        epoch = self._epoch
        self._steps.append(StepRow(rank, self.step, self._step_begin + epoch, end + epoch))

    def end_steps(self, rank: int) -> None:
        """End the step in progress; discard a last step in which nothing happened."""
        if self.step != NO_STEP and (self._has_calls() or not self._num_steps):
            self._end_step(rank, now())
        self._set_step(NO_STEP, now())

    def _has_calls(self) -> bool:
        """Return whether there were calls in the step in progress."""
        return self._num_kept > self._num_before_step

    @property
    def is_one_step(self) -> bool:
        """Return whether the recording itself is the only step, since the program marked none."""
        return not self._num_marks and self._num_steps == 1

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call that may end a step; ignored once the program has marked a step itself."""
        if not self._num_marks:
            self._found.tick(source, thing, at, begin)

    def end_found_steps(self) -> None:
        """Complete the found steps; the last call of each source also ends a step."""
        self._found.end()

    def flush(self, facts: Mapping[str, Any] | None = None, *, is_last: bool = False) -> None:
        """Write the entries collected so far.

        Large amounts are written in several batches, so that early entries are safe sooner.

        Args:
            facts: facts to write with the last batch.
            is_last: also write the calls that are still outstanding.

        Raises:
            OSError: some batches could not be written; their entries are lost.
        """
        failure = None
        with self._lock:
            num_full = max(
                self._calls.num_full_batches,
                len(self._spans) // (_MAX_OPS_IN_BATCH * SPAN_FIELDS),
                len(self._values) // _MAX_VALUES_IN_BATCH,
            )
            for number in range(num_full + 1):
                try:
                    self._write_batch(facts if number == num_full else None, is_last)
                except OSError as error:
                    # The other batches are tried as well, so that their entries leave memory.
                    failure = error
        if failure is not None:
            raise failure

    def flush_end(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Write the last facts; on a full disk, over the latest entries, which are dropped.

        Raises:
            OSError: they could not be written.
        """
        try:
            self.flush(facts())
        except OSError:
            before = self.num_dropped, self.num_ops_dropped

            def facts_instead_of(lost: Mapping[str, int]) -> Mapping[str, Any]:
                self.num_dropped = before[0] + lost.get("comm", 0)
                self.num_ops_dropped = before[1] + lost.get("ops", 0)
                return facts()

            with self._lock:
                self._writer.write_instead(facts_instead_of)

    def _write_batch(self, facts: Mapping[str, Any] | None, is_last: bool) -> None:
        done, waiting = self._calls.take(all_of_them=is_last)
        # Before the call sites are taken: a number must not be written ahead of its call site.
        numbers = {"comm": self._numbers_of(done), "ops": self._take_spans()}
        tables = {
            "groups": self._new_groups([*done, *waiting]),
            "steps": _take(self._steps, len(self._steps)),
            "fingerprints": self._take_fingerprints(),
            "host_events": self._host_events.take(self._epoch),
            "pipeline_actions": self._actions.take(self._epoch),
            "later_waits": self._later_waits.take(self._epoch),
            FOUND_STEPS: _take(self._found.new, len(self._found.new)),
        }
        for name, call_sites in self._call_sites.items():
            tables[sites_of(name)] = _take(call_sites.new, len(call_sites.new))
        has_rows = any((self._calls.have_changed(), *numbers.values(), *tables.values()))
        if not has_rows and not facts:
            return
        if has_rows:
            self.rows_ns = now()
        tables[OUTSTANDING] = [
            row_of(call, self._epoch, step, self._numbering)
            for call, step in waiting[:_MAX_OUTSTANDING_ROWS]
        ]
        for call, _ in waiting[:_MAX_OUTSTANDING_ROWS]:
            self._sources.note(call.location)
        changes = self._sources.changes()
        try:
            self._writer.write(tables, {**(facts or {}), **changes}, numbers)
        except OSError:  # memory stays bounded even if the disk is full
            self._requeue(tables, numbers)
            raise

    def _requeue(self, tables: Mapping[str, Any], numbers: Mapping[str, Sequence[int]]) -> None:
        """Count the entries that could not be written; requeue those that later batches need."""
        self.num_dropped += len(numbers["comm"]) // len(NUMBERS["comm"])
        self.num_ops_dropped += len(numbers["ops"]) // _SPAN_WIDTH
        self.num_fingerprints_dropped += len(tables["fingerprints"])
        for row in tables["groups"]:
            del self._groups[row.name]
        self._steps.extendleft(reversed(tables["steps"]))
        self._found.new.extendleft(reversed(tables[FOUND_STEPS]))
        self._sources.is_new = True
        for name, call_sites in self._call_sites.items():
            call_sites.new.extendleft(reversed(tables[sites_of(name)]))
        self._calls.forget_shown()

    def await_ends(self, timeout_s: float, ask: Callable[[], None]) -> None:
        """Wait up to `timeout_s` for backends to report calls that have completed by now.

        `ask` is called meanwhile, since not all backends report by themselves.
        """
        deadline = now() + round(timeout_s * 1e9)
        while any(call.is_watched for call, _ in self._calls):
            ask()
            if now() > deadline:
                return
            sleep(_POLL_S)

    def _new_groups(self, entries: list[tuple[Call, int]]) -> list[Any]:
        """Return the rows of groups that are new or whose description has changed."""
        rows = {}
        self._groups_in_use.update(dict.fromkeys([call.request.group for call, _ in entries]))
        for group in self._groups_in_use:
            row = group.row._replace(name=self._numbering.name(group))
            if self._groups.get(row.name) != row:
                self._groups[row.name] = rows[row.name] = row
        return list(rows.values())

    def _numbers_of(self, entries: list[tuple[Call, int]]) -> list[int]:
        """Return the numbers of each call; columns that calls share become a call site."""
        call_sites, epoch, numbering = self._call_sites["comm"], self._epoch, self._numbering
        number_of = call_sites.number_of
        flat: list[int] = []
        for call, step in entries:
            key = site_of(call)
            number = number_of(key)
            if number is None:
                self._sources.note(call.location)
                row = row_of(call, epoch, step, numbering)
                shared = tuple([row[column] for column in _CALL_SITE_COLUMNS])
                number = call_sites.add(key, shared, call.request)
            flat += (*numbers_of(call, epoch, step, numbering), number)
        return flat

    def _take_spans(self) -> array[int]:
        """Take the buffered operators as the numbers of each; threads may append meanwhile."""
        spans = self._spans[: _MAX_OPS_IN_BATCH * SPAN_FIELDS]
        # Only the part that was copied: threads may have appended to the rest.
        del self._spans[: len(spans)]
        flat = array("q")
        for step, fields in self._by_step(spans):
            numbers, num_dropped = self._op_sites.numbers_of(
                fields, step, self._epoch, self._numbering.first_op or 0, self._most_ops
            )
            self._most_ops -= len(numbers) // _SPAN_WIDTH
            self.num_ops_dropped += num_dropped
            flat += numbers
        return flat

    def _take_fingerprints(self) -> list[Any]:
        """Take some of the observed tensors, as rows of table `fingerprints`."""
        taken = _take(self._values, _MAX_VALUES_IN_BATCH)
        first = self._num_values
        self._num_values += len(taken)
        return rows_of_values(taken, first, self._epoch)

    def _by_step(self, spans: list[Any]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the operators that completed in each step, as `_set_step` has marked them."""
        kinds, begin = spans[KIND::SPAN_FIELDS], 0
        for _ in range(kinds.count(None)):
            end = kinds.index(None, begin)
            yield self._span_step, spans[begin * SPAN_FIELDS : end * SPAN_FIELDS]
            self._span_step = spans[end * SPAN_FIELDS]
            begin = end + 1
        yield self._span_step, spans[begin * SPAN_FIELDS :] if begin else spans

    def in_flight(self) -> list[Any]:
        """Return the calls in flight, as rows of table `comm`."""
        with self._lock:
            entries = [*self._calls]
        flying = (entry for entry in entries if not entry[0].is_over())
        return [
            CommEvent(*row_of(call, self._epoch, step, self._numbering))
            for call, step in islice(flying, _MAX_OUTSTANDING_ROWS)
        ]

    def unwritten_calls(self) -> list[Call]:
        """Return the calls that are not written yet, including those in flight."""
        return [call for call, _ in self._calls]

    def contents(self) -> list[bytes]:
        """Return everything written so far, by segment."""
        with self._lock:
            return self._writer.contents()


def _step_mark(step: int) -> OperatorSpan:
    """Return a span without a kind, which marks that spans after it complete in another step."""
    return (step, *[None] * (SPAN_FIELDS - 1))  # pyright: ignore[reportReturnType]


def _take(entries: deque[Any], most: int) -> list[Any]:
    """Pop up to `most` of the oldest entries of a queue that other threads may append to."""
    return [entries.popleft() for _ in range(min(len(entries), most))]
