"""Dispatch mode that records operators: a span each, on distributed and on local tensors.

An operator on distributed tensors is a span of level `dtensor`; the operators that it runs on local
tensors are spans of level `local` inside it. Communication operators are not spans but calls
(`kernels`), which know their enclosing span. A mode belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from commtrace.recorder.events.marks import NO_ORIGIN
from commtrace.recorder.interception.kernels import DispatcherKernel, keys_in, operator_named
from commtrace.recorder.interception.receiver import OperatorReceiver
from commtrace.recorder.interception.signatures import SIGNATURES, WAIT
from commtrace.recorder.module_place import ModuleCall
from commtrace.recorder.operator_kinds import DTENSOR, LOCAL, OperatorKind, OperatorPlace
from commtrace.recorder.thread_state import CURRENT, Operators, ThreadState
from commtrace.torch_internals.autograd import current_graph_task_id, current_node
from commtrace.torch_internals.dispatcher import (
    OpOverload,
    TorchDispatchMode,
    num_modes,
    pop_mode,
    push_mode,
)

_PASSED_ON = frozenset({"profiler", *(name.partition("::")[0] for name in SIGNATURES)})
"""Namespaces of operators that compute nothing: communication and profiler marks."""

_WAIT = operator_named(WAIT)
_MAX_RUNNERS = 1 << 12
_MAX_KNOWN = 64
_ANY_NODE = 1 << 64
"""Bound on the numbers of autograd nodes."""


class OperatorMode(TorchDispatchMode):
    """Reports each operator of the thread on which it was entered to the receiver."""

    supports_higher_order_operators = True

    def __init__(
        self, receiver: OperatorReceiver, rank: int, kernels: Mapping[int, DispatcherKernel]
    ) -> None:
        super().__init__()
        self.receiver = receiver
        self.kernels = kernels
        self.rank = rank
        self.report_to_sinks()

    def report_to_sinks(self) -> None:
        """Report to the sinks that the receiver has now."""
        self.keep = self.receiver.span_keepers[self.rank]
        self.next_number = self.receiver.op_numbers.__next__
        self.times = self.receiver.data_times

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
        operators = CURRENT.operators
        outer_call, task = operators.modules.innermost, current_graph_task_id()
        where = operators.where
        if (
            task != where.task
            or outer_call is not where.outer_call
            or (
                task >= 0
                and (
                    (node := current_node()) is None
                    or not where.made_from <= node._sequence_nr() < where.made_until
                )
            )
        ):
            where = self._find_where(operators, outer_call, task)
        runner = _runners[types]
        if runner is not None:
            if operators.is_declining:
                operators.is_declining = False
                return NotImplemented
            kind = where.on_dtensors.get(id(func))
        else:
            kind = where.local.get(id(func))
        if kind is None:
            # Passing on is all that is left: to the kernel, unless a class or a mode comes first.
            kernel = self.kernels.get(id(func))
            if kernel is not None and not types and not num_modes():
                keys = keys_in(args)
                if keys is not None:
                    return kernel(keys, *args, **kwargs) if kwargs else kernel(keys, *args)
            if _is_passed_on(func):
                result = func(*args, **kwargs) if kwargs else func(*args)
                if types and func is _WAIT:
                    self.times.waited(args[0], result)
                return result
            kind = where.learn(func, LOCAL if runner is None else DTENSOR)
        outer, call, number = operators.span, where.call, self.next_number()
        if runner is None:
            operators.span = (number, call, kind, None, args, outer)
            begin = now()
            try:
                # `_op` saves the operator's own `__call__`, a Python function.
                result = func._op(*args, **kwargs) if kwargs else func._op(*args)
            except BaseException:
                self.keep((number, outer[0], begin, now() - begin, call, kind))
                operators.span = outer
                raise
            end = now()
            operators.span = outer
            if kind.computes:
                mark = number, end, NO_ORIGIN
                kind = self.times.ran(kind, args, kwargs, result, begin, mark)
            self.keep((number, outer[0], begin, end - begin, call, kind))
            return result
        operators.span = (number, call, kind, self, args, outer)
        begin = now()
        try:
            return runner(func, types, args, kwargs)
        finally:
            self.keep((number, outer[0], begin, now() - begin, call, kind))
            operators.span = outer

    def _find_where(
        self, operators: Operators, outer_call: ModuleCall | None, task: int
    ) -> OperatorPlace:
        """Return where an operator runs, and until when others run there, too."""
        made_from = made_until = 0
        if task < 0 and outer_call is not None:
            phase, call = FORWARD, outer_call
        else:
            phase, call, made_from, made_until = self._locate(CURRENT.state, outer_call, task)
        place = call[0] if call else None
        where, before = None, operators.where
        # Not `NOWHERE`, so that the thread is still in the same regions.
        if phase is before.phase:
            where = before.nearby.get(place)
        if where is None:
            state = CURRENT.state
            where = operators.kinds.where(self.rank, phase, state.regions, place, state.native_id)
        where.call, where.outer_call, where.task = call, outer_call, task
        where.made_from, where.made_until = made_from, made_until
        operators.where = where
        return where

    def _locate(
        self, state: ThreadState, call: ModuleCall | None, task: int
    ) -> tuple[str, ModuleCall | None, int, int]:
        """Return phase and module call as `locator` defines them, without walking the stack.

        Also return the interval of the autograd nodes to which the same applies.
        """
        optimizer = state.optimizer
        if task < 0:
            return OPTIMIZER if optimizer.depth else OTHER, None, 0, 0
        backward = state.backward
        if backward.task != task:
            begin_backward(state, task)
        if call is not None and call is not backward.outer_module_call:
            return RECOMPUTE, call, 0, _ANY_NODE
        phase = BACKWARD
        if optimizer.depth and optimizer.task == task:
            phase = OPTIMIZER
        node = current_node()
        if node is None:
            return phase, None, 0, 0
        if not backward.made_from <= node._sequence_nr() < backward.made_until:
            call = self.receiver.locator.call_of_node(node, state)
            if call is not backward.made_by:
                return phase, call, 0, 0
        return phase, backward.made_by, backward.made_from, backward.made_until


def run_local(op: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the local part of distributed operator `op`: usually a single operator, in C++."""
    parent, call, kind, mode, _, _ = CURRENT.operators.span
    if mode is None:
        return function(*args, **kwargs)
    local = kind.local if kind.function is function else _learn_function(kind, op, function)
    if local is not None:
        number = mode.next_number()
        begin = now()
        try:
            result = function(*args, **kwargs) if kwargs else function(*args)
        except BaseException:
            mode.keep((number, parent, begin, now() - begin, call, local))
            raise
        end = now()
        if local.computes:
            mark = number, end, NO_ORIGIN
            local = mode.times.ran(local, args, kwargs, result, begin, mark)
        mode.keep((number, parent, begin, end - begin, call, local))
        return result
    push_mode(mode)
    try:
        return function(*args, **kwargs)
    finally:
        pop_mode(None)


