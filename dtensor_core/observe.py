"""Announcement of every collective, with its reason, to listeners and recorders.

`redistribute.execute` (and code built from its steps) announces a `Reason` around each collective.
`current()` returns the reason in force on the calling thread, for recorders that intercept the
collective. Listeners are called before anything is sent, and may refuse by raising. Nothing here
has a cost if no communication happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a collective about to be issued.

    Attributes:
        operator: The operator that needs the communication; "redistribute" for an explicit request.
        argument: The argument that it needs in another layout.
        source: The layout before the entire redistribution, as text.
        target: The layout after the entire redistribution, as text.
        step: The kind of this collective.
        axis: The mesh axis of this collective.
        payload_bytes: The payload of this collective on this rank.
        candidates: The layouts considered, with their cost in seconds; the first was chosen.
        seconds: The planner's estimate for this collective.
        note: Further detail of the reason.
        expert_rows: The rows that an all-to-all sends to each expert of the axis, if it sends them
            to experts.
    """

    operator: str
    argument: str
    source: str
    target: str
    step: str
    axis: str
    payload_bytes: int
    candidates: tuple[tuple[str, float], ...] = ()
    seconds: float = field(default=0.0, compare=False)
    note: str = ""
    expert_rows: tuple[int, ...] = field(default=(), compare=False)

    @property
    def sentence(self) -> str:
        """The reason as a sentence."""
        needs = f"needs {self.argument} " if self.argument else ""
        note = f" ({self.note})" if self.note else ""
        way = f"{self.source} -> {self.target}: {self.step} on {self.axis}"
        return f"{self.operator} {needs}{way}{note}"


Listener = Callable[[Reason], None]


WRITTEN = "written"
"""Stands for the argument where a written result is redistributed to its original layout."""


@dataclass(frozen=True, slots=True)
class Move:
    """An argument that an operator needs in another layout, with the planned steps.

    `candidates` are the layouts considered for the operator, as in `Reason`.
    """

    argument: str
    spec: Any
    steps: Sequence[Any]
    candidates: tuple[tuple[str, float], ...]


Runner = Callable[[Any, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]

runner: Runner | None = None
"""Runs the local function of an operator on DTensors, if a recorder has set it.

It receives the operator, the function (usually that operator in C++) and the arguments.
"""

Issuer = Callable[[str, Sequence[Any], Callable[..., Any], Sequence[Any]], Any]

issuer: Issuer | None = None
"""Issues collectives, if a recorder has set it to be notified instead of intercepting them.

It receives the corresponding operator of c10d with its first arguments, and the function to call
with its arguments. It must return what the function does: the handle of the collective.
"""

HarnessObserver = Callable[[int], AbstractContextManager[Callable[..., Any]]]

harness_observer: HarnessObserver | None = None
"""Observer of runs of the test harness, if set; receives the number of ranks.

The context is entered around the entire run. Its value is called on each rank with the function and
its arguments, and must return the function's result; ranks that are processes get a copy of it.
"""

Guard = Callable[[str, Sequence[Move]], None]


class _InForce(threading.local):
    reason: Reason | None = None


_in_force = _InForce()
_listeners: tuple[Listener, ...] = ()


def current() -> Reason | None:
    """Return the reason in force on this thread, or None."""
    return _in_force.reason


# A class, as a generator-based context takes several times as long, at every collective.
class announced:
    """Call the listeners, then keep `reason` in force while the body runs."""

    __slots__ = ("_before", "_reason")

    def __init__(self, reason: Reason) -> None:
        self._reason = reason

    def __enter__(self) -> None:
        for listener in _listeners:
            listener(self._reason)
        self._before = current()
        _in_force.reason = self._reason

    def __exit__(self, *_: object) -> None:
        _in_force.reason = self._before


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with each reason of this process while the body runs."""
    global _listeners
    # Replaced and not changed, since another thread may be calling the listeners.
    _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        remaining = list(_listeners)
        remaining.remove(listener)
        _listeners = tuple(remaining)


def observing_harness(world_size: int) -> AbstractContextManager[Callable[..., Any] | None]:
    """Return the context of a run of the test harness; its value is None without an observer."""
    return harness_observer(world_size) if harness_observer is not None else nullcontext()


class _Guards(threading.local):
    """The guards of a thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Guard | None] = []


_here = _Guards()
_guards: list[Guard | None] = []


@contextmanager
def guarding(guard: Guard | None) -> Iterator[None]:
    """Call `guard` with the planned redistributions of this thread before they run; it may raise.

    None lifts the enclosing guard. The innermost guard counts.
    """
    _guards.append(guard)
    _here.stack.append(guard)
    try:
        yield
    finally:
        _here.stack.pop()
        _guards.remove(guard)


def guard() -> Guard | None:
    """Return this thread's guard; a thread of autograd's uses the newest guard of any thread."""
    if not _guards:
        return None
    if _here.stack:
        return _here.stack[-1]
    # Python has a dummy for each thread that it did not start, as those of autograd's engine.
    is_of_autograd = isinstance(threading.current_thread(), threading._DummyThread)  # pyright: ignore
    return _guards[-1] if is_of_autograd else None
