"""Classification of stack frames: user code, a library's, or a part of torch that attributes calls.

The user's line is the nearest line of the user's own code. This excludes torch, dtensor_core,
commtrace, the standard library, and the layers between these and a script: installed packages, the
frameworks below and any named in the settings. The nearest line of an installed package is kept
beside the user's, and in its place if a stack has none.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch
import torch.distributed as dist

from commtrace.recorder.attribution.library_frames import ATTRIBUTING, AttributingFrames
from commtrace.recorder.caller_chain import (
    INSTALLED_IN,
    CallerChain,
    CodePlace,
    chain_of_frames,
    code_and_line,
    known_chain,
)
from commtrace.recorder.thread_state import CallStack, ThreadState
from commtrace.torch_internals.autograd import current_graph_task_id

(
    LIBRARY, USER, OWN, ENGINE, CHECKPOINT, IN_OPTIMIZER, ATTRIBUTES, MIXED, INSTALLED, OUTERMOST
) = range(10)  # fmt: skip

_LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | {
    "torch",
    "dtensor_core",
    "commtrace",
    "typing_extensions",  # wraps deprecated functions of torch
}
_FRAMEWORKS = (
    *("accelerate", "composer", "deepspeed", "ignite", "lightning", "lightning_fabric"),
    *("pytorch_lightning", "transformers"),
)
"""Libraries that call a script's code and torch; not all are installed like packages."""
_SCRIPTS = f"{sysconfig.get_path('scripts')}{os.sep}"
_OWN_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"
_GENERATED = ("<eval_with_key>", *torch.__path__)
"""Prefixes of the file names of code that torch generates, which is in no module."""

_FRAMES_OF_FUNCTIONS: dict[str, dict[str, int]] = {
    "torch.autograd.graph": {"_engine_run_backward": ENGINE},
    "torch.optim.optimizer": {"wrapper": IN_OPTIMIZER},
}
for _module, _function in ATTRIBUTING:
    _FRAMES_OF_FUNCTIONS.setdefault(_module, {})[_function] = ATTRIBUTES
BLOCKING_TRANSFERS = frozenset({"send", "recv"})
"""Functions of torch.distributed, and kinds of calls, that wait unless they are asynchronous."""
_FRAMES_OF_MODULES = {
    **dict.fromkeys(_FRAMES_OF_FUNCTIONS, MIXED),
    "torch.utils.checkpoint": CHECKPOINT,
    **dict.fromkeys(("runpy", "_pytest.python"), OUTERMOST),  # run the program, or one test
    "torch._ops": OWN,  # on the path from the dispatch mode
    "commtrace.recorder.interception.operators": OWN,
    "commtrace.recorder.interception.kernels": OWN,
    "commtrace.recorder.interception.waits": OWN,
    "commtrace.recorder.attribution.step_calls": OWN,
    "commtrace.recorder.host_events.data_loading": OWN,
    "commtrace.recorder.host_events.store_calls": OWN,
}

kinds_of_modules: dict[str, int] = {}
"""Kinds of modules by name; cheaper to get from a frame than its code object."""
_libraries, _own_packages = _FRAMEWORKS, ()


def count_as_libraries(libraries: Sequence[str], own_packages: Sequence[str] = ()) -> None:
    """Classify `libraries` as libraries from now on and `own_packages` as the user's own code."""
    global _libraries, _own_packages
    _libraries, _own_packages = (*_FRAMEWORKS, *libraries), tuple(own_packages)
    kinds_of_modules.clear()


def kind_of(frame: FrameType) -> int:
    """Return the kind of a frame."""
    kind = kinds_of_modules.get(frame.f_globals.get("__name__") or "")
    if kind is None:
        kind = _learn_kind(frame)
    if kind != MIXED:
        return kind
    return _FRAMES_OF_FUNCTIONS[frame.f_globals["__name__"]].get(frame.f_code.co_name, LIBRARY)


def _learn_kind(frame: FrameType) -> int:
    """Return the kind of a frame's module; generated code without any is judged by its file."""
    module = frame.f_globals.get("__name__") or ""
    # Not cached, since all generated code has the same empty name.
    if not module:
        return LIBRARY if frame.f_code.co_filename.startswith(_GENERATED) else USER
    kind = _FRAMES_OF_MODULES.get(module)
    if kind is None:
        kind = _kind_of_package(module, frame.f_code.co_filename)
    kinds_of_modules[module] = kind
    return kind


def _kind_of_package(module: str, file: str) -> int:
    if module.partition(".")[0] in _LIBRARIES:
        return LIBRARY
    if _is_within(module, _own_packages):
        return USER
    is_installed = _is_within(module, _libraries) or _is_installed(module, file)
    return INSTALLED if is_installed else USER