def _learn_function(
    kind: OperatorKind, op: Any, function: Callable[..., Any]
) -> OperatorKind | None:
    """Note which function is the local part of an operator; return the kind of what it runs.

    None if it is not a single operator.
    """
    known = kind.known
    if function in known:  # as of views of several shapes in one module
        local = known[function]
    else:
        runs = op if type(function) is BuiltinFunctionType else getattr(function, "runs", None)
        where = kind.where
        local = None
        if runs is not None:
            local = where.local.get(id(runs)) or where.learn(runs, LOCAL)
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[function] = local
    kind.local, kind.function = local, function
    return local


def _run_below(op: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Run a tensor subclass's operator below the mode, which then sees its local operators."""
    operators = CURRENT.operators
    number, call, kind, mode, _, outer = operators.span
    # No mode: dtensor_core's operators, if it runs any, are none of its own.
    operators.span = (number, call, kind, None, args, outer)
    push_mode(mode)
    try:
        operators.is_declining = True
        return op(*args, **kwargs) if kwargs else op(*args)
    finally:
        # Still set if the operator raised before it got to the mode.
        operators.is_declining = False
        pop_mode(None)


class _Runners(dict[tuple[type, ...], Any]):
    """Runners of the operators on tensors of some classes, whose local operators are seen.

    The first distributed class decides: it is the class's own if that calls `run_local`, otherwise
    `_run_below`. None if no class is distributed.
    """

    def __missing__(self, types: tuple[type, ...]) -> Any:
        runner = None
        for cls in types:
            if hasattr(cls, "placements") and hasattr(cls, "device_mesh"):
                set_runner(run_local)
                calls_run_local = cls.__module__.partition(".")[0] == PACKAGE
                runner = cls.__torch_dispatch__ if calls_run_local else _run_below
                break
        if len(self) >= _MAX_RUNNERS:
            self.clear()
        self[types] = runner
        return runner


_runners = _Runners()


def _is_passed_on(func: Any) -> bool:
    """Return whether an operator is passed on unrecorded (communication, higher-order)."""
    return not isinstance(func, OpOverload) or func.namespace in _PASSED_ON
