"""What each thread is doing: one object per thread, read and written by all parts of the recorder.

A thread's state is reached in one step (`HERE.state`), since the cost of a thread-local lookup is
what most of the recorder's work is made of.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commtrace.recorder.calls import Call
    from commtrace.recorder.modules import ModuleCall
    from commtrace.recorder.operators import OperatorMode


_NO_NODE = (-1, -1)


class ThreadState:
    """The state of one thread.

    `module_call` is the innermost module call in progress. `mark_seqs` and `mark_calls` say which
    module call made the autograd nodes from a sequence number on (see `modules`). `op_id` and `op`
    are the innermost operator span, `dtensor_op` the innermost one on distributed tensors, and
    `is_passing` asks the dispatch mode to decline one operator; `looking` is the mode that wants
    to see what an operator on distributed tensors runs, with the phase and the module call, and
    `inner` the latest that it ran (number, operator, start, duration), which is kept with it.
    `node` is the autograd node (task, sequence number) whose operators came last, `node_call` the
    module call that it belongs to. `optimizer_depth` counts the optimizer steps in progress, the
    innermost of which began in the autograd task `optimizer_task`.
    `functional` collects the calls that the functional collective in progress, `functional_op`, has
    issued, and `reduce_op` is how it reduces; `num_issued` counts all calls. `last` holds the
    handle of the newest call until Python has it too.
    """

    __slots__ = (
        "__weakref__",
        "dtensor_op",
        "functional",
        "functional_op",
        "has_operator_mode",
        "inner",
        "is_passing",
        "last",
        "looking",
        "mark_calls",
        "mark_seqs",
        "module_call",
        "native_id",
        "node",
        "node_call",
        "num_issued",
        "op",
        "op_id",
        "optimizer_depth",
        "optimizer_task",
        "reduce_op",
        "regions",
    )

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.module_call: ModuleCall | None = None
        self.mark_seqs: list[int] = []
        self.mark_calls: list[ModuleCall | None] = []
        self.op_id = -1
        self.op: Any = None
        self.dtensor_op: Any = None
        self.functional: list[Call] | None = None
        self.functional_op = ""
        self.reduce_op = ""
        self.num_issued = 0
        self.last: Any = None
        self.regions: tuple[str, ...] = ()
        self.optimizer_depth = 0
        self.optimizer_task = -1
        self.is_passing = False
        self.looking: tuple[OperatorMode, str, ModuleCall | None] | None = None
        self.node: tuple[int, int] = _NO_NODE
        self.node_call: ModuleCall | None = None
        self.inner: tuple[int, Any, int, int] | None = None
        self.has_operator_mode = False


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
        state.node, state.node_call = _NO_NODE, None
