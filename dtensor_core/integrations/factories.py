"""Functions of torch, written in Python, that make tensors besides the ones they are given.

The low-rank decompositions draw a random matrix, the masked means count ones: plain tensors, which
DTensors refuse to meet. Given a DTensor, what such a function makes is a replicated one: a number
of ones is the same on every rank, and so is what is drawn where DTensors may be drawn at all
(docs/random.md). Installed by the package, once.
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

_FUNCTIONS = {
    "torch._lowrank": ("get_approximate_basis",),
    "torch.masked._ops": ("mean", "_std_var"),
    "torch.masked": ("mean",),
}
_FACTORIES = frozenset((torch.ones, torch.randn))


class _Replicated(TorchFunctionMode):
    """Factories make replicated DTensors."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _FACTORIES:
            return made
        return DTensor.from_local(
            made, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False
        )


def _on_dtensors(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, DTensor):
            return function(*args, **kwargs)
        with _Replicated(given.device_mesh):
            return function(*args, **kwargs)

    return call


def install() -> None:
    """Let these functions take DTensors."""
    for name, functions in _FUNCTIONS.items():
        module = importlib.import_module(name)
        for function in functions:
            setattr(module, function, _on_dtensors(getattr(module, function)))
