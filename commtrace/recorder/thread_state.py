"""Per-thread state: one object per thread, read and written by all parts of the recorder.

It is reached in one step (`HERE.state`), since thread-local lookups dominate the recorder's cost.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from commtrace.recorder.calls import Call
    from commtrace.recorder.modules import ModuleCall
    from commtrace.recorder.operators import OperatorMode


Stack = tuple[tuple[CodeType, int], ...]
"""Frames, innermost first: code and line."""


class Task(NamedTuple):
    """A backward pass: the user's code that called it, and the instruction in that code.

    If the autograd engine runs it on a thread of its own, `caller` is the thread that called it, if
    known, with its stack and its regions.
    """

    code: CodeType | None = None
    instruction: int = -1
    caller: ThreadState | None = None
    stack: Stack = ()
    regions: tuple[str, ...] = ()


_NO_TASK = Task()


class ThreadState:
    """State of one thread.

    Attributes:
        module_call: the innermost module call in progress.
        mark_seqs: autograd sequence numbers from which `mark_calls` made the nodes (see `modules`).
        mark_calls: the module calls of `mark_seqs`.
        op_id: number of the innermost operator span.
        op: operator of the innermost span.
        dtensor_op: the innermost operator on distributed tensors.
        is_passing: asks the dispatch mode to decline one operator.
        looking: the mode that records the local operators of a distributed operator.
        inner: the latest local operator (number, operator, start, duration), recorded with its
            parent.
        made_by: the module call that made the autograd nodes looked up last, whose numbers are in
            [`made_from`, `made_until`).
        optimizer_depth: number of optimizer steps in progress.
        optimizer_task: the autograd task in which the innermost of them began.
        task: the autograd task last worked on by the thread.
        backward: description of that task.
        outside: the module call in which that task began.
        is_of_engine: the thread was started by C++.
        functional: calls issued by the functional collective in progress, `functional_op`.
        reduce_op: reduction of that collective.
        num_issued: number of calls issued by the thread.
        issued: operator of the newest call.
        unseen: calls that the function in progress waits for in C++.
        last: handle of the newest call, until Python holds it too.
    """

    __slots__ = (
        "__weakref__",
        "backward",
        "dtensor_op",
        "functional",
        "functional_op",
        "has_operator_mode",
        "ident",
        "inner",
        "is_of_engine",
        "is_passing",
        "issued",
        "last",
        "looking",
        "made_by",
        "made_from",
        "made_until",
        "mark_calls",
        "mark_seqs",
        "module_call",
        "native_id",
        "num_issued",
        "op",
        "op_id",
        "optimizer_depth",
        "optimizer_task",
        "outside",
        "reduce_op",
        "regions",
        "task",
        "unseen",
    )

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.ident = threading.get_ident()
        self.is_of_engine = not _is_started_in_python()
        self.module_call: ModuleCall | None = None
        self.mark_seqs: list[int] = []
        self.mark_calls: list[ModuleCall | None] = []
        self.op_id = -1
        self.op: Any = None
        self.dtensor_op: Any = None
        self.functional: list[Call] | None = None
        self.functional_op = ""
        self.unseen: list[Call] | None = None
        self.reduce_op = ""
        self.num_issued = 0
        self.issued = ""
        self.last: Any = None
        self.regions: tuple[str, ...] = ()
        self.optimizer_depth = 0
        self.optimizer_task = -1
        self.is_passing = False
        self.looking: OperatorMode | None = None
        self.made_from = self.made_until = 0
        self.made_by: ModuleCall | None = None
        self.inner: tuple[int, Any, int, int] | None = None
        self.has_operator_mode = False
        self.task = -1
        self.backward = _NO_TASK
        self.outside: ModuleCall | None = None


def _is_started_in_python() -> bool:
    """Return whether this is the main thread or one started by `threading`."""
    if threading.get_ident() == threading.main_thread().ident:
        return True
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == threading.__name__


_states: weakref.WeakSet[ThreadState] = weakref.WeakSet()


class _Here(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()
        _states.add(self.state)


HERE = _Here()


def forget_marks() -> None:
    """Drop the marks of module calls of all threads."""
    for state in list(_states):
        state.mark_seqs.clear()
        state.mark_calls.clear()
        state.made_from = state.made_until = 0
        state.made_by = None
        state.task, state.backward, state.outside = -1, _NO_TASK, None


def state_of_thread(ident: int) -> ThreadState | None:
    """Return the state of another thread; None if the recorder has not met it."""
    return next((state for state in list(_states) if state.ident == ident), None)
