"""Dispatch mode that records operators: one span each, on distributed and on local tensors.

An operator on distributed tensors is a span of level `dtensor`; the operators that it runs on local
tensors are spans of level `local` inside it. Communication operators are not spans but calls
(`intercept`), which know their enclosing span. A mode belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from commtrace.recorder.bridge import PACKAGE, let_run
from commtrace.recorder.buffer import DTENSOR, LOCAL
from commtrace.recorder.clock import now
from commtrace.recorder.locator import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    begin_task,
)
from commtrace.recorder.modules import ModuleCall
from commtrace.recorder.recorder import Recorder
from commtrace.recorder.signatures import SIGNATURES
from commtrace.recorder.thread_state import HERE, ThreadState

_PASSED_ON = frozenset({"profiler", *(name.partition("::")[0] for name in SIGNATURES)})
"""Namespaces of operators that compute nothing: communication and profiler marks."""

_push = torch._C._push_on_torch_dispatch_stack
_pop = torch._C._pop_torch_dispatch_stack
_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node

_is_silent: dict[int, bool] = {}
_known_operators: list[Any] = []
"""Operators keyed by identity, since hashing one runs Python code; the list keeps them alive."""


class OperatorMode(TorchDispatchMode):
    """Reports each operator of the thread on which it was entered to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder, rank: int) -> None:
        super().__init__()
        self.recorder = recorder
        self._rank = rank

    @property
    def sees_groups(self) -> bool:
        """True if collectives may be called on groups directly, without functional operators."""
        return not self.recorder.wants_layouts

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled functions stay compiled, and their operators go unseen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = HERE.state
        way = None
        if types:
            if state.is_passing:
                state.is_passing = False
                return NotImplemented
            way = _ways.get(types[0]) if len(types) == 1 else None
            if way is None:
                way = _way_of(types)
        silent = _is_silent.get(id(func))
        if _learn(func) if silent is None else silent:
            return func(*args, **kwargs) if kwargs else func(*args)
        recorder = self.recorder
        call, task = state.module_call, _task_id()
        if task < 0 and call is not None:
            phase = FORWARD
        else:
            phase, call = self._where(state, call, task)
        number = recorder.num_ops
        recorder.num_ops = number + 1
        parent, op = state.op_id, state.op
        state.op_id, state.op = number, func
        if way is None:
            begin = now()
            try:
                return func._op(*args, **kwargs) if kwargs else func._op(*args)
            finally:
                duration = now() - begin
                state.op_id, state.op = parent, op
                span = (
                    self._rank, number, parent, func, LOCAL, begin, duration, phase,
                    state.regions, call, state.native_id, (), None,
                )  # fmt: skip
                for keep in recorder.span_keepers:
                    keep(span)
        before = state.dtensor_op, state.looking, state.inner
        state.dtensor_op = func
        state.looking = None if way is _GIVING_WAY else self
        state.inner = None
        begin = now()
        try:
            if way is _GIVING_WAY:
                return self._give_way(func, args, kwargs or {}, state)
            return way(func, types, args, kwargs)
        finally:
            duration = now() - begin
            span = (
                self._rank, number, parent, func, DTENSOR, begin, duration, phase, state.regions,
                call, state.native_id, _layouts(args) if recorder.wants_layouts else (),
                state.inner,
            )  # fmt: skip
            state.op_id, state.op = parent, op
            state.dtensor_op, state.looking, state.inner = before
            for keep in recorder.span_keepers:
                keep(span)

    def _give_way(self, op: Any, args: Any, kwargs: Any, state: ThreadState) -> Any:
        """Run a tensor subclass's operator below this mode, which then sees its local operators."""
        _push(self)
        try:
            state.is_passing = True
            return op(*args, **kwargs)
        finally:
            state.is_passing = False
            _pop(None)

    def keep_inner(self, state: ThreadState) -> None:
        """Record a local operator that was not the last one of its distributed operator."""
        phase, call = self._where(state, state.module_call, _task_id())
        number, op, begin, duration = state.inner  # pyright: ignore[reportGeneralTypeIssues]
        span = (
            self._rank, number, state.op_id, op, LOCAL, begin, duration, phase,
            state.regions, call, state.native_id, (), None,
        )  # fmt: skip
        for keep in self.recorder.span_keepers:
            keep(span)

    def _where(
        self, state: ThreadState, call: ModuleCall | None, task: int
    ) -> tuple[str, ModuleCall | None]:
        """Return phase and module call as `locator` defines them, without walking the stack."""
        if task < 0:
            if call is not None:
                return FORWARD, call
            return OPTIMIZER if state.optimizer_depth else OTHER, None
        if state.task != task:
            begin_task(state, task)
        if call is not None and call is not state.outside:
            return RECOMPUTE, call
        phase = BACKWARD
        if state.optimizer_depth and state.optimizer_task == task:
            phase = OPTIMIZER
        node = _current_node()
        if node is None:
            return phase, None
        if state.made_from <= node._sequence_nr() < state.made_until:
            return phase, state.made_by
        return phase, self.recorder.locator.call_of_node(node, state)


def run_local(op: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the local part of distributed operator `op`: usually a single operator, in C++.

    A single operator is kept in `state.inner` until the operator that it belongs to has ended.
    """
    state = HERE.state
    mode = state.looking
    if mode is None:
        return function(*args, **kwargs)
    runs = op if type(function) is BuiltinFunctionType else getattr(function, "runs", None)
    if runs is not None:
        if state.inner is not None:
            mode.keep_inner(state)
        recorder = mode.recorder
        number = recorder.num_ops
        recorder.num_ops = number + 1
        begin = now()
        try:
            return function(*args, **kwargs) if kwargs else function(*args)
        finally:
            state.inner = (number, runs, begin, now() - begin)
    _push(mode)
    try:
        return function(*args, **kwargs)
    finally:
        _pop(None)


_GIVING_WAY = object()
_ways: dict[type, Any] = {}
"""Ways to run operators of a distributed tensor class so that their local operators are seen: by
the class itself, if it calls `run_local`, otherwise below the mode.
"""
_others: set[type] = set()
"""Classes that are not distributed."""


def _way_of(types: Any) -> Any:
    for cls in types:
        if cls in _others:
            continue
        if cls not in _ways:
            if not (hasattr(cls, "placements") and hasattr(cls, "device_mesh")):
                _others.add(cls)
                continue
            let_run(run_local)
            is_showing = cls.__module__.partition(".")[0] == PACKAGE
            _ways[cls] = cls.__torch_dispatch__ if is_showing else _GIVING_WAY
        return _ways[cls]
    return None


def _layouts(args: Any) -> tuple[Any, ...]:
    """Return shape, placements and mesh of the distributed arguments, except those in lists."""
    return tuple(
        [(arg.shape, arg.placements, arg.device_mesh) for arg in args if type(arg) in _ways]
    )


def _learn(func: Any) -> bool:
    """Return whether an operator is passed on unrecorded (communication, higher-order)."""
    silent = not isinstance(func, OpOverload) or func.namespace in _PASSED_ON
    _known_operators.append(func)
    _is_silent[id(func)] = silent
    return silent
