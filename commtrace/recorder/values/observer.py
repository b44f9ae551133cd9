"""Observer of the program's tensors, which sends their fingerprints to the sinks that want them.

    when                            role
    an outermost module is called   parameter and buffer at first, input, and buffer afterwards
    a module returns                output
    its gradient is known           output_gradient
    an operator returns             result, at level "op" (see `result_mode`)
    a backward pass begins          loss, and local_gradient of parameters (see `gradient_hooks`)
    gradients are clipped           unclipped, and clipping
    an optimizer steps              gradient before, updated and state afterwards
    a step ends without that        gradient
    the program names a tensor      named

Nothing is communicated, and no number of the program changes: tensors are only read. Tensors
without data, tensors of compilers and integers are not observed. The file exceeds the usual length,
because `ValueObserver` is a single class.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from commtrace.recorder.attribution.locator import Locator
from commtrace.recorder.clock import now
from commtrace.recorder.events.facts import likely_rank
from commtrace.recorder.events.location import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    RECOMPUTE,
    Location,
)
from commtrace.recorder.events.observed_value import ObservedValue
from commtrace.recorder.events.sink import ValueSink
from commtrace.recorder.failures import Failures
from commtrace.recorder.module_place import ModuleCall, Place, join
from commtrace.recorder.replaced import Replaced
from commtrace.recorder.thread_state import CURRENT
from commtrace.recorder.values.declared import Declared, DeclaredLayouts
from commtrace.recorder.values.flat_parameters import FlatParameters, FlatPart
from commtrace.recorder.values.flow import TensorSources
from commtrace.recorder.values.found_tensors import (
    LatestFacts,
    completed,
    has_memory,
    has_numbers,
    is_outdated,
    tensors_in,
)
from commtrace.recorder.values.gradient_hooks import GradientHooks
from commtrace.recorder.values.layouts import Layouts
from commtrace.recorder.values.observed_calls import observed_calls
from commtrace.recorder.values.owners import (
    UNKNOWN_OWNER,
    Owner,
    Owners,
    data_group,
    replicas_of,
    unknown_owner,
)
from commtrace.recorder.values.reading import Reading
from commtrace.recorder.values.rehearsals import Rehearsals
from commtrace.recorder.values.sketches import facts_of
from commtrace.recorder.values.weak_identities import WeakIdentities
from commtrace.recorder.wrappers import plain_path
from commtrace.schema import (
    BUFFER,
    CLIPPING,
    GRADIENT,
    INPUT,
    LOCAL_GRADIENT,
    LOSS,
    NAMED,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    RESULT,
    STATE,
    UNCLIPPED,
    UPDATED,
)
from commtrace.torch_internals.autograd import current_graph_task_id
from commtrace.torch_internals.modules import buffers_of, parameters_of

# Below a dispatch mode, in-place operators on lists do not count as new versions.
_CHANGED_UNCOUNTED = frozenset({UNCLIPPED, GRADIENT, UPDATED, STATE})


class ValueObserver:
    """Observes tensors while sinks want them."""

    def __init__(
        self, locator: Callable[[], Locator], num_ops: Callable[[], int], failures: Failures
    ) -> None:
        self._locator = locator
        self._num_ops = num_ops
        self._failures = failures
        self._sinks: tuple[ValueSink, ...] = ()
        self._layouts = Layouts()
        self._latest = LatestFacts()
        self._flows: defaultdict[int, TensorSources] = defaultdict(TensorSources)
        self._hooks: list[Any] = []
        self._gradient_hooks = GradientHooks(
            self._names_in,
            self._local_gradient,
            self._loss,
            self._unclipped,
            self._clipping,
        )
        self._replaced = Replaced()
        self._rehearsals = Rehearsals()
        self._owners = self._no_owners()
        self._met = WeakIdentities()
        self._declared = DeclaredLayouts()
        self._flat = FlatParameters()
        self._has_stepped = self._has_run = False
        # Of the program's first model that is data parallel, for tensors outside of modules.
        self._data_group = ""

    def report_to(self, sinks: Sequence[ValueSink]) -> None:
        """Send fingerprints to these sinks from now on."""
        was_on, self._sinks = bool(self._sinks), tuple(sinks)
        if self._sinks and not was_on:
            self._install()
        elif was_on and not self._sinks:
            self._uninstall()

    def _install(self) -> None:
        self._replaced.replace(nn.Module, "__call__", partial(observed_calls, self))
        self._hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]
        self._gradient_hooks.install()
        self._rehearsals.install()

    def _uninstall(self) -> None:
        self._replaced.restore()
        self._rehearsals.uninstall()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._gradient_hooks.remove()

    def forget(self) -> None:
        """Forget all modules, parameters and layouts."""
        self._layouts = Layouts()
        self._flows.clear()
        self._owners = self._no_owners()
        self._data_group = ""
        self._met.clear()
        self._declared = DeclaredLayouts()
        self._flat = FlatParameters()

    def _no_owners(self) -> Owners:
        return Owners(lambda: self._locator().modules.places())

    @property
    def is_on(self) -> bool:
        """True while a sink wants fingerprints."""
        return bool(self._sinks) and not self._rehearsals.are_on()

    def declare(
        self,
        target: nn.Module | torch.Tensor,
        mesh: Any,
        placements: Sequence[Any],
        gradient: Sequence[Any] | None = None,
    ) -> None:
        """Take the outputs of a module, or a parameter, for parts of distributed tensors."""
        self._declared.declare(target, mesh, placements, gradient)

    def flow(self) -> TensorSources:
        """Return where the values of this rank's tensors go."""
        return self._flows[likely_rank()]

    def place_of(self, outer: ModuleCall | None, module: nn.Module) -> Place | None:
        """Return the place of a module as called inside `outer`; None before its first call."""
        return self._locator().modules.known_place(outer, module)

    # Events of the program.

    def module_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Observe an outermost module that is about to be called."""
        self._has_run = True
        self._data_group = self._data_group or data_group(module)
        try:
            with Reading():
                location = Location(FORWARD, None, None, -1, None)
                if not torch.jit.is_tracing() and self._met.add(module):
                    owner_of = self._owners_of(module)
                    self._flat.learn(module, owner_of)
                    for name, each in parameters_of(module):
                        owner = owner_of(name)
                        self._see_parameter(PARAMETER, each, each, location, owner)
                    self._see_buffers(module, location)
                for name, tensor in tensors_in((args, kwargs)):
                    self._see(INPUT, name, tensor, location)
            if torch.is_grad_enabled():
                self._gradient_hooks.watch(module)
        except Exception as error:
            self._failures.append(error)
        self._locator().modules.note_first_call()

    def module_ends(self, module: nn.Module, call: ModuleCall, result: Any) -> None:
        """Observe the outputs of a module, and the gradients that they will have."""
        try:
            phase = FORWARD if current_graph_task_id() < 0 else RECOMPUTE
            location = Location(phase, call, None, -1, None)
            declared = self._declared.of(module)
            of_gradient = self._declared.of_gradient(module)
            with Reading():
                for name, tensor in tensors_in(result):
                    self._see(OUTPUT, name, tensor, location, declared=declared)
                    if tensor.requires_grad and phase == FORWARD:
                        self._watch_gradient(name, tensor, call, of_gradient)
                if CURRENT.modules.innermost is None:
                    self._see_buffers(module, location)
        except Exception as error:
            self._failures.append(error)

    def result(self, op: Any, name: str, tensor: torch.Tensor) -> None:
        """Observe a result of an operator, at the line that called it."""
        try:
            location = self._locator().locate(sys._getframe(2), CURRENT.state, (), None)
            with Reading():
                self._see(RESULT, name, tensor, location, op=op)
        except Exception as error:
            self._failures.append(error)

    def named(self, name: str, tensor: torch.Tensor) -> None:
        """Observe a tensor that the program names."""
        location = self._locator().locate(sys._getframe(2), CURRENT.state, (), None)
        with Reading():
            self._see(NAMED, name, tensor, location)

    def _local_gradient(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        # Each rank has a contribution of its own to the gradient of replicas.
        declared = self._declared.of(parameter)
        self._read(LOCAL_GRADIENT, name, gradient, BACKWARD, Owner(name), declared)

    def _loss(self, name: str, loss: torch.Tensor) -> None:
        self._read(LOSS, name, loss, OTHER, UNKNOWN_OWNER)

    def _clipping(self, name: str, norm: torch.Tensor) -> None:
        self._read(CLIPPING, name, norm, OTHER, UNKNOWN_OWNER)

    def _unclipped(self, parameters: list[torch.Tensor]) -> None:
        try:
            with Reading():
                location = Location(OTHER, None, None, -1, None)
                for place, parameter in enumerate(parameters):
                    owner = self._owners.of(parameter) or unknown_owner(str(place))
                    gradient = self._flat.gradient(parameter)
                    self._see_parameter(UNCLIPPED, parameter, gradient, location, owner)
        except Exception as error:
            self._failures.append(error)

    def _read(
        self,
        role: str,
        name: str,
        tensor: torch.Tensor,
        phase: str,
        owner: Owner | None,
        declared: Declared | None = None,
    ) -> None:
        """Observe a tensor outside of modules; a failure is the recording's, not the program's."""
        try:
            with Reading():
                location = Location(phase, None, None, -1, None)
                self._see(role, name, tensor, location, owner or UNKNOWN_OWNER, declared=declared)
        except Exception as error:
            self._failures.append(error)

    def step_ends(self) -> None:
        """Observe the gradients of a step in which no optimizer stepped."""
        is_news = self._has_run and not self._has_stepped
        self._has_stepped = self._has_run = False
        if not is_news or not self._sinks:
            return
        try:
            location = Location(OTHER, None, None, -1, None)
            with Reading():
                for parameter, owner in self._owners.all():
                    gradient = self._flat.gradient(parameter)
                    self._see_parameter(GRADIENT, parameter, gradient, location, owner)
        except Exception as error:
            self._failures.append(error)

    def _watch_gradient(
        self, name: str, tensor: torch.Tensor, call: ModuleCall, declared: Declared | None
    ) -> None:
        def see(gradient: torch.Tensor) -> None:
            try:
                with Reading():
                    location = Location(BACKWARD, call, None, -1, None)
                    self._see(OUTPUT_GRADIENT, name, gradient, location, declared=declared)
            except Exception as error:
                self._failures.append(error)

        tensor.register_hook(see)

    def _owners_of(self, root: nn.Module) -> Callable[[str], Owner]:
        """Return a function that names the owner of an outermost module's parameter or buffer."""
        place = self._locator().modules.place_ahead(root)
        replicas = replicas_of(root)
        return lambda name: Owner(join(place.plain, plain_path(root, name)), replicas)

    def _names_in(self, root: nn.Module) -> Callable[[str], str]:
        """Return a function that names an outermost module's parameter."""
        owner_of = self._owners_of(root)
        return lambda name: owner_of(name).name

    def _see_buffers(self, module: nn.Module, location: Location) -> None:
        owner_of = self._owners_of(module)
        for name, each in buffers_of(module):
            owner = owner_of(name)
            self._see(BUFFER, owner.name, each, location, owner)

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        self._see_step(optimizer, is_over=False)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        self._has_stepped = True
        self._see_step(optimizer, is_over=True)

    def _see_step(self, optimizer: Any, *, is_over: bool) -> None:
        try:
            location = Location(OPTIMIZER, None, None, -1, None)
            with Reading():
                for parameter, owner in self._owners.of_optimizer(optimizer):
                    see = partial(self._see_parameter, location=location, owner=owner)
                    if not is_over:
                        see(GRADIENT, parameter, self._flat.gradient(parameter))
                        continue
                    see(UPDATED, parameter, parameter)
                    for part, state in tensors_in(optimizer.state.get(parameter, {})):
                        if state.shape == parameter.shape:
                            see(STATE, parameter, state, suffix=f".{part}")
        except Exception as error:
            self._failures.append(error)

    def _data_group_of(self, root: nn.Module | None) -> str:
        """Return the group whose ranks have data of their own outside or inside of a model.

        A loss without parameters computes with what the model returns.
        """
        if self._data_group and root is not None and any(True for _ in parameters_of(root)):
            return data_group(root)
        return self._data_group

    def _see_parameter(
        self,
        role: str,
        parameter: torch.Tensor,
        tensor: torch.Tensor | None,
        location: Location,
        owner: Owner,
        *,
        suffix: str = "",
    ) -> None:
        """Observe a parameter, its gradient or a state; for a flat parameter, each original's."""
        if tensor is None:
            return
        declared, parts = self._declared.of(parameter), self._flat.of(parameter)
        if not parts:
            self._see(role, owner.name + suffix, tensor, location, owner, declared=declared)
        for part in parts:
            name = part.owner.name + suffix
            self._see(role, name, part.of(tensor), location, part.owner, part=part)

    def _see(
        self,
        role: str,
        name: str,
        tensor: torch.Tensor,
        location: Location,
        owner: Owner | None = None,
        *,
        op: Any = None,
        declared: Declared | None = None,
        part: FlatPart | None = None,
    ) -> None:
        """Take the fingerprint of a tensor, and send it to the sinks of this rank."""
        # A trace would have what reads the numbers, too.
        if torch.jit.is_tracing() or self._rehearsals.are_on():
            return
        rank = likely_rank()
        sinks = [sink for sink in self._sinks if sink.rank in (None, rank)]
        if not sinks or not has_numbers(tensor) or is_outdated(tensor):
            return
        if part is not None:
            local, layout = tensor, self._layouts.of_flat(part, tensor)
        elif declared is not None and not hasattr(tensor, "placements"):
            local, layout = tensor, self._layouts.of_declared(tensor, *declared)
        elif owner is not None:
            local, layout = self._layouts.of(tensor, owner.group)
        else:
            place = location.place
            group = self._data_group_of(None if place is None else place.root.module())
            local, layout = self._layouts.of(tensor, group, "")
        local = completed(local)
        if (local is not tensor and not has_numbers(local)) or not has_memory(local):
            return
        facts = None
        if layout.weights is not None:
            # The version of what an operator writes changes only after it has returned, and writes
            # through `.data` change none: only the count of operators shows them.
            is_written = (
                role in _CHANGED_UNCOUNTED
                or (op is not None and op._schema.is_mutable)
                or not CURRENT.state.operators.has_mode
            )
            collectives = CURRENT.state.collectives
            moment = self._num_ops(), collectives.num_issued, collectives.num_waits
            facts = None if is_written else self._latest.of(tensor, layout, moment)
            if facts is None:
                real = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
                facts = self._latest.keep(tensor, layout, moment, facts_of(real, layout.weights))
        state = CURRENT.state
        by_storage = state.operators.result_mode is not None
        inputs = self._flows[rank].observed(tensor, by_storage=by_storage)
        entry = ObservedValue(
            rank, role, name, op, now(), location, owner.module if owner else None,
            state.regions[-1] if state.regions else "", state.native_id, tensor.dtype,
            layout.shape, layout.mesh, layout.placements, facts, inputs,
        )  # fmt: skip
        for sink in sinks:
            sink.add_value(entry)
