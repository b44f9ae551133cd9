"""Per-thread state of the recorder, in parts that are read and written together.

`CURRENT` holds the state of the current thread. Thread-local lookups dominate the recorder's cost,
so each function does one and passes the result on.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import CodeType
from typing import Any, NamedTuple

from commtrace.recorder.caller_chain import CallerChain, CodePlace
from commtrace.recorder.module_place import ModuleCall
from commtrace.recorder.operator_kinds import DTENSOR, NOWHERE, OperatorKinds
from commtrace.recorder.run_delay import RunDelay

CallStack = tuple[tuple[CodeType, int], ...]
"""Frames, innermost first: code and line."""


class ModuleCalls:
    """Module calls of a thread.

    Attributes:
        innermost: the innermost call in progress.
        mark_seqs: autograd sequence numbers from which `mark_calls` made the nodes (see
            `attribution.modules`).
        mark_calls: the module calls of `mark_seqs`.
    """

    __slots__ = ("innermost", "mark_calls", "mark_seqs")

    def __init__(self) -> None:
        self.innermost: ModuleCall | None = None
        self.mark_seqs: list[int] = []
        self.mark_calls: list[ModuleCall | None] = []


RunningOperator = tuple[int, "ModuleCall | None", Any, Any, Any, Any]
"""An operator in progress: its number, module call, kind (`OperatorKind`), the mode that records
its local operators, or None, its positional arguments, and the span around it.
"""
NO_SPAN: RunningOperator = (-1, None, None, None, (), None)
"""The span outside of all operators."""


def operator_of(span: RunningOperator) -> Any:
    """Return the innermost operator on distributed tensors, or of any; None outside of all."""
    each: RunningOperator | None = span
    while each is not None and each[2] is not None:
        if each[2].level is DTENSOR:
            return each[2].op
        each = each[5]
    return None if span[2] is None else span[2].op


class Operators:
    """Operators of a thread, as its `OperatorMode` sees them.

    Attributes:
        span: the innermost operator in progress. One tuple, so that it is set, and set back, at
            once.
        where: where the latest operator ran; `NOWHERE` once the thread may be elsewhere, unless it
            is in another module call, autograd task or node, which is noticed.
        kinds: kinds of operators that have run.
        modules: the thread's module calls.
        has_mode: the thread has entered a mode.
        result_mode: the mode that the thread has entered to observe results, if any.
        is_declining: the mode must decline an operator, which then runs below it.
    """

    __slots__ = (
        "has_mode", "is_declining", "kinds", "modules", "result_mode", "span", "where",
    )  # fmt: skip

    def __init__(self, modules: ModuleCalls) -> None:
        self.modules = modules
        self.span = NO_SPAN
        self.has_mode = self.is_declining = False
        self.result_mode: Any = None
        self.forget_places()

    def forget_places(self) -> None:
        """Drop where operators ran."""
        self.moved()
        self.kinds = OperatorKinds()

    def moved(self) -> None:
        """Note that the next operator may run elsewhere."""
        self.where = NOWHERE


class Collectives:
    """Collectives that a thread issues.

    Attributes:
        functional_calls: calls issued by the functional collective in progress.
        functional_op: operator of that collective.
        functional_sent: tensors sent by that collective; c10d may be given copies.
        reduce_op: reduction of that collective.
        num_issued: number of calls issued by the thread.
        num_waits: number of its waits for calls.
        last_op: operator of the newest call.
        last_work: handle of the newest call, until Python has it too.
        awaited_in_cpp: calls that the function in progress waits for in C++.
        expert_rows: rows to each expert that the program states for its all-to-alls.
    """

    __slots__ = (
        "awaited_in_cpp", "expert_rows", "functional_calls", "functional_op", "functional_sent",
        "last_op", "last_work", "num_issued", "num_waits", "reduce_op",
    )  # fmt: skip

    def __init__(self) -> None:
        self.functional_calls: list[Any] | None = None
        self.functional_op = self.reduce_op = ""
        self.functional_sent: Any = None
        self.num_issued = self.num_waits = 0
        self.last_op = ""
        self.last_work: Any = None
        self.awaited_in_cpp: list[Any] | None = None
        self.expert_rows: tuple[int, ...] = ()

    def state_experts(self, rows: tuple[int, ...]) -> None:
        """Enter or leave code whose all-to-alls send these rows to each expert."""
        self.expert_rows = rows


class Caller(NamedTuple):
    """Code that called a backward pass, the instruction in it, and the user's frames around it.

    `via` is the place in an installed package between that code and the pass, if there is one.
    If the autograd engine runs the pass on a thread of its own, `thread` is the thread that called
    it, if known, with its stack and its regions.
    """

    code: CodeType | None = None
    instruction: int = -1
    thread: ThreadState | None = None
    stack: CallStack = ()
    regions: tuple[str, ...] = ()
    callers: CallerChain | None = None
    via: CodePlace | None = None


_NO_CALLER = Caller()


class BackwardPass:
    """Backward pass that a thread last worked on.

    Attributes:
        task: its autograd task; -1 if there was none.
        caller: the code that called it.
        outer_module_call: the module call in which it began.
        made_by: the module call that made the autograd nodes looked up last, whose numbers are in
            [`made_from`, `made_until`).
        position: the position of `made_until` among the thread's marks, which may have moved.
    """

    __slots__ = (
        "caller", "made_by", "made_from", "made_until", "outer_module_call", "position", "task",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begin(-1, _NO_CALLER, None)
        self.made_by: ModuleCall | None = None
        self.position = 0

    def begin(self, task: int, caller: Caller, outer_module_call: ModuleCall | None) -> None:
        """Note that the thread begins to work on a backward pass."""
        self.task = task
        self.caller = caller
        self.outer_module_call = outer_module_call
        # An empty interval: no node of this pass has been looked up yet.
        self.made_from = self.made_until = 0


class OptimizerSteps:
    """Optimizer steps of a thread: the number in progress, and the task of the innermost."""

    __slots__ = ("depth", "task")

    def __init__(self) -> None:
        self.depth = 0
        self.task = -1


class PipelinePart(NamedTuple):
    """Part of a pipeline schedule: stage, micro-batch, and `forward` or `backward`."""

    stage: int
    micro_batch: int
    direction: str


NO_PART = PipelinePart(-1, -1, "")
"""Part of a schedule that is not known, or outside of all."""


class ThreadState:
    """State of a thread.

    Attributes:
        native_id: its number in the operating system.
        ident: its number in Python.
        is_engine_thread: the thread was started by C++.
        regions: the user's regions, outermost first.
        pipeline_part: part of a pipeline schedule that the thread computes.
        run_delay: the time for which it had no core.
    """

    __slots__ = (
        "__weakref__", "backward", "collectives", "ident", "is_engine_thread", "modules",
        "native_id", "operators", "optimizer", "pipeline_part", "regions", "run_delay",
    )  # fmt: skip

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.ident = threading.get_ident()
        self.is_engine_thread = not _is_started_in_python()
        self.regions: tuple[str, ...] = ()
        self.pipeline_part = NO_PART
        self.modules = ModuleCalls()
        self.operators = Operators(self.modules)
        self.collectives = Collectives()
        self.backward = BackwardPass()
        self.optimizer = OptimizerSteps()
        self.run_delay = RunDelay()

    def set_regions(self, regions: tuple[str, ...]) -> None:
        """Enter or leave a region."""
        self.regions = regions
        self.operators.moved()

    def set_pipeline_part(self, part: PipelinePart) -> None:
        """Enter or leave a part of a pipeline schedule."""
        self.pipeline_part = part

    def forget_module_calls(self) -> None:
        """Drop the module calls of finished forward and backward passes."""
        self.modules.mark_seqs.clear()
        self.modules.mark_calls.clear()
        self.operators.forget_places()
        self.backward = BackwardPass()


def _is_started_in_python() -> bool:
    """Return whether this is the main thread or one started by `threading`."""
    if threading.get_ident() == threading.main_thread().ident:
        return True
    # The outermost frame of a thread of `threading` is in that module.
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == threading.__name__


# Weak, so that the state of a thread ends with it.
_states: weakref.WeakSet[ThreadState] = weakref.WeakSet()


class _Current(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()
        # Shortcuts for module calls and local operators, which save them a look-up.
        self.modules = self.state.modules
        self.operators = self.state.operators
        _states.add(self.state)


CURRENT = _Current()


def forget_module_calls() -> None:
    """Drop the module calls of finished passes in all threads."""
    # A copy, since threads may add themselves meanwhile.
    for state in list(_states):
        state.forget_module_calls()


def restart_run_delays() -> None:
    """Let the run delay of each thread count from its next call on."""
    for state in list(_states):
        state.run_delay.restart()


def state_of_thread(ident: int) -> ThreadState | None:
    """Return the state of another thread; None if the recorder has not met it."""
    return next((state for state in list(_states) if state.ident == ident), None)
