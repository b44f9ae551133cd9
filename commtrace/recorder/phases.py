"""Where in the program a communication call happens: phase, module call, and the user's line.

    backward    the autograd engine is at work, on a node; the module is the one that made the node
    recompute   the engine is at work, and a module or a checkpointed function is run once more
    forward     otherwise, inside a module
    optimizer   otherwise, inside of `Optimizer.step`
    other       otherwise

The stack of Python frames is walked only here, when something communicates. The user's line is the
nearest one outside torch, dtensor_core, commtrace and the standard library: in the backward pass
that is a line of the user's own autograd function, or the one that called backward.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commtrace.recorder.here import HERE, ThreadState
from commtrace.recorder.modules import ModuleCall, ModuleTracker

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    "forward",
    "backward",
    "recompute",
    "optimizer",
    "other",
)

_USER, _LIBRARY, _ENGINE, _CHECKPOINT, _OPTIMIZER = range(5)

_LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | {
    "torch",
    "dtensor_core",
    "commtrace",
}
_FRAMES_OF_FUNCTIONS = {
    ("torch.autograd.graph", "_engine_run_backward"): _ENGINE,
    ("torch.optim.optimizer", "wrapper"): _OPTIMIZER,
}
_FRAMES_OF_MODULES = {"torch.utils.checkpoint": _CHECKPOINT}

_kinds: dict[CodeType, int] = {}


class Location(NamedTuple):
    """Where something happened; `code` is None where no line of the user's is on the stack."""

    phase: str
    module_call: ModuleCall | None
    code: CodeType | None
    line: int


def _kind(frame: FrameType) -> int:
    code = frame.f_code
    kind = _kinds.get(code)
    if kind is None:
        module = frame.f_globals.get("__name__") or ""
        kind = _FRAMES_OF_MODULES.get(module)
        if kind is None:
            kind = _FRAMES_OF_FUNCTIONS.get((module, code.co_name))
        if kind is None:
            kind = _LIBRARY if module.partition(".")[0] in _LIBRARIES else _USER
        _kinds[code] = kind
    return kind


class Locator:
    """Finds the location of a call; follows modules and optimizer steps while installed."""

    def __init__(self) -> None:
        self.modules = ModuleTracker()
        self._optimizer_hooks: list[Any] = []

    def install(self) -> None:
        """Begin to follow module calls and optimizer steps."""
        self.modules.install()
        self._optimizer_hooks = [
            register_optimizer_step_pre_hook(_step_begins),
            register_optimizer_step_post_hook(_step_ends),
        ]

    def uninstall(self) -> None:
        """Stop, leaving no hook behind."""
        self.modules.uninstall()
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks = []

    def locate(self, frame: FrameType | None, state: ThreadState) -> Location:
        """The location of the code that `frame` runs on the thread of `state`."""
        task = torch._C._current_graph_task_id()
        if task >= 0:
            return self._locate_in_backward(frame, state, task)
        call = state.module_call
        code, line = user_line(frame)
        if call is not None:
            return Location(FORWARD, call, code, line)
        phase = OPTIMIZER if state.optimizer_depth and _is_in_step(frame, state) else OTHER
        return Location(phase, None, code, line)

    def _locate_in_backward(
        self, frame: FrameType | None, state: ThreadState, task: int
    ) -> Location:
        code, line = user_line(frame)
        call = state.module_call
        if call is not None and call[2] == task:
            return Location(RECOMPUTE, call, code, line)
        node = torch._C._current_autograd_node()
        phase = RECOMPUTE if _is_in_checkpoint(frame) else BACKWARD
        return Location(phase, self._call_of_node(node, frame), code, line)

    def _call_of_node(self, node: Any, frame: FrameType | None) -> ModuleCall | None:
        call = None if node is None else self.call_of_node(node)
        if call is None or not hasattr(node, "variable") or not _is_engine(frame):
            return call
        # Sent from C++ when a parameter's gradient was ready: a bucket of DistributedDataParallel,
        # which belongs to no single parameter.
        root = call[0].root
        return (root, root.num_calls - 1, -1)

    def call_of_node(self, node: Any) -> ModuleCall | None:
        """The module call that an autograd node belongs to: its maker, or its leaf's holder."""
        parameter = getattr(node, "variable", None)
        if parameter is None:
            return self.modules.call_that_made(node)
        return self.modules.owner_of(parameter)


def user_line(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The nearest line of the user's own code."""
    while frame is not None:
        if _kind(frame) == _USER:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None, -1


def _is_engine(frame: FrameType | None) -> bool:
    return frame is None or _kind(frame) == _ENGINE


def _is_in_checkpoint(frame: FrameType | None) -> bool:
    """Whether a checkpointed function is being run once more by the engine that is at work."""
    while frame is not None:
        kind = _kind(frame)
        if kind == _ENGINE:
            return False
        if kind == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def _is_in_step(frame: FrameType | None, state: ThreadState) -> bool:
    """Whether a step really is in progress: one that raised has left its mark behind."""
    while frame is not None:
        if _kind(frame) == _OPTIMIZER:
            return True
        frame = frame.f_back
    state.optimizer_depth = 0
    return False


def _step_begins(*_: Any) -> None:
    HERE.state.optimizer_depth += 1


def _step_ends(*_: Any) -> None:
    state = HERE.state
    state.optimizer_depth = max(0, state.optimizer_depth - 1)
