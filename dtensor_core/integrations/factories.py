"""Python functions of torch that make further tensors besides their arguments.

The low-rank decompositions draw a random matrix, and the masked means count ones. These are plain
tensors, which DTensors refuse. For a DTensor argument such a function makes replicated DTensors:
ones are the same on every rank, and so are random numbers wherever DTensors can be drawn
(docs/random.md). Recurrent modules called without a state make a zero state, which becomes a
DTensor if their input is a DTensor. Installed by the package, once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Replicate
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.autograd import innermost
from dtensor_core.torch_internals.trees import tree_map
from dtensor_core.tracing import outside_transforms

_FUNCTIONS = {
    "torch._lowrank": ("get_approximate_basis",),
    "torch.masked._ops": ("mean", "_std_var"),
    "torch.masked": ("mean",),
}
_FACTORIES = {
    function: outside_transforms(function)
    for function in map(torch.__dict__.__getitem__, ("ones", "randn"))
}
_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RECURRENT = {getattr(torch, name + kind) for name in _LAYERS for kind in ("", "_cell")}


class _Replicated(TorchFunctionMode):
    """Makes factories return replicated DTensors."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        factory = _FACTORIES.get(func)
        if factory is None:
            return func(*args, **(kwargs or {}))
        made = factory(*args, **(kwargs or {}))
        return DTensor.from_local(
            made, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False
        )


def _on_dtensors(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("input")
        given = innermost(given) if isinstance(given, torch.Tensor) else given
        if not isinstance(given, DTensor):
            return function(*args, **kwargs)
        with _Replicated(given.device_mesh):
            return function(*args, **kwargs)

    return call


class _StatesOfZeros(TorchFunctionMode):
    """Converts zeros made by a recurrent module to replicated DTensors if its input is a DTensor.

    A state given by the caller is left alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RECURRENT and isinstance(args[0], DTensor):
            x, states, *rest = args
            args = (x, tree_map(lambda state: self._full(state, x), states), *rest)
        made = func(*args, **(kwargs or {}))
        if func is torch.zeros:
            self._made.append(made)
        return made

    def _full(self, state: torch.Tensor, x: DTensor) -> torch.Tensor:
        if state._version or not any(state is each for each in self._made):
            return state
        mesh = x.device_mesh
        return DTensor.from_local(state, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _with_states(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a recurrent module; its hooks may convert the input to a DTensor."""
    given = (*args, next(self.parameters(), None))
    if torch.compiler.is_compiling() or not any(isinstance(each, DTensor) for each in given):
        return torch.nn.Module.__call__(self, *args, **kwargs)
    with _StatesOfZeros():
        return torch.nn.Module.__call__(self, *args, **kwargs)


def install() -> None:
    """Patch these functions, and recurrent modules, to accept DTensors."""
    for module in (torch.nn.RNNBase, torch.nn.RNNCellBase):
        module.__call__ = _with_states
    for name, functions in _FUNCTIONS.items():
        module = importlib.import_module(name)
        for function in functions:
            setattr(module, function, _on_dtensors(getattr(module, function)))
