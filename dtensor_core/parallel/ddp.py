"""Data parallelism around tensor parallelism: `DistributedDataParallel` of a module of DTensors.

DDP broadcasts parameters and reduces gradients as flat plain tensors. The module therefore holds
its local tensors, which `parameters()` and `state_dict()` return, while its attributes return the
DTensors that they are part of. Gradients flow back through `from_local`. Attributes are used
instead of hooks because recomputation runs layers outside of the module's forward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtensor_core.spec import Spec
from dtensor_core.tensor import DTensor


def _pre_dp_module_transform(module: nn.Module) -> None:
    """Make a module hold its DTensors as local tensors but expose them as DTensors, in place.

    `DistributedDataParallel` applies this to its module; torch's name is kept for programs that
    call it themselves.
    """
    locals_: dict[int, torch.Tensor] = {}
    for submodule in module.modules():
        shown: dict[str, property] = {}
        for held in (submodule._parameters, submodule._buffers):
            for name, tensor in held.items():
                if isinstance(tensor, DTensor):
                    local = locals_.setdefault(id(tensor), _local(tensor))
                    held[name] = local  # pyright: ignore[reportArgumentType]
                    shown[name] = property(_shown(held is submodule._buffers, name, tensor._spec))
        if shown:
            kind = type(submodule)
            submodule.__class__ = type(kind.__name__, (kind,), shown)


def _local(tensor: DTensor) -> torch.Tensor:
    """Return the local tensor; for a parameter, as a parameter with the local gradient."""
    if not isinstance(tensor, nn.Parameter):
        return tensor._local_tensor
    parameter = nn.Parameter(tensor._local_tensor, requires_grad=tensor.requires_grad)
    if isinstance(tensor.grad, DTensor):
        parameter.grad = tensor.grad.redistribute(placements=tensor.placements)._local_tensor
    return parameter


def _shown(is_buffer: bool, name: str, spec: Spec) -> Callable[[nn.Module], Any]:
    """Make the getter of an attribute, which returns a local tensor as the DTensor it is
    part of.
    """

    def show(module: nn.Module) -> Any:
        held: Any = (module._buffers if is_buffer else module._parameters)[name]
        return DTensor.from_local(
            held, spec.mesh, spec.placements, shape=spec.shape, stride=spec.stride
        )

    return show


def install() -> None:
    """Make `DistributedDataParallel` accept modules of DTensors."""
    original = DistributedDataParallel.__init__

    @wraps(original)
    def __init__(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        _pre_dp_module_transform(module)
        original(self, module, *args, **kwargs)

    DistributedDataParallel.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
