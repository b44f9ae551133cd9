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
from commtrace.recorder.interception.receiver import OperatorReceiver
from commtrace.recorder.interception.signatures import SIGNATURES
from commtrace.recorder.module_place import ModuleCall
from commtrace.recorder.operator_kinds import Where
from commtrace.recorder.thread_state import CURRENT, NO_LOCAL, Operators, ThreadState
from commtrace.torch_internals.autograd import current_graph_task_id, current_node
from commtrace.torch_internals.dispatcher import OpOverload, TorchDispatchMode, pop_mode, push_mode

_PASSED_ON = frozenset({"profiler", *(name.partition("::")[0] for name in SIGNATURES)})
"""Namespaces of operators that compute nothing: communication and profiler marks."""

_MAX_KNOWN = 1 << 16
_recorded: set[int] = set()
_silent: set[int] = set()
_known_operators: list[Any] = []
"""Operators known by identity, since hashing one runs Python code; the list keeps them alive."""


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
        # Each operator pays for each line here. All that alike operators share is found in the
        # dictionaries of `where`; only numbers are kept of each, and written later (see `Buffer`).
        state = CURRENT.state
        operators = state.operators
        runner = None
        if types:
            if operators.is_declining:
                operators.is_declining = False
                return NotImplemented
            runner = _runners.get(types, _UNKNOWN)
            if runner is _UNKNOWN:
                runner = _runner_of(types)
        if id(func) not in _recorded and _is_passed_on(func):
            return func(*args, **kwargs) if kwargs else func(*args)
        call, task, backward = state.modules.innermost, current_graph_task_id(), state.backward
        if task < 0 and call is not None:
            phase = FORWARD
        # The usual case in a backward pass: a node that was made with the one before.
        elif (
            backward.task == task
            and (call is None or call is backward.outer_module_call)
            and not state.optimizer.depth
            and (node := current_node()) is not None
            and backward.made_from <= node._sequence_nr() < backward.made_until
        ):
            phase, call = BACKWARD, backward.made_by
        else:
            phase, call = self._locate(state, call, task)
        where = operators.where
        if (
            where.call is not call
            or where.phase is not phase
            or where.regions is not state.regions
            or where.rank is not self.rank
        ):
            where = self._where(state, phase, call)
        receiver, outer = self.receiver, operators.span
        # Without a lock: nothing between these two lines lets another thread run.
        number = receiver.num_ops
        receiver.num_ops = number + 1
        if runner is None:
            operators.span = (number, func, outer[2], None)
            begin = now()
            try:
                # `_op` saves the operator's own `__call__`, a Python function.
                return func._op(*args, **kwargs) if kwargs else func._op(*args)
            finally:
                length = now() - begin
                operators.span = outer
                receiver.span_keepers[self.rank]((
                    number, outer[0], begin, length, -1 if call is None else call[1],
                    where.local.get(id(func)) or where.learn_local(func), -1, -1, -1, (),
                ))  # fmt: skip
        last_local, operators.last_local = operators.last_local, NO_LOCAL
        operators.span = (number, func, func, None if runner is _BELOW_MODE else self)
        begin = now()
        try:
            if runner is _BELOW_MODE:
                return self._run_below(func, args, kwargs or {}, operators)
            return runner(func, types, args, kwargs)
        finally:
            length = now() - begin
            operators.span = outer
            local_number, local, local_begin, local_length = operators.last_local
            operators.last_local = last_local
            kind = where.on_dtensors.get((id(func), id(local)))
            receiver.span_keepers[self.rank]((
                number, outer[0], begin, length, -1 if call is None else call[1],
                kind or where.learn_on_dtensors(func, local), local_number, local_begin,
                local_length, _layouts(args) if receiver.wants_layouts else (),
            ))  # fmt: skip

    def _where(self, state: ThreadState, phase: str, call: ModuleCall | None) -> Where:
        """Return where an operator runs, from now on the thread's `where`."""
        operators, regions = state.operators, state.regions
        place = call[0] if call else None
        where = operators.kinds.where(self.rank, phase, regions, place, state.native_id)
        # Compared by identity, for each operator.
        where.rank, where.regions, where.call = self.rank, regions, call
        operators.where = where
        return where

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
        phase, call = self._locate(state, state.modules.innermost, current_graph_task_id())
        where = self._where(state, phase, call)
        number, op, begin, length = state.operators.last_local
        self.receiver.span_keepers[self.rank]((
            number, state.operators.span[0], begin, length, -1 if call is None else call[1],
            where.local.get(id(op)) or where.learn_local(op), -1, -1, -1, (),
        ))  # fmt: skip

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
    operators = CURRENT.operators
    mode: OperatorMode | None = operators.span[3]
    if mode is None:
        return function(*args, **kwargs)
    runs = op if type(function) is BuiltinFunctionType else getattr(function, "runs", None)
    if runs is not None:
        if operators.last_local is not NO_LOCAL:
            mode.keep_last_local(CURRENT.state)
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


_BELOW_MODE, _UNKNOWN = object(), object()
_runners: dict[tuple[type, ...], Any] = {}
"""Runners of the operators on tensors of some classes, whose local operators are seen: the first
class that is distributed, if it calls `run_local`, otherwise below the mode. None if none is.
"""
_distributed: set[type] = set()
"""Classes that are distributed."""


def _runner_of(types: tuple[type, ...]) -> Any:
    runner = None
    for cls in types:
        if hasattr(cls, "placements") and hasattr(cls, "device_mesh"):
            _distributed.add(cls)
            set_runner(run_local)
            calls_run_local = cls.__module__.partition(".")[0] == PACKAGE
            runner = cls.__torch_dispatch__ if calls_run_local else _BELOW_MODE
            break
    _runners[types] = runner
    return runner


def _layouts(args: Any) -> tuple[Any, ...]:
    """Return shape, placements and mesh of the distributed arguments, except those in lists."""
    return tuple(
        [(arg.shape, arg.placements, arg.device_mesh) for arg in args if type(arg) in _distributed]
    )


def _is_passed_on(func: Any) -> bool:
    """Return whether an operator is passed on unrecorded (communication, higher-order)."""
    if id(func) in _silent:
        return True
    is_silent = not isinstance(func, OpOverload) or func.namespace in _PASSED_ON
    if len(_known_operators) >= _MAX_KNOWN:  # programs may make operators without end
        for known in (_recorded, _silent, _known_operators):
            known.clear()
    _known_operators.append(func)
    (_silent if is_silent else _recorded).add(id(func))
    return is_silent
