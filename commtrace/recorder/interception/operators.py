"""Dispatch mode that records operators: one span each, on distributed and on local tensors.

An operator on distributed tensors is a span of level `dtensor`; the operators that it runs on local
tensors are spans of level `local` inside it. Communication operators are not spans but calls
(`kernels`), which know their enclosing span. A mode belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from commtrace.recorder.attribution.backward_passes import begin_backward
from commtrace.recorder.bridge import PACKAGE, set_runner
from commtrace.recorder.clock import now
from commtrace.recorder.events.location import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
)
from commtrace.recorder.events.sink import DTENSOR, LOCAL
from commtrace.recorder.interception.receiver import OperatorReceiver
from commtrace.recorder.interception.signatures import SIGNATURES
from commtrace.recorder.module_place import ModuleCall
from commtrace.recorder.thread_state import CURRENT, Operators, ThreadState
from commtrace.torch_internals.autograd import current_graph_task_id, current_node
from commtrace.torch_internals.dispatcher import OpOverload, TorchDispatchMode, pop_mode, push_mode

_PASSED_ON = frozenset({"profiler", *(name.partition("::")[0] for name in SIGNATURES)})
"""Namespaces of operators that compute nothing: communication and profiler marks."""

_is_silent: dict[int, bool] = {}
_known_operators: list[Any] = []
"""Operators keyed by identity, since hashing one runs Python code; the list keeps them alive."""


class OperatorMode(TorchDispatchMode):
    """Reports each operator of the thread on which it was entered to the receiver."""

    supports_higher_order_operators = True

    def __init__(self, receiver: OperatorReceiver, rank: int) -> None:
        super().__init__()
        self.receiver = receiver
        self.rank = rank

    @property
    def sees_groups(self) -> bool:
        """True if collectives may be called on groups directly, without functional operators."""
        return not self.receiver.wants_layouts

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled functions stay compiled, and their operators go unseen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = CURRENT.state
        operators = state.operators
        runner = None
        if types:
            if operators.is_declining:
                operators.is_declining = False
                return NotImplemented
            runner = _runners.get(types[0]) if len(types) == 1 else None
            if runner is None:
                runner = _runner_of(types)
        silent = _is_silent.get(id(func))
        if _learn(func) if silent is None else silent:
            return func(*args, **kwargs) if kwargs else func(*args)
        receiver = self.receiver
        call, task = state.modules.innermost, current_graph_task_id()
        if task < 0 and call is not None:
            phase = FORWARD
        else:
            phase, call = self._locate(state, call, task)
        # Without a lock: nothing between these two lines lets another thread run.
        number = receiver.num_ops
        receiver.num_ops = number + 1
        parent, op = operators.span_id, operators.innermost
        operators.span_id, operators.innermost = number, func
        if runner is None:
            begin = now()
            try:
                # `_op` saves the operator's own `__call__`, a Python function.
                return func._op(*args, **kwargs) if kwargs else func._op(*args)
            finally:
                duration = now() - begin
                operators.span_id, operators.innermost = parent, op
                span = (
                    self.rank, number, parent, func, LOCAL, begin, duration, phase,
                    state.regions, call, state.native_id, (), None,
                )  # fmt: skip
                for keep in receiver.span_keepers:
                    keep(span)
        before = operators.on_dtensors, operators.local_mode, operators.last_local
        operators.on_dtensors = func
        operators.local_mode = None if runner is _BELOW_MODE else self
        operators.last_local = None
        begin = now()
        try:
            if runner is _BELOW_MODE:
                return self._run_below(func, args, kwargs or {}, operators)
            return runner(func, types, args, kwargs)
        finally:
            duration = now() - begin
            span = (
                self.rank, number, parent, func, DTENSOR, begin, duration, phase, state.regions,
                call, state.native_id, _layouts(args) if receiver.wants_layouts else (),
                operators.last_local,
            )  # fmt: skip
            operators.span_id, operators.innermost = parent, op
            operators.on_dtensors, operators.local_mode, operators.last_local = before
            for keep in receiver.span_keepers:
                keep(span)

    def _run_below(self, op: Any, args: Any, kwargs: Any, operators: Operators) -> Any:
        """Run a tensor subclass's operator below this mode, which then sees its local operators."""
        push_mode(self)
        try:
            operators.is_declining = True
            return op(*args, **kwargs)
        finally:
            # Still set if the operator raised before it got to the mode.
            operators.is_declining = False
            pop_mode(None)

    def keep_last_local(self, state: ThreadState) -> None:
        """Record a local operator that was not the last one of its distributed operator."""
        operators = state.operators
        phase, call = self._locate(state, state.modules.innermost, current_graph_task_id())
        number, op, begin, duration = operators.last_local  # pyright: ignore[reportGeneralTypeIssues]
        span = (
            self.rank, number, operators.span_id, op, LOCAL, begin, duration, phase,
            state.regions, call, state.native_id, (), None,
        )  # fmt: skip
        for keep in self.receiver.span_keepers:
            keep(span)

    def _locate(
        self, state: ThreadState, call: ModuleCall | None, task: int
    ) -> tuple[str, ModuleCall | None]:
        """Return phase and module call as `locator` defines them, without walking the stack."""
        optimizer = state.optimizer
        if task < 0:
            if call is not None:
                return FORWARD, call
            return OPTIMIZER if optimizer.depth else OTHER, None
        backward = state.backward
        if backward.task != task:
            begin_backward(state, task)
        if call is not None and call is not backward.outer_module_call:
            return RECOMPUTE, call
        phase = BACKWARD
        if optimizer.depth and optimizer.task == task:
            phase = OPTIMIZER
        node = current_node()
        if node is None:
            return phase, None
        if backward.made_from <= node._sequence_nr() < backward.made_until:
            return phase, backward.made_by
        return phase, self.receiver.locator.call_of_node(node, state)


