"""Interface that recorded events are reported to, which buffers implement."""

from __future__ import annotations

from typing import Any, Protocol

from commtrace.recorder.events.call import Call

NO_RANK = -1
"""Rank that does not exist; a sink of it keeps nothing."""
SELF_CHECK = -2
"""Rank of the call by which the recorder checks itself; buffers do not keep it."""
DTENSOR, LOCAL = "dtensor", "local"
"""Levels of operators."""


OperatorSpan = tuple[
    int, int, int, Any, str, int, int, str, tuple[str, ...], Any, int, tuple[Any, ...],
    "tuple[int, Any, int, int] | None",
]  # fmt: skip
"""One completed operator: rank, id, parent, operator, level, start, duration, phase, regions,
module call, thread, layouts of its distributed arguments (if a sink wants them), and the last local
operator that it ran, if it ended with one: id, operator, start, duration.
"""


class Sink(Protocol):
    """Interface that the recorder reports to: calls when issued, operators when completed."""

    wants_spans: bool
    wants_layouts: bool
    wants_stacks: bool
    wants_tensor_identity: bool

    @property
    def rank(self) -> int | None:
        """The only rank of which events are wanted; None for all ranks."""
        ...

    def add(self, call: Call) -> None:
        """Receive a call."""
        ...

    def keep_span(self, span: OperatorSpan) -> None:
        """Receive a completed operator."""
        ...

    def end_step(self, rank: int) -> None:
        """Receive the end of a step."""
        ...

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call at time `at` that may end a step (see `steps`), all after `begin`."""
        ...
