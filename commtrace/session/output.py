"""The buffer of a recording, what it writes, and when.

`Recording` decides what is recorded and opens its output when it is first entered; the flusher's
thread writes the new rows regularly, and the end of the recording the rest.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from commtrace.errors import OutputError, RecordingError
from commtrace.process_options import DUMP_SIGNAL_VARIABLE, ProcessOptions, dump_signal
from commtrace.recorder import HOST_EVENTS, RECORDER, Buffer, SampledBuffer
from commtrace.recorder.clock import epoch_ns, now
from commtrace.recorder.events.buffer import Writer
from commtrace.recorder.events.facts import Facts, process_rank
from commtrace.recorder.failures import Failures
from commtrace.recorder.host_events.stuck import StuckStacks, ThreadWait
from commtrace.recorder.stack_dumps import StackDumps
from commtrace.session.flusher import FLUSH_INTERVAL_S
from commtrace.session.lacking import reason
from commtrace.tracefile import WRITE_ERROR, SegmentedWriter, SpoolWriter
from commtrace.tracefile.destinations import Memory, Store
from commtrace.tracefile.dump_files import CALL_FIELDS
from commtrace.tracefile.liveness import ALIVE, BEAT_S

_FLUSHES_PER_BEAT = round(BEAT_S / FLUSH_INTERVAL_S)
_LIFE_NS = 2_000_000_000


class Output:
    """Buffer of a rank's recording, and the spool or memory that it is written to.

    Raises:
        RecordingError: the spool cannot be written.
    """

    def __init__(self, store: Store, options: ProcessOptions) -> None:
        self._store = store
        self._options = options
        self._num_flushes = 0
        self._life_ns = -1
        self._has_dropped = False
        self._dumps: StackDumps | None = None
        is_file = not isinstance(self._store, Memory)
        self._signal = dump_signal(os.environ) if is_file else None
        self._epoch = epoch_ns()
        self.facts = Facts(self._options.detail, self._epoch, self._options.every)
        try:
            stream = self._store.open(self.facts.rank)
            writer = self._writer_on(stream)
            self.buffer = self._buffer_on(writer)
        except OutputError as error:
            raise RecordingError(
                f"cannot start recording: {error.summary}",
                found=error.found,
                why=error.why,
                attempt=error.attempt,
            ) from error
        except OSError as error:
            raise RecordingError(
                "cannot start recording",
                found=f"{type(error).__name__}: {error}",
                attempt="record to a writable folder",
            ) from error
        spool = store.spool
        self._stuck = StuckStacks(
            None if spool is None else spool.parent,
            self.buffer.add_host_event,
            self._waits,
            lambda: RECORDER.num_issued,
        )
        weakref.finalize(self, writer.close)  # until then it is read back from

    def answer_dumps(self, spool: Path) -> None:
        """Answer requests for stacks, with files beside the spool."""
        is_chosen = bool(os.environ.get(DUMP_SIGNAL_VARIABLE))
        self._dumps = StackDumps(spool, self._signal, is_chosen=is_chosen)

    def end_dumps(self) -> None:
        """Answer no further requests for stacks."""
        if self._dumps is not None:
            self._dumps.close()

    def _writer_on(self, stream: BinaryIO) -> SpoolWriter | SegmentedWriter:
        ring, epoch = self._options.ring, self._epoch
        if ring is None:
            return SpoolWriter(stream, self.facts.first)
        return SegmentedWriter(
            stream,
            self.facts.first,
            segment_bytes=ring // 2,
            open_segment=self._store.open_segment,
            clock=lambda: now() + epoch,
        )

    def _buffer_on(self, writer: Writer) -> Buffer:
        every, has_ops = self._options.every, self._options.detail == "op"
        make = Buffer if every in (None, 1) else partial(SampledBuffer, every=every)
        return make(
            writer,
            epoch=self._epoch,
            numbering=RECORDER.numbering(with_ops=has_ops),
            rank=process_rank(),
            max_calls=self._options.max_calls,
            wants_spans=has_ops,
            wants_stacks=self._options.stacks,
            wants_values=bool(self._options.values),
        )

    def flush_once(self) -> None:
        """Write new data; once a second also a sign of life, and stacks if somebody waits."""
        self._num_flushes += 1
        if self._num_flushes % _FLUSHES_PER_BEAT == 0:
            self._store.beat()
            if self._dumps is not None:
                self._dumps.poll(self.facts.rank, self._calls_in_flight)
            self._stuck.poll(self.facts.rank)
            self._write_life()
        self.flush()

    def _write_life(self) -> None:
        """Write that the rank runs, at intervals that grow while it records nothing new."""
        at = now()
        quiet = at - self.buffer.rows_ns
        if at - max(self._life_ns, self.buffer.rows_ns) >= max(_LIFE_NS, quiet // 20):
            self._life_ns = at
            self.buffer.flush({ALIVE: at + self._epoch, **self._dropped()})

    def _waits(self) -> Iterator[ThreadWait]:
        yield from HOST_EVENTS.waits()
        calls = (*self.buffer.unwritten_calls(), *RECORDER.pending.awaitable_calls())
        for call in {id(each): each for each in calls}.values():
            waiting = call.waiting_since()
            if waiting is not None:
                yield ThreadWait(waiting[0], call.thread, waiting[1])

    def _calls_in_flight(self) -> list[dict[str, Any]]:
        rows = self.buffer.in_flight()
        return [{name: getattr(row, name) for name in CALL_FIELDS} for row in rows]

    def flush(self) -> None:
        """Write new data."""
        RECORDER.pending.drop_dead_works()
        RECORDER.pending.query_devices()
        facts = self.facts.changes(RECORDER.groups, RECORDER.device)
        # Once, when calls begin to be dropped; later numbers come with signs of life.
        if self.buffer.num_dropped and not self._has_dropped:
            self._has_dropped = True
            facts |= self._dropped()
        self.buffer.flush(facts)

    def _dropped(self) -> dict[str, int]:
        """Return the numbers of dropped calls, operators and fingerprints."""
        buffer = self.buffer
        return {
            "num_dropped": buffer.num_dropped,
            "num_ops_dropped": buffer.num_ops_dropped,
            "num_fingerprints_dropped": buffer.num_fingerprints_dropped,
        }

    def last_parts(self, failures: Failures) -> tuple[Callable[[], None], ...]:
        """Return the functions to call at the end, each even if an earlier call fails."""
        # Two flushes: the facts in the second one count what the first one could not write.
        return self._flush_last, partial(self._flush_end, failures), self._close

    def _flush_last(self) -> None:
        if self._store.wants_axes:  # otherwise only those who ask for them pay for it
            RECORDER.groups.learn_axes()
        self.buffer.flush(self.facts.changes(RECORDER.groups, RECORDER.device), is_last=True)

    def _flush_end(self, failures: Failures) -> None:
        why = {WRITE_ERROR: reason(failures.first)} if isinstance(failures.first, OSError) else {}
        self.buffer.flush_end(
            lambda: {
                "complete": True,
                "end_ns": now() + self._epoch,
                "is_one_step": self.buffer.is_one_step,
                **why,
                **self._dropped(),
            }
        )

    def _close(self) -> None:
        self._store.close(self.facts.rank, self.facts.num_ranks)