def run_local(op: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the local part of distributed operator `op`: usually a single operator, in C++.

    A single operator is kept in `last_local` until the operator that it belongs to has ended.
    """
    state = CURRENT.state
    operators = state.operators
    mode: OperatorMode | None = operators.local_mode
    if mode is None:
        return function(*args, **kwargs)
    runs = op if type(function) is BuiltinFunctionType else getattr(function, "runs", None)
    if runs is not None:
        if operators.last_local is not None:
            mode.keep_last_local(state)
        receiver = mode.receiver
        number = receiver.num_ops
        receiver.num_ops = number + 1
        begin = now()
        try:
            return function(*args, **kwargs) if kwargs else function(*args)
        finally:
            operators.last_local = (number, runs, begin, now() - begin)
    push_mode(mode)
    try:
        return function(*args, **kwargs)
    finally:
        pop_mode(None)


_BELOW_MODE = object()
_runners: dict[type, Any] = {}
"""Runners of the operators of a distributed tensor class whose local operators are seen: the class
itself, if it calls `run_local`, otherwise below the mode.
"""
_not_distributed: set[type] = set()
"""Classes that are not distributed."""


def _runner_of(types: Any) -> Any:
    for cls in types:
        if cls in _not_distributed:
            continue
        if cls not in _runners:
            if not (hasattr(cls, "placements") and hasattr(cls, "device_mesh")):
                _not_distributed.add(cls)
                continue
            set_runner(run_local)
            calls_run_local = cls.__module__.partition(".")[0] == PACKAGE
            _runners[cls] = cls.__torch_dispatch__ if calls_run_local else _BELOW_MODE
        return _runners[cls]
    return None


def _layouts(args: Any) -> tuple[Any, ...]:
    """Return shape, placements and mesh of the distributed arguments, except those in lists."""
    return tuple(
        [(arg.shape, arg.placements, arg.device_mesh) for arg in args if type(arg) in _runners]
    )


def _learn(func: Any) -> bool:
    """Return whether an operator is passed on unrecorded (communication, higher-order)."""
    silent = not isinstance(func, OpOverload) or func.namespace in _PASSED_ON
    _known_operators.append(func)
    _is_silent[id(func)] = silent
    return silent
