"""Buffer that keeps every Nth step, and the sink that takes its place in the other steps.

In a step that is not kept, the recorder reports to a `StandIn`, and operators are not recorded at
all. Calls are still intercepted, so that their numbers go on counting and match across ranks.

Steps that the program marks have their numbers; the first mark replaces the found steps (see
`sampling`). If a part of the step that it ends was skipped, that step does not count, and the fact
`partial_steps` lets readers drop its calls. Outside of steps, everything is kept until the first
step has begun, and nothing later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from commtrace.recorder.clock import now
from commtrace.recorder.events.buffer import NO_STEP, Buffer, Writer
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.numbering import Numbering
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.events.sampling import SampledSteps
from commtrace.recorder.events.sink import SELF_CHECK, OperatorSpan, Sink
from commtrace.tracefile import PARTIAL_STEPS


class Reporting(Protocol):
    """Connection to the recorder, whose sink can be replaced."""

    def report_to(self, sink: Sink) -> None:
        """Report to another sink from now on."""
        ...


class StandIn:
    """Sink in the place of a buffer while that keeps nothing; it counts the calls."""

    wants_spans = False
    wants_layouts = False
    wants_stacks = False
    wants_tensor_identity = False
    wants_details = False
    value_sink = None

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = self.host_sink = buffer
        self.num_calls = 0

    @property
    def rank(self) -> int | None:
        """The only rank whose events are wanted; None for all ranks."""
        return self._buffer.rank

    def add(self, call: Call) -> None:
        """Count a call that the buffer would have kept."""
        rank, wanted = call.request.group.rank, self._buffer.rank
        self.num_calls += rank == wanted or (wanted is None and rank != SELF_CHECK)

    def add_action(self, action: PipelineAction) -> None:
        """Ignore computations of pipeline stages."""

    def add_later_wait(self, wait: LaterWait) -> None:
        """Ignore further waits for a call."""

    def keep_span(self, span: OperatorSpan) -> None:
        """Ignore operators."""

    def end_step(self, rank: int) -> None:
        """Pass the end of a step on."""
        self._buffer.end_step(rank)

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Pass a call on that may end a step."""
        self._buffer.tick(source, thing, at, begin)


class SampledBuffer(Buffer):
    """Buffer that keeps steps 0, N, 2N, ..., with N = `every`."""

    def __init__(
        self,
        writer: Writer,
        *,
        every: int,
        epoch: int,
        numbering: Numbering,
        rank: int | None = None,
        max_calls: int | None = None,
        wants_spans: bool = False,
        wants_stacks: bool = False,
        wants_values: bool = False,
    ) -> None:
        super().__init__(
            writer,
            epoch=epoch,
            numbering=numbering,
            rank=rank,
            max_calls=max_calls,
            wants_spans=wants_spans,
            wants_stacks=wants_stacks,
            wants_values=wants_values,
        )
        self._found = self._sampled = SampledSteps(now(), epoch, every)
        self._every = every
        self._stand_in = StandIn(self)
        self._num_passed_before_step = 0
        self._reporting: Reporting | None = None
        self._is_marked = False
        self._is_keeping = True
        self._is_whole = True
        self._new_facts: dict[str, Any] = {}

    def report_by(self, reporting: Reporting) -> None:
        """Replace the sink of this connection, which has just begun, in steps that are skipped."""
        self._reporting = reporting
        if not self._is_keeping:
            reporting.report_to(self._stand_in)

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call that may end a step; ignored once the program has marked a step itself."""
        if not self._is_marked:
            self._sampled.tick(source, thing, at, begin)
            self._keep(self._sampled.is_kept)

    def flush(self, facts: Mapping[str, Any] | None = None, *, is_last: bool = False) -> None:
        """Write the entries collected so far; see `Buffer.flush`."""
        new, self._new_facts = self._new_facts, {}
        try:
            super().flush({**(facts or {}), **new}, is_last=is_last)
        except OSError:
            self._new_facts = {**new, **self._new_facts}
            raise

    def _set_step(self, step: int, begin: int) -> None:
        super()._set_step(step, begin)
        self._num_passed_before_step = self._stand_in.num_calls
        self._is_marked |= step > 0
        if self._is_marked:
            self._keep(step != NO_STEP and step % self._every == 0)
        self._is_whole = self._is_keeping

    def _has_calls(self) -> bool:
        return super()._has_calls() or self._stand_in.num_calls > self._num_passed_before_step

    def _keep_step(self, rank: int, end: int) -> None:
        if self._is_whole:
            super()._keep_step(rank, end)
        elif not self._is_marked:
            self._new_facts = {PARTIAL_STEPS: [self.step]}

    def _keep(self, is_keeping: bool) -> None:
        if is_keeping == self._is_keeping:
            return
        self._is_keeping = is_keeping
        self._is_whole &= is_keeping
        if self._reporting is not None:
            self._reporting.report_to(self if is_keeping else self._stand_in)
