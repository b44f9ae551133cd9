"""Hooks on what a gradient goes through: the backward pass, reductions and clipping.

    when                                     role
    a backward pass begins at scalars        loss
    autograd has a parameter's gradient      local_gradient, before it is accumulated or reduced
    gradients are clipped by their norm      unclipped gradient and clipping, the norms in use

FSDP2 computes with unsharded parameters of its own, which exist from a module's first call on, and
FullyShardedDataParallel with flat parameters, whose gradients contain the originals'.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from commtrace.recorder.replaced import Replaced
from commtrace.recorder.values.flat_parameters import Original, whole_gradients
from commtrace.recorder.values.fsdp_classes import fsdp_classes
from commtrace.recorder.values.weak_identities import WeakIdentities
from commtrace.torch_internals.modules import modules_of, parameters_of
from commtrace.when_loaded import when_loaded

_NORM, _MOST = "norm", "most"

NameOf = Callable[[str], str]
"""Names a parameter, which an outermost module has under a path."""
See = Callable[[str, torch.Tensor], None]
"""Observes a tensor under a name."""
Clipped = Callable[[list[torch.Tensor]], None]
"""Observes the gradients of parameters that are about to be clipped."""


class GradientHooks:
    """Hooks of a recording, which `remove` takes away.

    Args:
        names_in: returns a function that names the parameters of an outermost module.
        local_gradient: observes what autograd has computed for a parameter, by name.
        loss: observes a scalar at which a backward pass begins.
        unclipped: observes the gradients of parameters before they are clipped.
        clipping: observes the norm in use, and the largest norm that is allowed.
    """

    def __init__(
        self,
        names_in: Callable[[nn.Module], NameOf],
        local_gradient: Callable[[str, torch.Tensor, torch.Tensor], None],
        loss: See,
        unclipped: Clipped,
        clipping: See,
    ) -> None:
        self._local_gradient = local_gradient
        self._loss = loss
        self._unclipped = unclipped
        self._clipping = clipping
        self._names_in = names_in
        self._handles: list[Any] = []
        self._watched = WeakIdentities()
        self._roots = WeakIdentities()
        self._sharded = WeakIdentities()
        self._replaced = Replaced()
        self._stop_waiting: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Observe backward passes and clipping from now on."""
        clip_grad = torch.nn.utils.clip_grad
        self._replace(torch.autograd, "backward", self._observed_backward)
        for owner, name in (
            (clip_grad, "_clip_grads_with_norm_"),
            (torch.nn.utils, "clip_grads_with_norm_"),
        ):
            self._replace(owner, name, self._observed_clipping)
        self._stop_waiting = when_loaded("torch.distributed.fsdp", self._replace_flat_clipping)

    def _replace_flat_clipping(self) -> None:
        for owner in fsdp_classes("FullyShardedDataParallel"):
            self._replace(owner, "clip_grad_norm_", self._observed_flat_clipping)

    def remove(self) -> None:
        """Take all hooks away; a function that others have replaced since stays theirs."""
        self._stop_waiting()
        self._replaced.restore()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._watched.clear()
        self._roots.clear()
        self._sharded.clear()

    def watch(self, root: nn.Module) -> None:
        """Observe the gradients of a model's parameters that are not observed yet."""
        name_of = self._names_in(root)
        flat = dict(whole_gradients(root, name_of))
        for parameter, originals in flat.items():
            self._watch_by(parameter, partial(self._see_originals, originals))
        for name, parameter in parameters_of(root):
            if parameter not in flat:
                self._watch(name_of, name, parameter)
        if not self._roots.add(root):
            return
        for path, module in modules_of(root):
            if isinstance(module, fsdp_classes("FSDPModule")) and self._sharded.add(module):
                self._watch_unsharded(root, path, module)

    def _watch_unsharded(self, root: nn.Module, path: str, module: Any) -> None:
        owner = weakref.ref(root)

        # Behind FSDP's own hook, which gathers the parameters.
        def watch(called: nn.Module, _: Any) -> None:
            model = owner()
            if model is None:
                return
            name_of = self._names_in(model)
            for name, parameter in parameters_of(called):
                self._watch(name_of, f"{path}.{name}" if path else name, parameter)

        self._handles.append(module.register_forward_pre_hook(watch))

    def _see_originals(
        self, originals: Sequence[Original], flat: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        for name, shape, begin in originals:
            own = gradient[begin : begin + math.prod(shape)].view(shape)
            self._local_gradient(name, flat, own)

    def _watch(self, name_of: NameOf, name: str, parameter: torch.Tensor) -> None:
        if parameter not in self._watched:
            self._watch_by(parameter, partial(self._local_gradient, name_of(name)))

    def _watch_by(
        self, parameter: torch.Tensor, observe: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        if parameter in self._watched:
            return
        if not parameter.requires_grad or not parameter.is_leaf or is_lazy(parameter):
            return
        # The parameter holds the hook, which must not hold the parameter.
        itself = weakref.ref(parameter)

        def see(gradient: torch.Tensor) -> None:
            owner = itself()
            if owner is not None:
                observe(owner, gradient)

        handle = parameter.register_hook(see)
        _put_first(parameter, handle)
        self._handles.append(handle)
        self._watched.add(parameter)

    def _replace(self, owner: Any, name: str, observed: Callable[[Any], Any]) -> None:
        self._replaced.replace(owner, name, lambda each: wraps(each)(observed(each)))

    def _observed_backward(self, original: Any) -> Any:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            given = grad_tensors if isinstance(grad_tensors, (tuple, list)) else [grad_tensors]
            if all(each is None for each in given):
                for number, root in enumerate(roots):
                    if isinstance(root, torch.Tensor) and root.numel() == 1:
                        self._loss(str(number) if len(roots) > 1 else "", root)
            return original(tensors, grad_tensors, *args, **kwargs)

        return backward

    def _observed_clipping(self, original: Any) -> Any:
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            own = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._unclipped(own)
            self._clipping(_MOST, torch.as_tensor(float(max_norm), device="cpu"))
            if isinstance(total_norm, torch.Tensor):
                self._clipping(_NORM, total_norm)
            return original(own, max_norm, total_norm, *args, **kwargs)

        return clip

    def _observed_flat_clipping(self, original: Any) -> Any:
        def clip_grad_norm_(module: nn.Module, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
            self._unclipped([each for _, each in parameters_of(module)])
            self._clipping(_MOST, torch.as_tensor(float(max_norm), device="cpu"))
            norm = original(module, max_norm, *args, **kwargs)
            self._clipping(_NORM, norm)
            return norm

        return clip_grad_norm_


def _put_first(parameter: torch.Tensor, handle: Any) -> None:
    """Let a hook see the gradient before the program's own hooks, which may reduce it."""
    hooks: Any = getattr(parameter, "_backward_hooks", None)
    if hooks is not None and handle.id in hooks:
        # torch reads the order of insertion, which `move_to_end` leaves as it is.
        others = {number: hooks.pop(number) for number in list(hooks) if number != handle.id}
        hooks.update(others)
