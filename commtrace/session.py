"""`commtrace.record(...)`: the entry point for recording a program's communication.

    with commtrace.record("run.json") as recording:
        for batch in batches:
            train(batch)
            recording.step()

Without a path the recording stays in memory: `recording.counts()`, `.table()`, `.save(path)`. With
one, each rank writes a spool while it runs, at least once a second, and rank 0 merges the spools
into the file when the recording ends. A path that ends in .comm is a folder that keeps the spools,
for ranks on hosts without a common folder, and for large runs. In a process that `commtrace run` or
`commtrace record` started, everything is recorded from the first line on. A recording that the
script makes there adds its steps and regions to that one and writes no file of its own; events
outside it belong to no step.

The file exceeds the usual length, because `Recording` is one class.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from commtrace.decorator import Decorator
from commtrace.errors import OutputError, RecordingError, TraceError, UsageError
from commtrace.escaping import visible
from commtrace.leaving import call_before_leaving
from commtrace.process_options import (
    DUMP_SIGNAL_VARIABLE,
    VALUE_LEVELS,
    ProcessOptions,
    dump_signal,
    ring_bytes,
)
from commtrace.recorder import (
    CURRENT,
    HOST_EVENTS,
    OBSERVER,
    RECORDER,
    Buffer,
    Listening,
    SampledBuffer,
    is_heard,
    listen,
    ranks_changed,
)
from commtrace.recorder.attribution.stack_frames import count_as_libraries
from commtrace.recorder.clock import epoch_ns, now
from commtrace.recorder.events.buffer import Writer
from commtrace.recorder.events.facts import Facts, process_rank
from commtrace.recorder.events.sink import NO_RANK
from commtrace.recorder.failures import Failures
from commtrace.recorder.interception.pending import await_callbacks
from commtrace.recorder.stack_dumps import StackDumps
from commtrace.recorder.terminate_handler import add_terminate_handler, remove_terminate_handler
from commtrace.settings import DETAILS, settings_of
from commtrace.tracefile import (
    WRITE_ERROR,
    SegmentedWriter,
    SpoolWriter,
    Trace,
    join,
    joined_segments,
    parse_spool,
    write_trace,
)
from commtrace.tracefile.dump_files import CALL_FIELDS
from commtrace.tracefile.liveness import ALIVE, BEAT_S
from commtrace.tracefile.stores import Memory, Store, store_for
from commtrace.units import counted
from commtrace.views.cells import with_cells
from commtrace.views.views import Views

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from commtrace.analyze import Frames
    from commtrace.views.table import Table

# Shorter than `processes._PEER_GRACE_S`, the time in which peers of a failed rank can write.
_FLUSH_INTERVAL_S = 0.25
_FLUSHES_PER_BEAT = round(BEAT_S / _FLUSH_INTERVAL_S)
_LIFE_NS = 2_000_000_000
_GRACE_S = 0.1
_MAX_CALLS_IN_MEMORY = 2_000_000

_launched: Recording | None = None


def record(
    path: Path | str | None = None,
    *,
    detail: str | None = None,
    stacks: bool = False,
    max_calls: int | None = None,
    every: int | None = None,
    ring: int | str | None = None,
    merge_timeout_s: float = 30.0,
    libraries: Sequence[str] = (),
    values: str | None = None,
) -> Recording:
    """Return a recording, to be used in a `with` statement or as a decorator.

    Args:
        path: the run file to write (an existing one is replaced), or a folder RUN.comm, to which
            each rank adds its spool; None keeps the recording in memory.
        detail: "op" (operators too) or "collective" (communication only, for long runs); the
            default is set in pyproject.toml, or else "op".
        stacks: record the full Python stack of each call, not only the user's line.
        max_calls: bound on the calls kept; ten times as many operators are kept, and further ones
            are only counted. By default there is no bound for a file, and two million in memory.
        every: record steps 0, `every`, twice `every` and so on only, and what precedes the first
            step. If the program marks no steps, the second step is recorded too.
        ring: keep only the last so many bytes of each rank's spool, such as "64MB"; what came
            before counts as dropped.
        merge_timeout_s: time that rank 0 waits at the end for ranks still recording; a rank without
            a spool is named in the file. Spools that are still written then stay beside the file,
            in PATH.spools, to be merged with it.
        libraries: packages whose lines do not count as the user's own, besides installed ones and
            those named in pyproject.toml.
        values: keep a fingerprint of tensors, to compare ranks and runs: "module" (inputs and
            outputs of modules, gradients, parameters and states of optimizers) or "op" (results of
            operators too); None keeps none.

    Raises:
        UsageError: the detail or the level of values is unknown, `every` is no number of steps,
            `ring` is no size, the path names no file, or a setting is invalid.
    """
    settings = settings_of()
    detail = detail or settings.detail or DETAILS[0]
    if detail not in DETAILS:
        raise UsageError(
            f"cannot record with detail {detail!r}",
            why=f"a detail is one of {', '.join(map(repr, DETAILS))}",
        )
    if values is not None and values not in VALUE_LEVELS:
        raise UsageError(
            f"cannot record values={values!r}",
            why=f"a level is one of {', '.join(map(repr, VALUE_LEVELS))}",
            attempt='values="op" for results of operators, or None for no fingerprints',
        )
    if every is not None and (type(every) is not int or every < 1):
        raise UsageError(
            "cannot record every Nth step",
            found=f"every={every!r}",
            why="it is a number of steps, from 1",
            attempt="every=100, or None to record all steps",
        )
    kept = ring_bytes(ring)
    if path is not None and not Path(path).name:
        raise UsageError(f"cannot record to {str(path)!r}", why="the path has no file name")
    count_as_libraries((*settings.libraries, *libraries), settings.own_packages)
    if path is None or _launched is not None:
        bound = max_calls or (None if kept else _MAX_CALLS_IN_MEMORY)
        return Recording(Memory(), ProcessOptions(detail, stacks, bound, every, kept, values or ""))
    options = ProcessOptions(detail, stacks, max_calls, every, kept, values or "")
    return Recording(store_for(Path(path), merge_timeout_s), options)


def record_process(store: Store, options: ProcessOptions) -> Recording:
    """Return the recording of a whole process, whose own recordings then add to it."""
    global _launched
    settings = settings_of()
    count_as_libraries(settings.libraries, settings.own_packages)
    _launched = Recording(store, options)
    call_before_leaving(_launched._end_at_once, _launched._flush_at_once)
    return _launched


class Recording(Views, Decorator):
    """Recording of everything between entering and leaving it; created by `record`.

    It may be entered again: a nested entry changes nothing, a later one continues where it stopped
    (a recording written to a file is closed for good). Recordings may overlap; each keeps
    everything that happens while it is on. Operators are recorded on the thread that entered it,
    communication on all threads.
    """

    def __init__(self, store: Store, options: ProcessOptions) -> None:
        self._store = store
        self._options = options
        self._depth = 0
        self._is_over = False
        self._num_flushes = 0
        self._life_ns = -1
        self._has_dropped = False
        self._dumps: StackDumps | None = None
        self._signal: int | None = None
        self._stream: BinaryIO | None = None
        # Set by `_open` and `_begin`.
        self._buffer: Buffer
        self._epoch: int
        self._facts: Facts
        self._flusher: _Flusher
        self._listening: Listening
        self._pid: int

    def __repr__(self) -> str:
        path = getattr(self._store, "path", None) or getattr(self._store, "folder", None)
        where = f"to {visible(str(path))}" if path else "in memory"
        return f"<commtrace.Recording {where}, {self._state()}, detail {self._options.detail}>"

    def _state(self) -> str:
        """Return the state of the recording and its number of calls."""
        if self._stream is None:
            return "not begun"
        rank, num_calls = self._facts.rank, self._buffer.num_calls
        state = "on" if self._depth else "written" if self._is_over else "paused"
        return f"{state}, {counted(num_calls, 'call')} of rank {rank}"

    def _recreate_cm(self) -> Recording:
        """Return the recording for one call of a decorated function."""
        if self._stream is None or isinstance(self._store, Memory):
            return self
        return Recording(self._store, self._options)

    def __enter__(self) -> Recording:
        """Start or continue recording."""
        if self._is_over:
            raise RecordingError(
                "cannot continue this recording",
                why="its file has been written",
                attempt="create another one with commtrace.record(...)",
            )
        if not self._depth:
            self._begin()
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop recording; calls still in progress are written as they are."""
        self._depth -= 1
        if self._depth or self._pid != os.getpid():  # a forked child does not belong to it
            return
        failures = self._end()
        lacking = _lacking(failures, self._buffer.num_dropped) if failures else ""
        if lacking and self is _launched:
            sys.stderr.write(f"commtrace: rank {self.rank}: {lacking}\n")
        elif lacking and kind is None:
            warnings.warn(lacking, RuntimeWarning, stacklevel=2)

    def _begin(self) -> None:
        again = self._stream is not None
        if not again:
            self._open()
        self._listening = listen(self._buffer, again=again)
        if self._options.detail == "op":
            self._listening.record_operators(self._facts.rank)
        if self._options.values == "op":
            self._listening.observe_results()
        if isinstance(self._buffer, SampledBuffer):
            self._buffer.report_by(self._listening)
        self._flusher = _Flusher(self._flush_and_beat)
        if self._store.spool is not None:
            add_terminate_handler(self._flush)
            is_chosen = bool(os.environ.get(DUMP_SIGNAL_VARIABLE))
            self._dumps = StackDumps(self._store.spool, self._signal, is_chosen=is_chosen)
        _open.add(self)
        if self is not _launched:
            self._begin_steps()

    def _end(self) -> Failures:
        """Write the rest and return the failures, which must not make the program fail."""
        _open.discard(self)
        OBSERVER.step_ends()
        if self._dumps is not None:
            remove_terminate_handler(self._flush)
        self._listening.stop()
        failures = Failures()
        failures.extend(RECORDER.failures)
        failures.extend(self._flusher.stop())
        if self._dumps is not None:
            self._dumps.close()
        self._end_steps()
        self._buffer.end_found_steps()
        # A backend may report a call that is complete a moment later, from a thread of its own.
        self._buffer.await_ends(_GRACE_S, RECORDER.pending.query_devices)
        # A backend's thread that needs the interpreter during its shutdown aborts the process.
        if not RECORDER.buffers:
            await_callbacks(_GRACE_S)
        self._is_over = not isinstance(self._store, Memory)
        # Two flushes: the facts in the second one count what the first one could not write.
        for part in (self._flush_last, partial(self._flush_end, failures), self._close):
            try:
                part()
            except (OSError, TraceError) as error:
                failures.append(error)
        return failures

    def _end_at_once(self) -> None:
        """Write the rest and close the recording, of a process that ends without exit handlers."""
        if self._depth:
            for part in (self._flush_last, partial(self._flush_end, Failures()), self._close):
                with contextlib.suppress(OSError, TraceError):
                    part()

    def _flush_at_once(self) -> None:
        if self._depth:
            with contextlib.suppress(OSError, TraceError):
                self._flush()

    def _close(self) -> None:
        self._store.close(self._facts.rank, self._facts.num_ranks)

    def _open(self) -> None:
        is_file = not isinstance(self._store, Memory)
        self._signal = dump_signal(os.environ) if is_file else None
        self._epoch = epoch = epoch_ns()
        self._pid = os.getpid()
        self._facts = Facts(self._options.detail, epoch, self._options.every)
        try:
            stream = self._store.open(self._facts.rank)
            writer = self._writer_on(stream)
            self._buffer = self._buffer_on(writer)
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
        self._stream = stream
        weakref.finalize(self, writer.close)  # until then it is read back from

    def _writer_on(self, stream: BinaryIO) -> SpoolWriter | SegmentedWriter:
        ring, epoch = self._options.ring, self._epoch
        if ring is None:
            return SpoolWriter(stream, self._facts.first)
        return SegmentedWriter(
            stream,
            self._facts.first,
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

    def _flush_and_beat(self) -> None:
        HOST_EVENTS.poll()
        try:
            self._flush_once()
        finally:
            HOST_EVENTS.rest()

    def _flush_once(self) -> None:
        self._num_flushes += 1
        if self._num_flushes % _FLUSHES_PER_BEAT == 0:
            self._store.beat()
            if self._dumps is not None:
                self._dumps.poll(self._facts.rank, self._calls_in_flight)
            self._write_life()
        self._flush()

    def _write_life(self) -> None:
        """Write that the rank runs, at intervals that grow while it records nothing new."""
        at = now()
        quiet = at - self._buffer.rows_ns
        if at - max(self._life_ns, self._buffer.rows_ns) >= max(_LIFE_NS, quiet // 20):
            self._life_ns = at
            self._buffer.flush({ALIVE: at + self._epoch, **self._dropped()})

    def _calls_in_flight(self) -> list[dict[str, Any]]:
        rows = self._buffer.in_flight()
        return [{name: getattr(row, name) for name in CALL_FIELDS} for row in rows]

    def _flush(self) -> None:
        RECORDER.pending.drop_dead_works()
        RECORDER.pending.query_devices()
        facts = self._facts.changes(RECORDER.groups, RECORDER.device)
        # Once, when calls begin to be dropped; later numbers come with signs of life.
        if self._buffer.num_dropped and not self._has_dropped:
            self._has_dropped = True
            facts |= self._dropped()
        self._buffer.flush(facts)

    def _dropped(self) -> dict[str, int]:
        """Return the numbers of what was not kept."""
        buffer = self._buffer
        return {
            "num_dropped": buffer.num_dropped,
            "num_ops_dropped": buffer.num_ops_dropped,
            "num_fingerprints_dropped": buffer.num_fingerprints_dropped,
        }

    def _flush_last(self) -> None:
        if self._store.wants_axes:  # otherwise only those who ask for them pay for it
            RECORDER.groups.learn_axes()
        self._buffer.flush(self._facts.changes(RECORDER.groups, RECORDER.device), is_last=True)

    def _flush_end(self, failures: Failures) -> None:
        why = {WRITE_ERROR: _reason(failures.first)} if isinstance(failures.first, OSError) else {}
        self._buffer.flush_end(
            lambda: {
                "complete": True,
                "end_ns": now() + self._epoch,
                "is_one_step": self._buffer.is_one_step,
                **why,
                **self._dropped(),
            }
        )

    def _begin_steps(self) -> None:
        """Begin a step, also in the recording of `commtrace run`, which has none before."""
        self._buffer.begin_steps()
        if _launched is not None:
            _launched._buffer.begin_steps()

    def _end_steps(self) -> None:
        self._buffer.end_steps(self._facts.rank)
        if _launched is not None and len(RECORDER.buffers) == 1:
            _launched._buffer.end_steps(self._facts.rank)

    def step(self) -> None:
        """End the current step and begin the next one, here and in enclosing recordings.

        Raises:
            RecordingError: the recording is not on.
        """
        if not self._depth:
            raise RecordingError("there is no step to end", why="the recording is not on")
        OBSERVER.step_ends()
        own = self._listening.sink
        for sink in RECORDER.buffers:
            if sink.rank in (None, self._buffer.rank):
                sink.end_step(self._facts.rank)
            # Sinks are in the order of entering, so the rest belongs to inner recordings.
            if sink is own:
                return

    @contextlib.contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Label the communication of the body, on this thread, with region `name`."""
        state = CURRENT.state
        state.set_regions((*state.regions, name))
        try:
            yield
        finally:  # among generators, the one that began first may end first
            state.set_regions(_without_last(state.regions, name))

    def observe(self, name: str, tensor: torch.Tensor) -> None:
        """Keep the fingerprint of a tensor under a name, such as that of the loss.

        Args:
            name: the name, equal in all runs that are compared.
            tensor: the tensor; its layout is taken from it.

        Raises:
            RecordingError: the recording is not on, or records no values.
        """
        self._require_values(f"cannot observe {name!r}")
        OBSERVER.named(name, tensor)

    def declare(
        self,
        target: torch.nn.Module | torch.Tensor,
        mesh: DeviceMesh,
        placements: Sequence[Any],
        *,
        gradient: Sequence[Any] | None = None,
    ) -> None:
        """Declare the layout of plain tensors, which are then compared like distributed ones.

        Args:
            target: a module, for its outputs, or a parameter, for its values, gradients and states.
                Sharded dimensions are divided evenly between ranks.
            mesh: the mesh.
            placements: a placement for each of its axes, of dtensor_core or of torch.
            gradient: placements of the gradients of a module's outputs. By default those of sharded
                outputs are sharded, those of partial sums are replicated, and the layout of those
                of replicas is unknown.

        Raises:
            RecordingError: the recording is not on, or records no values.
            UsageError: there is not one placement for each axis, or `gradient` is given for a
                parameter.
        """
        self._require_values("cannot declare a layout")
        for each in (placements, gradient):
            if each is not None and len(each) != mesh.ndim:
                raise UsageError(
                    "cannot declare a layout",
                    found=f"{counted(len(each), 'placement')} for a mesh of {mesh.ndim} axes",
                    why="each axis of the mesh has a placement",
                )
        if gradient is not None and not hasattr(target, "named_parameters"):
            raise UsageError(
                "cannot declare the layout of a parameter's gradient",
                found="a parameter with `gradient`",
                why="its gradient has the layout of the parameter once it is reduced",
                attempt="leave `gradient` out, or declare the module",
            )
        OBSERVER.declare(target, mesh, placements, gradient)

    def _require_values(self, summary: str) -> None:
        if not self._depth or not self._options.values:
            raise RecordingError(
                summary,
                why="the recording is not on" if not self._depth else "it records no values",
                attempt='commtrace.record(..., values="module")',
            )

    @property
    def rank(self) -> int:
        """The global rank of this process, as far as is known; set once the recording began."""
        return self._facts.rank

    @property
    def is_on(self) -> bool:
        """True while the recording is on."""
        return bool(self._depth)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Discard everything that happens during the body, on any thread."""
        rank = self._buffer.rank
        self._set_rank(NO_RANK)
        try:
            yield
        finally:
            self._set_rank(rank)

    def _set_rank(self, rank: int | None) -> None:
        self._buffer.rank = rank
        ranks_changed()

    def is_heard(self) -> bool:
        """Return whether calls are recorded now, tested with a call without peers."""
        return self.is_on and is_heard(self._listening.sink)

    def trace(self) -> Trace:
        """Return the trace of this rank so far."""
        if self._stream is None:
            raise RecordingError(
                "there is no trace yet",
                why="the recording has not started",
                attempt="enter it with a `with` statement first",
            )
        if self._depth:
            self._flush()
        return join(joined_segments(map(parse_spool, self._buffer.contents())))

    def frames(self) -> Frames:
        """Return the tables of this rank so far."""
        from commtrace.analyze import load

        self._name_axes()
        return load(with_cells(self.trace()), settings_of())

    def table(self, name: str = "comm") -> Table:
        """Return a table of this rank so far: comm, ops, ..., or an analysis."""
        return super().table(name)

    def _name_axes(self) -> None:
        """Look up the mesh axes of groups that do not carry them."""
        if self._stream is not None and not self._is_over:
            RECORDER.groups.learn_axes()
            self._buffer.flush()

    def counts(self, column: str = "kind") -> Counter[str]:
        """Count this rank's communication calls by kind or by another column."""
        return Counter(self.trace().tables["comm"][column])

    def total(self, column: str | None = None) -> int:
        """Return the number of this rank's communication calls, or the sum of a column."""
        table = self.trace().tables["comm"]
        return len(table["id"]) if column is None else sum(table[column])

    def save(self, path: Path | str) -> Path:
        """Write the recording of this rank so far to a run file, and return its path."""
        self._name_axes()
        return write_trace(with_cells(self.trace()), path)


def _without_last(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the names without the last occurrence of `name`."""
    remaining = list(names[::-1])
    with contextlib.suppress(ValueError):
        remaining.remove(name)
    return tuple(remaining[::-1])


class _Flusher(threading.Thread):
    """Calls `flush` at regular intervals until stopped; a failed flush is retried next time."""

    def __init__(self, flush: Any) -> None:
        # A daemon: Python joins all other threads before the exit handler that stops this one.
        super().__init__(name="commtrace-flusher", daemon=True)
        self._flush = flush
        self._stopping = threading.Event()
        self._failures = Failures()
        self.start()

    def run(self) -> None:
        """Flush several times a second."""
        while not self._stopping.wait(_FLUSH_INTERVAL_S):
            try:
                self._flush()
            except Exception as error:
                self._failures.append(error)

    def stop(self) -> Failures:
        """Stop the thread and return its failures."""
        self._stopping.set()
        self.join()
        return self._failures


def _lacking(failures: Failures, num_dropped: int) -> str:
    """Return the sentence on a recording during which something failed."""
    first = failures.first
    if isinstance(first, OutputError):
        return f"the recording was not written: {visible(first.summary)}: {first.found}"
    if isinstance(first, FileNotFoundError):
        return f"the recording is lost: {visible(str(first.filename))} was removed meanwhile"
    if isinstance(first, OSError):
        lost = counted(num_dropped, "call") if num_dropped else "its end"
        return f"the recording lacks {lost}, which could not be written: {_reason(first)}"
    return (
        f"{len(failures)} failures while recording; the trace is incomplete. First failure: "
        f"{type(first).__name__}: {visible(str(first))}"
    )


def _reason(error: OSError) -> str:
    return (error.found if isinstance(error, OutputError) else error.strerror or str(error)).lower()


_open: set[Recording] = set()


@atexit.register
def _end_open_recordings() -> None:
    """End recordings that are still on when the program exits inside of them."""
    for recording in list(_open):
        recording._depth = 1
        recording.__exit__(None)
