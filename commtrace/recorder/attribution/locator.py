"""Location of a communication call in the program: phase, module call, and the user's line.

    backward    the autograd engine is running a node; the module is the maker of the node
    recompute   the engine is running, and a module or a checkpointed function runs once more
    forward     otherwise, inside a module
    optimizer   otherwise, inside `Optimizer.step`, even if a gradient hook calls it
    other       otherwise

The Python stack is walked only here, when something communicates (see `stack_frames`). In the
backward pass the user's line is in the user's own autograd function, or the line that called
backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commtrace.recorder.attribution.backward_passes import begin_backward, calling_thread
from commtrace.recorder.attribution.ddp import (
    BucketNames,
    ParameterNames,
    UnusedNote,
    copy_note,
    hook_bucket,
    log_of,
)
from commtrace.recorder.attribution.library_frames import FLAGS, GRADIENTS, attribution_by
from commtrace.recorder.attribution.modules import ModuleTracker
from commtrace.recorder.attribution.pipeline_stages import Acted, StageMethods
from commtrace.recorder.attribution.pipelines import note_transfers
from commtrace.recorder.attribution.stack_frames import (
    CHECKPOINT,
    ENGINE,
    IN_OPTIMIZER,
    USER,
    CalledFrom,
    called_from,
    optimizer_steps_around,
    user_code,
    walk,
)
from commtrace.recorder.attribution.step_calls import StepCalls, Ticked
from commtrace.recorder.caller_chain import joined_chain
from commtrace.recorder.events.host_event import Raised
from commtrace.recorder.events.location import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    Attribution,
    Location,
    Transfer,
    no_note,
)
from commtrace.recorder.module_place import ModuleCall, Place
from commtrace.recorder.thread_state import CURRENT, ThreadState
from commtrace.torch_internals.autograd import AccumulateGrad, current_graph_task_id, current_node
from commtrace.torch_internals.optimizers import call_first

_SEEN_CHECKPOINT, _SEEN_OPTIMIZER = 1 << CHECKPOINT, 1 << IN_OPTIMIZER
# Makes a `Location` without the call of its own `__new__`, a Python function.
_new = tuple.__new__


class Locator:
    """Locates calls; tracks modules and optimizer steps while installed."""

    def __init__(self, ticked: Ticked, raised: Raised, acted: Acted) -> None:
        self.modules = ModuleTracker(raised)
        self._step_calls = StepCalls(ticked)
        self._stage_methods = StageMethods(acted)
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
        # Other hooks of a step may communicate, as those that lay out gradients do.
        call_first(self._optimizer_hooks[0])
        self._step_calls.install()
        self._stage_methods.install()
        self._end_of_noting = note_transfers()

    def uninstall(self) -> None:
        """Stop tracking and remove all hooks."""
        self.modules.uninstall()
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks = []
        self._step_calls.uninstall()
        self._stage_methods.uninstall()
        if self._end_of_noting is not None:
            self._end_of_noting()
            self._end_of_noting = None

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        steps = CURRENT.state.optimizer
        steps.depth = max(0, steps.depth - 1)
        CURRENT.operators.moved()
        if not steps.depth:
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
        task = current_graph_task_id()
        if task >= 0:
            return self._locate_in_backward(frame, state, task, sent, dtype)
        call = state.modules.innermost
        user, attributing, installed, _, _ = walk(frame, USER)
        code, instruction, callers, via = called_from(user, installed)
        attribution = None if attributing is None else attribution_by(attributing, sent)
        phase = OTHER if call is None else FORWARD
        if attribution is not None:
            if attribution.modules:
                call = self.modules.call_of_unit(attribution.modules, call, is_ahead=True)
            elif attribution.stage is not None:
                call = self._call_of_stage(attribution.stage)
                phase = attribution.stage.part.direction
                return Location(phase, call, code, instruction, attribution, callers, via)
        if call is None and state.is_engine_thread:
            found = self._locate_in_callback(attribution, (code, instruction, callers, via))
            if found is not None:
                return found
        # The depth is only a hint, but rules most calls out before the stack is walked again.
        if phase is OTHER and state.optimizer.depth and _is_in_step(frame, state):
            phase = OPTIMIZER
        return _new(Location, (phase, call, code, instruction, attribution, callers, via))

    def _call_of_stage(self, stage: Transfer) -> ModuleCall:
        name = f"stage{stage.part.stage}"
        return self.modules.call_of_stage(stage.module, name, is_ahead=stage.is_ahead)

    def _locate_in_callback(
        self,
        attribution: Attribution | None,
        called: CalledFrom,
    ) -> Location | None:
        """Return the location of a communication hook's continuation, on a thread of the backend.

        The continuation runs when a message is complete. It belongs to the backward pass on another
        thread, of the model last seen to call a hook. Returns None for other work of such a thread.
        """
        carries_gradients = attribution is not None and attribution.carries == GRADIENTS
        if self._hooked is None and not carries_gradients:
            return None
        _, frame = calling_thread(CURRENT.state)
        if frame is None and not carries_gradients:
            return None
        code, instruction, callers, via = user_code(frame) if called[0] is None else called
        place = self._hooked or self.modules.wrapper_of(None, DistributedDataParallel)
        call = None if place is None else (place, place.num_calls - 1)
        attribution = attribution or Attribution(GRADIENTS)
        return Location(BACKWARD, call, code, instruction, attribution, callers, via)

    def _locate_in_backward(
        self,
        frame: FrameType | None,
        state: ThreadState,
        task: int,
        sent: Sequence[torch.Size],
        dtype: torch.dtype | None,
    ) -> Location:
        backward = state.backward
        if backward.task != task:
            begin_backward(state, task)
        user, attributing, installed, outermost, kinds = walk(frame, ENGINE)
        caller = backward.caller
        if user is None and caller.code is not None:
            code, instruction, callers = caller.code, caller.instruction, caller.callers
            via = caller.via if installed is None else (installed.f_code, installed.f_lasti)
        else:
            code, instruction, callers, via = called_from(user, installed)
            if state.is_engine_thread and caller.code is not None:
                around = caller.callers.places if caller.callers else ()
                outer = [(caller.code, caller.instruction), *around]
                callers = joined_chain(callers, outer)
        attribution = None if attributing is None else attribution_by(attributing, sent)
        call = state.modules.innermost
        is_recomputed = call is not None and call is not backward.outer_module_call
        phase = RECOMPUTE if is_recomputed or kinds & _SEEN_CHECKPOINT else BACKWARD
        if kinds & _SEEN_OPTIMIZER:  # not around the backward pass, where the walk ended
            phase = OPTIMIZER
        if attribution is not None and attribution.modules:
            call = self.modules.call_of_unit(attribution.modules, call, is_ahead=False)
        elif not is_recomputed:
            node: Any = current_node()
            call = None if node is None else self.call_of_node(node, state)
            parameter = _parameter_of(node)
            # A reducer sends when the gradient of a leaf is ready, or after the last node.
            if node is None or (call is not None and parameter is not None):
                if outermost is None:  # called from the engine
                    call, attribution = self._sent_by_reducer(call, sent, dtype)
                elif bucket := hook_bucket(outermost):
                    call, attribution = self._sent_by_hook(call, bucket, attribution, task)
        return _new(Location, (phase, call, code, instruction, attribution, callers, via))

    def _sent_by_reducer(
        self,
        call: ModuleCall | None,
        sent: Sequence[torch.Size],
        dtype: torch.dtype | None,
    ) -> tuple[ModuleCall | None, Attribution | None]:
        """Attribute a message that C++ sends when a gradient is ready, or after the backward pass.

        Integer payloads are not gradients but flags: the parameters that the pass has used.
        """
        place = self.modules.wrapper_of(call[0] if call else None, DistributedDataParallel)
        if place is None:
            return (call[0].root, call[0].root.num_calls - 1) if call else None, None
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            attribution = Attribution(FLAGS, is_reducers=True, note=UnusedNote(place.module()))
            return (place, place.num_calls - 1), attribution
        model = place.module()
        index = log_of(model).next_bucket(place)
        names = BucketNames(model, index, sum([shape.numel() for shape in sent]))
        note = no_note if getattr(model, "gradient_as_bucket_view", True) else copy_note
        attribution = Attribution(GRADIENTS, (), names, is_reducers=True, note=note)
        return (place, place.num_calls - 1), attribution

    def _sent_by_hook(
        self,
        call: ModuleCall | None,
        bucket: dist.GradBucket,
        attribution: Attribution | None,
        task: int,
    ) -> tuple[ModuleCall | None, Attribution | None]:
        """Attribute a message of DistributedDataParallel's communication hook.

        If a bucket sends several messages, such as factors, only the first carries the parameter
        names: it is a single reduction.
        """
        parameters = bucket.parameters()
        owner = call or (self.modules.owner_of(parameters[0]) if parameters else None)
        place = self.modules.wrapper_of(owner[0] if owner else None, DistributedDataParallel)
        model: Any = place.module() if place else None
        if place is None or model is None:
            return call, attribution
        self._hooked = place
        carries = attribution.carries if attribution else GRADIENTS
        before, self._bucket = self._bucket, (task, place, bucket.index())
        names = ParameterNames(model.module, () if before == self._bucket else parameters)
        attribution = Attribution(carries, (), names, is_reducers=carries == GRADIENTS)
        return (place, place.num_calls - 1), attribution

    def call_of_node(self, node: Any, state: ThreadState) -> ModuleCall | None:
        """Return the module call of an autograd node: its maker, or the owner of its leaf."""
        parameter = _parameter_of(node)
        if parameter is None:
            return self.modules.call_that_made(node, state)
        return self.modules.owner_of(parameter)


def _parameter_of(node: Any) -> Any:
    """Return the leaf a node accumulates into, or None; a failed attribute lookup is costly."""
    return node.variable if type(node) is AccumulateGrad else None


def _is_in_step(frame: FrameType | None, state: ThreadState) -> bool:
    """Return whether a step is really in progress; a step that raised leaves its depth behind."""
    *_, kinds = walk(frame, IN_OPTIMIZER)
    if kinds & _SEEN_OPTIMIZER:
        return True
    state.optimizer.depth = 0
    state.operators.moved()
    return False


def _step_begins(*_: Any) -> None:
    steps = CURRENT.state.optimizer
    if steps.depth:  # some of them may have raised
        steps.depth = optimizer_steps_around(sys._getframe(1)) - 1
    steps.depth += 1
    steps.task = current_graph_task_id()
    CURRENT.operators.moved()
