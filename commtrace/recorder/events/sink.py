"""Interface that recorded events are reported to, which buffers implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.observed_value import ObservedValue
from commtrace.recorder.events.operator_details import OperatorDetail
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.module_place import ModuleCall
from commtrace.recorder.operator_kinds import OperatorKind

NO_RANK = -1
"""Rank that does not exist; a sink of it keeps nothing."""
SELF_CHECK = -2
"""Rank of the call by which the recorder checks itself; buffers do not keep it."""

SpanKind = OperatorKind | OperatorDetail
"""Facts that an operator shares with others: its kind, or its kind with its details."""

OperatorSpan = tuple[int, int, int, int, ModuleCall | None, SpanKind]
"""A completed operator: its number, its enclosing operator's number, start, duration, module call
and kind. `ThreadState.operators.span` is still its own, with its arguments, unless it is a local
operator of the enclosing operator.
"""

SpanKeeper = Callable[[OperatorSpan], object]


class ValueSink(Protocol):
    """Interface that the observer of tensors reports to."""

    @property
    def rank(self) -> int | None:
        """The only rank whose tensors are wanted; None for all ranks."""
        ...

    def add_value(self, entry: ObservedValue) -> None:
        """Receive the fingerprint of a tensor, an `ObservedValue`."""
        ...


class HostSink(Protocol):
    """Interface that the observer of events on the host reports to."""

    @property
    def rank(self) -> int | None:
        """The only rank whose events are wanted; None for all ranks."""
        ...

    def add_host_event(self, event: HostEvent) -> None:
        """Receive an event."""
        ...


class Sink(Protocol):
    """Interface that the recorder reports to: calls when issued, operators when completed."""

    wants_spans: bool
    wants_layouts: bool
    wants_stacks: bool
    wants_tensor_identity: bool

    @property
    def rank(self) -> int | None:
        """The only rank whose events are wanted; None for all ranks."""
        ...

    @property
    def wants_details(self) -> bool:
        """True if details of operators are wanted in the step in progress."""
        ...

    @property
    def value_sink(self) -> ValueSink | None:
        """The receiver of fingerprints of tensors; None if they are not wanted."""
        ...

    @property
    def host_sink(self) -> HostSink | None:
        """The receiver of events on the host; None if they are not wanted."""
        ...

    def add(self, call: Call) -> None:
        """Receive a call."""
        ...

    def add_action(self, action: PipelineAction) -> None:
        """Receive a computation of a pipeline stage."""
        ...

    def add_later_wait(self, wait: LaterWait) -> None:
        """Receive a wait for a call that has been waited for before."""
        ...

    @property
    def keep_span(self) -> SpanKeeper:
        """Function that receives each completed operator of the wanted rank."""
        ...

    def end_step(self, rank: int) -> None:
        """Receive the end of a step."""
        ...

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call at time `at` that may end a step (see `steps`), all after `begin`."""
        ...


class SpanKeepers(dict[int, SpanKeeper]):
    """Functions that pass the operators of a rank to the sinks that want them, by rank.

    A function is looked up for each operator. Hence it is made at the first lookup. If a
    single sink wants the operators, it is that sink's own. `wants_spans` is true if any sink does.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        super().__init__()
        self._sinks = [each for each in sinks if each.wants_spans]
        self.wants_spans = bool(self._sinks)

    def __missing__(self, rank: int) -> SpanKeeper:
        keepers = [each.keep_span for each in self._sinks if each.rank in (None, rank)]
        self[rank] = keeper = keepers[0] if len(keepers) == 1 else _to_all(keepers)
        return keeper


def _to_all(keepers: Sequence[SpanKeeper]) -> SpanKeeper:
    def keep(span: OperatorSpan) -> None:
        for each in keepers:
            each(span)

    return keep
