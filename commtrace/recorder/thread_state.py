"""What each thread is doing: one object per thread, read and written by all parts of the recorder.

A thread's state is reached in one step (`HERE.state`), since the cost of a thread-local lookup is
what most of the recorder's work is made of.
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
"""Frames, the innermost first: code and line."""


class Task(NamedTuple):
    """A backward pass: the user's code that called it, and the instruction that did.

    Where the autograd engine runs it on a thread of its own, also the thread that called it, if
    that is known, with its stack and its regions.
    """

    code: CodeType | None = None
    instruction: int = -1
    caller: ThreadState | None = None
    stack: Stack = ()
    regions: tuple[str, ...] = ()


_NO_TASK = Task()


class ThreadState:
    """The state of one thread.

    `module_call` is the innermost module call in progress. `mark_seqs` and `mark_calls` say which
    module call made the autograd nodes from a sequence number on (see `modules`). `op_id` and `op`
    are the innermost operator span, `dtensor_op` the innermost one on distributed tensors, and
    `is_passing` asks the dispatch mode to decline one operator; `looking` is the mode that wants
    to see what an operator on distributed tensors runs, and `inner` the latest that it ran (number,
    operator, start, duration), which is kept with it. `made_by` is the module call that made the
    autograd nodes with numbers from `made_from` to before `made_until`, where one was looked up
    last. `optimizer_depth` counts the optimizer steps in progress, the innermost of which began in
    the autograd task `optimizer_task`. `task` is the autograd task that was at work last on the
    thread, `backward` is what is known of it, and `outside` the module call that it was begun in;
    `is_of_engine` is true of threads that C++ has started.
    `functional` collects the calls that the functional collective in progress, `functional_op`, has
    issued, and `reduce_op` is how it reduces; `num_issued` counts all calls, `issued` is the
    operator of the newest. `unseen` collects those that the function in progress waits for in C++.
    `last` holds the handle of the newest call until Python has it too.
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
    """Whether this is the main thread, or one that `threading` has started."""
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
    """Drop what the threads have noted of module calls."""
    for state in list(_states):
        state.mark_seqs.clear()
        state.mark_calls.clear()
        state.made_from = state.made_until = 0
        state.made_by = None
        state.task, state.backward, state.outside = -1, _NO_TASK, None


def state_of_thread(ident: int) -> ThreadState | None:
    """The state of another thread; None of one that the recorder has not met."""
    return next((state for state in list(_states) if state.ident == ident), None)