def _is_installed(module: str, file: str) -> bool:
    """Return whether a file is of an installed package, in an environment or `pip --target`."""
    if any(folder in file for folder in INSTALLED_IN) or file.startswith(_SCRIPTS):
        return True
    folder, found, _ = file.rpartition(f"{os.sep}{module.partition('.')[0]}{os.sep}")
    try:
        return bool(found) and any(each.endswith(".dist-info") for each in os.listdir(folder))
    except OSError:
        return False


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def engine_frame(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame that runs the autograd engine; None if none does."""
    while frame is not None and kind_of(frame) != ENGINE:
        frame = frame.f_back
    return frame


def walk(
    frame: FrameType | None, end: int
) -> tuple[FrameType | None, AttributingFrames | None, FrameType | None, FrameType | None, int]:
    """Walk the stack outwards, up to the first frame of kind `end`.

    Returns:
        The nearest frame of the user's code, or None; the frames of functions that attribute the
        calls below them; the nearest frame of an installed package; the last frame before the end,
        other than the recorder's own; and a bit `1 << kind` for each other kind of frame seen.
    """
    kinds = kinds_of_modules
    seen = 0
    attributing: AttributingFrames | None = None
    user = installed = outermost = None
    while frame is not None:
        # `kind_of`, inlined to save a call for each frame.
        try:
            kind = kinds[frame.f_globals["__name__"]]
        except KeyError:
            kind = _learn_kind(frame)
        if kind:  # most frames belong to libraries
            if kind == OWN:
                frame = frame.f_back
                continue
            if kind == MIXED:
                functions = _FRAMES_OF_FUNCTIONS[frame.f_globals["__name__"]]
                kind = functions.get(frame.f_code.co_name, LIBRARY)
            if kind == LIBRARY:
                pass
            elif kind == USER:
                if user is None:
                    user = frame
                if end == USER:
                    break
            elif kind == ATTRIBUTES:
                attributing = frame, attributing
            elif kind == INSTALLED:
                installed = installed or frame
            else:
                seen |= 1 << kind
                if kind == end:
                    break
        outermost = frame
        frame = frame.f_back
    return user, attributing, installed, outermost, seen


CalledFrom = tuple[CodeType | None, int, CallerChain | None, CodePlace | None]
"""Code, its instruction, its callers, and the place in a package by which it reached the call."""
NOWHERE: CalledFrom = (None, -1, None, None)


def user_code(frame: FrameType | None) -> CalledFrom:
    """Return the nearest user code, or without any the nearest code of an installed package."""
    user, _, installed, _, _ = walk(frame, USER)
    return called_from(user, installed)


def called_from(user: FrameType | None, installed: FrameType | None) -> CalledFrom:
    """Return where a call comes from, by its nearest frames of the user and of a package."""
    if user is None:
        if installed is None:
            return NOWHERE
        return installed.f_code, installed.f_lasti, callers_of(installed), None
    via = None if installed is None else (installed.f_code, installed.f_lasti)
    return user.f_code, user.f_lasti, callers_of(user), via


def callers_of(frame: FrameType) -> CallerChain:
    """Return the frames of the user's code around a frame."""
    kinds, key = kinds_of_modules, []
    outer = frame.f_back
    while outer is not None:
        # `kind_of`, inlined to save a call for each frame; most belong to libraries.
        try:
            kind = kinds[outer.f_globals["__name__"]]
        except KeyError:
            kind = _learn_kind(outer)
        if kind:
            if kind == USER:
                key += id(outer.f_code), outer.f_lasti
            elif kind == OUTERMOST:
                break
        outer = outer.f_back
    places = tuple(key)
    return known_chain(places) or chain_of_frames(places, user_frames_from(frame.f_back))


def user_frames_from(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's code from a frame on, innermost first."""
    found = []
    while frame is not None and (kind := kind_of(frame)) != OUTERMOST:
        if kind == USER and not is_own(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def is_own(frame: FrameType) -> bool:
    """Return whether a frame is of commtrace, whose launcher is called `__main__` like programs."""
    return frame.f_code.co_filename.startswith(_OWN_FOLDER)


def full_stack(frame: FrameType | None, state: ThreadState) -> CallStack:
    """Return the stack, and in a backward pass also the stack of the thread that called it."""
    task = current_graph_task_id()
    return stack_of(frame) + (
        state.backward.caller.stack if task == state.backward.task >= 0 else ()
    )


def stack_of(frame: FrameType | None) -> CallStack:
    """Return the stack of a thread, without the recorder's own frames."""
    frames = []
    while frame is not None:
        if kind_of(frame) != OWN:
            frames.append(code_and_line(frame))
        frame = frame.f_back
    return tuple(frames)


def is_blocking_transfer(frame: FrameType | None) -> bool:
    """Return whether `dist.send` or `dist.recv` makes the call, by the operator of `isend`."""
    while frame is not None and kind_of(frame) != USER:
        if frame.f_code.co_name in BLOCKING_TRANSFERS:
            return frame.f_globals.get("__name__") == dist.distributed_c10d.__name__
        frame = frame.f_back
    return False


def optimizer_steps_around(frame: FrameType | None) -> int:
    """Return the number of optimizer steps in progress around a frame."""
    num = 0
    while frame is not None:
        num += kind_of(frame) == IN_OPTIMIZER
        frame = frame.f_back
    return num
