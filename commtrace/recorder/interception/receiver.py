"""Interfaces that intercepted calls and operators are reported to; the recorder implements both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from commtrace.recorder.attribution.locator import Locator
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.data_times import DataTimes
from commtrace.recorder.events.signature import Signature
from commtrace.recorder.events.sink import Sink, SpanKeepers
from commtrace.recorder.interception.pending import PendingCalls
from commtrace.recorder.thread_state import ThreadState


class CallReceiver(Protocol):
    """Receiver of calls; it listens while it has buffers."""

    buffers: tuple[Sink, ...]
    pending: PendingCalls

    def issue(
        self,
        native_op: str,
        signature: Signature,
        args: Sequence[Any],
        frame: FrameType | None,
        state: ThreadState,
    ) -> Call | None:
        """Return the call about to be made; None if it is not recorded."""
        ...

    def raised(self, call: Call, error: BaseException, state: ThreadState) -> None:
        """Note that the operator of a call has raised."""
        ...

    def wait_raised(self, error: BaseException) -> None:
        """Note that the wait for a call has raised."""
        ...

    def runs_in_cpp(self, tensor: Any, group: Any) -> bool:
        """Return whether a functional collective runs no Python."""
        ...


class OperatorReceiver(Protocol):
    """Receiver of operators, which it numbers."""

    op_numbers: Iterator[int]
    data_times: DataTimes
    wants_layouts: bool
    span_keepers: SpanKeepers
    locator: Locator
