"""Location of a communication call in the program: phase, module call, and the user's line.

    backward    the autograd engine is at work, on a node; the module is the one that made the node
    recompute   the engine is at work, and a module or a checkpointed function is run once more
    forward     otherwise, inside a module
    optimizer   otherwise, inside of `Optimizer.step`, also of one that a hook of a gradient calls
    other       otherwise

The Python stack is walked only here, when something communicates (see `stack_frames`). In the
backward pass the user's line is in the user's own autograd function, or the line that called
backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commtrace.recorder.library_frames import (
    FLAGS,
    GRADIENTS,
    Attribution,
    Bucket,
    Named,
    Unused,
    given_bucket,
    told_by,
)
from commtrace.recorder.modules import ModuleCall, ModuleTracker, Place, call_around
from commtrace.recorder.pipelines import Transfer, note_transfers
from commtrace.recorder.stack_frames import (
    CHECKPOINT,
    ENGINE,
    IN_OPTIMIZER,
    INSTALLED,
    MIXED,
    OWN,
    TELLS,
    USER,
    engine_frame,
    kind_of,
    kind_of_function,
    kinds_of_modules,
    learn_kind,
    stack_of,
    user_code,
)
from commtrace.recorder.steps import StepCalls, Ticked
from commtrace.recorder.thread_state import HERE, Task, ThreadState, state_of_thread
from commtrace.schema import PHASES

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = PHASES

ACCUMULATING = torch._C._functions.AccumulateGrad  # pyright: ignore

Location = tuple[str, "ModuleCall | None", "CodeType | None", int, "Attribution | None"]
"""Phase, module call, the user's code (None if the stack has none), the instruction offset in it,
and the attribution found on the stack. The line is looked up when the call is written.
"""


class Locator:
    """Locates calls; tracks modules and optimizer steps while installed."""

    def __init__(self, ticked: Ticked) -> None:
        self.modules = ModuleTracker()
        self._step_calls = StepCalls(ticked)
        self._optimizer_hooks: list[Any] = []
        self._end_of_noting: Callable[[], None] | None = None
        self._hooked: Place | None = None
        self._bucket: tuple[int, Place, int] | None = None

    def install(self) -> None:
        """Start tracking module calls and optimizer steps."""
        self.modules.install()
        self._optimizer_hooks = [
            register_optimizer_step_pre_hook(_step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]
        self._step_calls.install()
        self._end_of_noting = note_transfers()

    def uninstall(self) -> None:
        """Stop tracking and remove all hooks."""
        self.modules.uninstall()
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks = []
        self._step_calls.uninstall()
        if self._end_of_noting is not None:
            self._end_of_noting()
            self._end_of_noting = None

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        state = HERE.state
        state.optimizer_depth = max(0, state.optimizer_depth - 1)
        if not state.optimizer_depth:
            self._step_calls.optimizer_stepped(optimizer)

    def locate(
        self,
        frame: FrameType | None,
        state: ThreadState,
        sent: Sequence[torch.Size],
        dtype: torch.dtype | None,
    ) -> Location:
        """Return the location of the code that `frame` runs on the thread of `state`.

        Args:
            frame: the caller's frame; None on a thread without Python frames.
            state: the state of the current thread.
            sent: shapes of the sent tensors.
            dtype: dtype of the sent tensors.
        """
        task = torch._C._current_graph_task_id()
        if task >= 0:
            return self._locate_in_backward(frame, state, task, sent, dtype)
        call = state.module_call
        code, instruction, telling = user_code(frame)
        told = None if telling is None else told_by(telling)
        if told is not None:
            if told.modules:
                call = self.modules.call_of_unit(told.modules, call, is_ahead=True)
            elif told.stage is not None:
                return told.stage.phase, self._call_of_stage(told.stage), code, instruction, told
        if call is None and state.is_of_engine:
            found = self._locate_in_callback(told, code, instruction)
            if found is not None:
                return found
        if state.module_call is not None:
            return FORWARD, call, code, instruction, told
        phase = OPTIMIZER if state.optimizer_depth and _is_in_step(frame, state) else OTHER
        return phase, call, code, instruction, told

    def _call_of_stage(self, stage: Transfer) -> ModuleCall:
        name = f"stage{stage.stage}"
        return self.modules.call_of_stage(stage.module, name, is_ahead=stage.is_ahead)

    def _locate_in_callback(
        self, told: Attribution | None, code: CodeType | None, instruction: int
    ) -> Location | None:
        """Return the location of a communication hook's continuation, on a thread of the backend.

        The continuation runs when a message is complete. It belongs to the backward pass on another
        thread, of the model last seen to call a hook. Returns None for other work of such a thread.
        """
        carries_gradients = told is not None and told.carries == GRADIENTS
        if self._hooked is None and not carries_gradients:
            return None
        _, frame = _calling_thread(HERE.state)
        if frame is None and not carries_gradients:
            return None
        if code is None:
            code, instruction, _ = user_code(frame)
        place = self._hooked or self.modules.wrapper_of(None, DistributedDataParallel)
        call = None if place is None else (place, place.num_calls - 1)
        return BACKWARD, call, code, instruction, told or Attribution(GRADIENTS)

    def _locate_in_backward(
        self,
        frame: FrameType | None,
        state: ThreadState,
        task: int,
        sent: Sequence[torch.Size],
        dtype: torch.dtype | None,
    ) -> Location:
        if state.task != task:
            begin_task(state, task)
        is_in_checkpoint = is_in_step = False
        code, instruction = None, -1
        telling = outermost = installed = None
        kinds = kinds_of_modules
        while frame is not None:
            try:
                kind = kinds[frame.f_globals["__name__"]]
            except KeyError:
                kind = learn_kind(frame)
            if kind:  # most frames belong to libraries
                if kind == MIXED:
                    kind = kind_of_function(frame)
                if kind == ENGINE:
                    break
                if kind == USER and code is None:
                    code, instruction = frame.f_code, frame.f_lasti
                elif kind == TELLS:
                    telling = frame
                elif kind == INSTALLED and installed is None:
                    installed = frame
                is_in_checkpoint = is_in_checkpoint or kind == CHECKPOINT
                is_in_step = is_in_step or kind == IN_OPTIMIZER
            if kind != OWN:
                outermost = frame
            frame = frame.f_back
        if code is None:
            code, instruction = state.backward.code, state.backward.instruction
        if code is None and installed is not None:
            code, instruction = installed.f_code, installed.f_lasti
        told = None if telling is None else told_by(telling)
        call = state.module_call
        is_recomputed = call is not None and call is not state.outside
        phase = RECOMPUTE if is_recomputed or is_in_checkpoint else BACKWARD
        if is_in_step:  # not around the backward pass, where the walk ended
            phase = OPTIMIZER
        if told is not None and told.modules:
            call = self.modules.call_of_unit(told.modules, call, is_ahead=False)
        elif not is_recomputed:
            node: Any = torch._C._current_autograd_node()
            call = None if node is None else self.call_of_node(node, state)
            parameter = _parameter_of(node)
            if node is None or (call is not None and parameter is not None):
                if outermost is None:  # called from the engine
                    call, told = self._sent_by_reducer(call, parameter, sent, dtype)
                elif bucket := given_bucket(outermost):
                    call, told = self._sent_by_hook(call, bucket, told, task)
        return phase, call, code, instruction, told

    def _sent_by_reducer(
        self,
        call: ModuleCall | None,
        parameter: Any,
        sent: Sequence[torch.Size],
        dtype: torch.dtype | None,
    ) -> tuple[ModuleCall | None, Attribution | None]:
        """Attribute a message that C++ sends when a gradient is ready; it has no single parameter.

        Without a parameter, the message was deferred to the end of the backward pass. Integer
        payloads are not gradients but flags: the parameters that the pass has used.
        """
        place = self.modules.wrapper_of(call[0] if call else None, DistributedDataParallel)
        if place is None:
            return (call[0].root, call[0].root.num_calls - 1) if call else None, None
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            told = Attribution(FLAGS, is_reducers=True, note=Unused(place.module()))
            return (place, place.num_calls - 1), told
        names = Bucket(place.module(), parameter, sum([shape.numel() for shape in sent]))
        return (place, place.num_calls - 1), Attribution(GRADIENTS, (), names, is_reducers=True)

    def _sent_by_hook(
        self, call: ModuleCall | None, bucket: dist.GradBucket, told: Attribution | None, task: int
    ) -> tuple[ModuleCall | None, Attribution | None]:
        """Attribute a message of DistributedDataParallel's communication hook.

        If a bucket sends several messages, such as factors, only the first carries the parameter
        names: it is one reduction.
        """
        parameters = bucket.parameters()
        owner = call or (self.modules.owner_of(parameters[0]) if parameters else None)
        place = self.modules.wrapper_of(owner[0] if owner else None, DistributedDataParallel)
        model: Any = place.module() if place else None
        if place is None or model is None:
            return call, told
        self._hooked = place
        carries = told.carries if told else GRADIENTS
        before, self._bucket = self._bucket, (task, place, bucket.index())
        names = Named(model.module, () if before == self._bucket else parameters)
        told = Attribution(carries, (), names, is_reducers=carries == GRADIENTS)
        return (place, place.num_calls - 1), told

    def call_of_node(self, node: Any, state: ThreadState) -> ModuleCall | None:
        """Return the module call of an autograd node: its maker, or the owner of its leaf."""
        parameter = _parameter_of(node)
        if parameter is None:
            return self.modules.call_that_made(node, state)
        return self.modules.owner_of(parameter)


def begin_task(state: ThreadState, number: int) -> None:
    """Record which code called the backward pass that this thread works on, and on which thread.

    The caller is the thread itself, unless the engine runs the pass on a thread of its own, as for
    accelerators and deep nesting. Such a thread inherits the regions of the caller.
    """
    frame = sys._getframe()
    here = engine_frame(frame)
    code, instruction, _ = user_code(here)
    task = Task(code, instruction)
    if state.is_of_engine:
        caller, there = _calling_thread(state)
        if code is None:
            code, instruction, _ = user_code(there)
        regions = caller.regions if caller else ()
        task = Task(code, instruction, None if here else caller, stack_of(there), regions)
        if state.regions == state.backward.regions:  # no region entered here
            state.regions = regions
    state.task, state.backward = number, task
    state.outside = call_around(frame, here, state.module_call)
    state.made_from = state.made_until = 0


def _calling_thread(state: ThreadState) -> tuple[ThreadState | None, FrameType | None]:
    """Return the other thread that called backward, and its frame; None if several did."""
    threads = [(each, engine_frame(top)) for each, top in sys._current_frames().items()]
    calling = [(each, at) for each, at in threads if at is not None and each != state.ident]
    if len(calling) != 1:
        return None, None
    ident, frame = calling[0]
    return state_of_thread(ident), frame


def _parameter_of(node: Any) -> Any:
    """Return the leaf a node accumulates into, or None; a failed attribute lookup is costly."""
    return node.variable if type(node) is ACCUMULATING else None


def _is_in_step(frame: FrameType | None, state: ThreadState) -> bool:
    """Return whether a step is really in progress; one that raised leaves its depth behind."""
    while frame is not None:
        if kind_of(frame) == IN_OPTIMIZER:
            return True
        frame = frame.f_back
    state.optimizer_depth = 0
    return False


def _step_begins(*_: Any) -> None:
    state = HERE.state
    if state.optimizer_depth:  # some of them may have raised
        state.optimizer_depth = _num_steps_around(sys._getframe(1)) - 1
    state.optimizer_depth += 1
    state.optimizer_task = torch._C._current_graph_task_id()


def _num_steps_around(frame: FrameType | None) -> int:
    num = 0
    while frame is not None:
        num += kind_of(frame) == IN_OPTIMIZER
        frame = frame.f_back
    return num
