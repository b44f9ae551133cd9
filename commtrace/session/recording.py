"""`Recording`: everything that happens between entering and leaving it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from commtrace.decorator import Decorator
from commtrace.errors import RecordingError, TraceError, UsageError
from commtrace.escaping import visible
from commtrace.process_options import ProcessOptions
from commtrace.recorder import (
    CURRENT,
    HOST_EVENTS,
    OBSERVER,
    RECORDER,
    Listening,
    SampledBuffer,
    is_heard,
    listen,
    ranks_changed,
)
from commtrace.recorder.events.sink import NO_RANK
from commtrace.recorder.failures import Failures
from commtrace.recorder.host_events.endings import is_failure
from commtrace.recorder.host_events.exceptions import note_of_error
from commtrace.recorder.interception.pending import await_callbacks
from commtrace.recorder.terminate_handler import add_terminate_handler, remove_terminate_handler
from commtrace.schema import FATAL
from commtrace.session.flusher import Flusher
from commtrace.session.lacking import lacking
from commtrace.session.output import Output
from commtrace.settings import settings_of
from commtrace.tracefile import Trace, join, joined_segments, parse_spool, write_trace
from commtrace.tracefile.destinations import Memory, Store
from commtrace.units import counted
from commtrace.views.cells import with_cells
from commtrace.views.views import Views

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from commtrace.analyze import Frames
    from commtrace.views.table import Table

_GRACE_S = 0.1


class Recording(Views, Decorator):
    """Recording of everything between entering and leaving it; created by `record`.

    It may be entered again: a nested entry changes nothing, a later entry continues where it
    stopped (a recording written to a file is closed for good). Recordings may overlap; each keeps
    everything that happens while it is on. Operators are recorded on the thread that entered it,
    communication on all threads.
    """

    of_process: ClassVar[Recording | None] = None
    """The recording that `commtrace run` or `commtrace record` began; others add to it."""

    def __init__(self, store: Store, options: ProcessOptions) -> None:
        self._store = store
        self._options = options
        self._depth = 0
        self._is_over = False
        self._has_begun = False
        # Set by `_begin`.
        self._output: Output
        self._flusher: Flusher
        self._listening: Listening
        self._pid: int

    def __repr__(self) -> str:
        path = getattr(self._store, "path", None) or getattr(self._store, "folder", None)
        where = f"to {visible(str(path))}" if path else "in memory"
        return f"<commtrace.Recording {where}, {self._state()}, detail {self._options.detail}>"

    def _state(self) -> str:
        """Return the state of the recording and its number of calls."""
        if not self._has_begun:
            return "not begun"
        rank, num_calls = self._output.facts.rank, self._output.buffer.num_calls
        state = "on" if self._depth else "written" if self._is_over else "paused"
        return f"{state}, {counted(num_calls, 'call')} of rank {rank}"

    def _recreate_cm(self) -> Recording:
        """Return the recording for a call of a decorated function."""
        if not self._has_begun or isinstance(self._store, Memory):
            return self
        return Recording(self._store, self._options)

    def __enter__(self) -> Recording:
        """Start or continue recording."""
        if self._is_over:
            raise RecordingError(
                "cannot continue this recording",
                why="its file has been written",
                attempt="create another with commtrace.record(...)",
            )
        if not self._depth:
            self._begin()
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object
    ) -> None:
        """Stop recording; calls still in progress are written as they are."""
        self._depth -= 1
        if self._depth or self._pid != os.getpid():  # a forked child does not belong to it
            return
        if error is not None and is_failure(error):
            self._output.buffer.add_host_event(note_of_error(FATAL, error))
        failures = self._end()
        lacks = lacking(failures, self._output.buffer.num_dropped) if failures else ""
        if lacks and self is Recording.of_process:
            sys.stderr.write(f"commtrace: rank {self.rank}: {lacks}\n")
        elif lacks and kind is None:
            warnings.warn(lacks, RuntimeWarning, stacklevel=2)

    def _begin(self) -> None:
        again = self._has_begun
        if not again:
            self._output = Output(self._store, self._options)
            self._pid, self._has_begun = os.getpid(), True
        self._listening = listen(self._output.buffer, again=again)
        if self._options.detail == "op":
            self._listening.record_operators(self._output.facts.rank)
        if self._options.values == "op":
            self._listening.observe_results()
        if isinstance(self._output.buffer, SampledBuffer):
            self._output.buffer.report_by(self._listening)
        self._flusher = Flusher(self._flush_and_beat)
        if self._store.spool is not None:
            add_terminate_handler(self._output.flush)
            self._output.answer_dumps(self._store.spool)
        _open.add(self)
        if self is not Recording.of_process:
            self._begin_steps()

    def _end(self) -> Failures:
        """Write the rest and return the failures, which must not make the program fail."""
        _open.discard(self)
        OBSERVER.step_ends()
        if self._store.spool is not None:
            remove_terminate_handler(self._output.flush)
        self._listening.stop()
        failures = Failures()
        failures.extend(RECORDER.failures)
        failures.extend(self._flusher.stop())
        self._output.end_dumps()
        self._end_steps()
        self._output.buffer.end_found_steps()
        # A backend may report a call that is complete a moment later, from a thread of its own.
        self._output.buffer.await_ends(_GRACE_S, RECORDER.pending.query_devices)
        # A backend's thread that needs the interpreter during its shutdown aborts the process.
        if not RECORDER.buffers:
            await_callbacks(_GRACE_S)
        self._is_over = not isinstance(self._store, Memory)
        for part in self._output.last_parts(failures):
            try:
                part()
            except (OSError, TraceError) as error:
                failures.append(error)
        return failures

    def end_at_once(self, frame: FrameType) -> None:
        """Write the rest and close the recording, of a process that calls `os._exit` in a frame."""
        if self._depth:
            HOST_EVENTS.endings.left(frame)
            for part in self._output.last_parts(Failures()):
                with contextlib.suppress(OSError, TraceError):
                    part()

    def flush_at_once(self, frame: FrameType) -> None:
        """Write new data of a process that may end in a frame without exit handlers."""
        if self._depth:
            with contextlib.suppress(OSError, TraceError):
                self._output.flush()

    def _flush_and_beat(self) -> None:
        HOST_EVENTS.poll()
        try:
            self._output.flush_once()
        finally:
            HOST_EVENTS.rest()

    @classmethod
    def in_progress(cls) -> Recording | None:
        """Return the recording of the process, or else one that is on; None if nothing is recorded.

        A library adds its steps and regions to it, instead of recording once more.
        """
        return next(iter(_open), None) if cls.of_process is None else cls.of_process

    @property
    def path(self) -> Path | None:
        """The run file, or the folder of the run; None in memory, and under `commtrace run`."""
        return getattr(self._store, "path", None)

    @property
    def spools(self) -> Path | None:
        """The folder to which ranks write while the recording is on; None in memory."""
        return None if self._store.spool is None else self._store.spool.parent

    @property
    def num_steps(self) -> int:
        """Number of steps so far."""
        return self._output.buffer.num_steps

    @contextlib.contextmanager
    def steps(self) -> Iterator[None]:
        """Begin the first step, and end the last, of a recording that is on for longer."""
        self._begin_steps()
        try:
            yield
        finally:
            self._end_steps()

    def _begin_steps(self) -> None:
        """Begin a step, also in the recording of `commtrace run`, which has none before."""
        self._output.buffer.begin_steps()
        if Recording.of_process is not None:
            Recording.of_process._output.buffer.begin_steps()

    def _end_steps(self) -> None:
        self._output.buffer.end_steps(self._output.facts.rank)
        if Recording.of_process is not None and len(RECORDER.buffers) == 1:
            Recording.of_process._output.buffer.end_steps(self._output.facts.rank)

    def step(self) -> None:
        """End the current step and begin the next, here and in enclosing recordings.

        Raises:
            RecordingError: the recording is not on.
        """
        if not self._depth:
            raise RecordingError("there is no step to end", why="the recording is not on")
        OBSERVER.step_ends()
        own = self._listening.sink
        for sink in RECORDER.buffers:
            if sink.rank in (None, self._output.buffer.rank):
                sink.end_step(self._output.facts.rank)
            # Sinks are in the order of entering, so the rest belongs to inner recordings.
            if sink is own:
                break
        RECORDER.step_began()

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
        """Keep the fingerprint of a tensor, such as the loss, under a name.

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
        """Declare the layout of plain tensors, which are then compared like distributed tensors.

        Args:
            target: a module, for its outputs, or a parameter, for its values, gradients and states.
                Sharded dimensions are divided evenly between ranks.
            mesh: the mesh.
            placements: a placement for each of its axes, of dtensor_core or of torch.
            gradient: placements of the gradients of a module's outputs. By default they are sharded
                for sharded outputs, replicated for partial sums, and unknown for replicas.

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
        return self._output.facts.rank

    @property
    def is_on(self) -> bool:
        """True while the recording is on."""
        return bool(self._depth)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Discard everything that happens during the body, on any thread."""
        rank = self._output.buffer.rank
        self._set_rank(NO_RANK)
        try:
            yield
        finally:
            self._set_rank(rank)

    def _set_rank(self, rank: int | None) -> None:
        self._output.buffer.rank = rank
        ranks_changed()

    def is_heard(self) -> bool:
        """Return whether calls are recorded now, tested with a call without peers."""
        return self.is_on and is_heard(self._listening.sink)

    def trace(self) -> Trace:
        """Return the trace of this rank so far."""
        if not self._has_begun:
            raise RecordingError(
                "there is no trace yet",
                why="the recording has not started",
                attempt="enter it with a `with` statement first",
            )
        if self._depth:
            self._output.flush()
        return join(joined_segments(map(parse_spool, self._output.buffer.contents())))

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
        if self._has_begun and not self._is_over:
            RECORDER.groups.learn_axes()
            self._output.buffer.flush()

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


_open: set[Recording] = set()


@atexit.register
def _end_open_recordings() -> None:
    """End recordings that are still on when the program exits inside of them."""
    HOST_EVENTS.endings.leaving()
    for recording in list(_open):
        recording._depth = 1
        recording.__exit__(None)
