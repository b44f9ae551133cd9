"""Distribution of tensors and modules: `distribute_tensor` and `distribute_module`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dtensor_core.errors import DTensorError, MeshError, PlacementError
from dtensor_core.mesh import DeviceMesh, current_mesh
from dtensor_core.placement import Placement
from dtensor_core.redistribute.distribute import keep, share
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.tensor import DTensor
from dtensor_core.tied import keeping_ties, name_of, refuse_another_layout
from dtensor_core.tracing import outside_graphs, outside_transforms
from dtensor_core.validation import normalize_placements

PartitionFn = Callable[[str, nn.Module, DeviceMesh], None]


class LeafError(DTensorError, RuntimeError):
    """A non-leaf tensor was distributed, or a module was distributed twice."""


@outside_transforms
@outside_graphs("distribute_tensor makes a leaf, and sends its data by a scatter")
def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """Distribute a full tensor over a mesh, as a leaf DTensor.

    Args:
        tensor: The full tensor, of the same shape on every rank; must be a leaf.
        device_mesh: The mesh; from the innermost `with mesh:` by default.
        placements: One placement per mesh axis; Replicate by default.
        src_data_rank: The coordinate, on every mesh axis, of the rank whose data is distributed.
            With None each rank keeps its part of its own tensor, without communication.

    Raises:
        LeafError: The tensor is not a leaf (a RuntimeError).
        PlacementError: The placements don't fit the tensor and the mesh, or the tensor is a DTensor
            with other placements (a ValueError).
        MeshError: The tensor is a DTensor of another mesh (a ValueError).
    """
    mesh = current_mesh(device_mesh)
    if not tensor.is_leaf:
        raise LeafError(
            "distribute_tensor of a non-leaf tensor",
            found=f"a result of {tensor.grad_fn}",
            why="it makes new leaves, so it should be used to distribute leaf tensors",
            hint="distribute leaf tensors; inside of autograd use DTensor.from_local",
        )
    try:
        normal = normalize_placements(placements, mesh, tensor.ndim)
    except PlacementError as error:
        name = name_of(tensor)
        if name is None:
            raise
        raise PlacementError(f"parameter {name!r}, {error}") from None
    if isinstance(tensor, DTensor):
        return _already(tensor, mesh, normal)
    if mesh.device_type not in (tensor.device.type, "meta") and not tensor.is_meta:
        tensor = tensor.detach().to(mesh.device_type).requires_grad_(tensor.requires_grad)
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    spec = Spec(mesh, normal, meta)
    data = tensor.detach()
    if src_data_rank is None or tensor.is_meta or (spec.is_replicated() and mesh.size() == 1):
        local = keep(data, spec, "distribute_tensor")
    else:
        local = share(data, spec, src_data_rank, "distribute_tensor")
    return DTensor(local.requires_grad_(False), spec, requires_grad=tensor.requires_grad)


def _already(tensor: DTensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    if tensor.device_mesh != mesh or tensor.placements != placements:
        refuse_another_layout(tensor, Spec(mesh, placements, tensor._spec.tensor_meta).text)
    if tensor.device_mesh != mesh:
        raise MeshError(
            f"cannot distribute a DTensor with device mesh {tensor.device_mesh} "
            f"to a different device mesh {mesh}"
        )
    if tensor.placements != placements:
        raise PlacementError(
            f"cannot distribute a DTensor with placements {tensor.placements} "
            f"to a different placements {placements}; use redistribute"
        )
    return tensor


def distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: PartitionFn | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Replace the parameters and buffers of a module by DTensors, in place.

    A parameter with several names, in this module or in others, stays tied.

    Args:
        module: The module.
        device_mesh: The mesh; from the innermost `with mesh:` by default.
        partition_fn: `partition_fn(name, submodule, mesh)` distributes parameters of its choice;
            all others are replicated.
        input_fn: `input_fn(module, inputs, mesh)` runs before every forward.
        output_fn: `output_fn(module, outputs, mesh)` runs after every forward.

    Returns:
        The same module.

    Raises:
        LeafError: The module has been distributed before (a RuntimeError).
        TiedError: Two names of a parameter ask for different layouts (a ValueError).
    """
    mesh = current_mesh(device_mesh)
    if getattr(module, "_distribute_module_applied", False):
        raise LeafError(
            "distribute_module should only be called once on a module, but it has already been "
            f"called on this {type(module).__name__}"
        )
    if partition_fn is not None:
        with keeping_ties(module):
            for name, submodule in module.named_modules():
                partition_fn(name, submodule, mesh)
    with keeping_ties(module):
        _replicate_rest(module, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(_input_hook(input_fn, mesh))
    if output_fn is not None:
        module.register_forward_hook(_output_hook(output_fn, mesh))
    module._distribute_module_applied = True  # pyright: ignore
    return module


def _replicate_rest(module: nn.Module, mesh: DeviceMesh) -> None:
    """Replicate the parameters and buffers that are still plain tensors, each once."""
    done: dict[torch.Tensor, Any] = {}
    for submodule in module.modules():
        for name, parameter in submodule._parameters.items():
            if parameter is not None and not isinstance(parameter, DTensor):
                if parameter not in done:
                    replicated = distribute_tensor(parameter.data, mesh)
                    grads = parameter.requires_grad
                    done[parameter] = nn.Parameter(replicated, requires_grad=grads)
                submodule.register_parameter(name, done[parameter])
        for name, buffer in submodule._buffers.items():
            if buffer is not None and not isinstance(buffer, DTensor):
                if buffer not in done:
                    done[buffer] = distribute_tensor(buffer, mesh)
                submodule._buffers[name] = done[buffer]


def _num_arguments(function: Callable[..., Any], which: str) -> int:
    count = len(inspect.signature(function).parameters)
    if count not in (2, 3):
        raise PlacementError(f"{which} should take in 3 arguments, but got {count} arguments!")
    if count == 2:
        warnings.warn(
            f"Deprecating {which} that takes two arguments (inputs, device_mesh), please use "
            f"{which} that takes in (module, inputs, device_mesh) instead!",
            FutureWarning,
            stacklevel=4,
        )
    return count


def _input_hook(input_fn: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    if _num_arguments(input_fn, "input_fn") == 2:
        return lambda module, inputs: input_fn(inputs, mesh)
    return lambda module, inputs: input_fn(module, inputs, mesh)


def _output_hook(output_fn: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    if _num_arguments(output_fn, "output_fn") == 2:
        return lambda module, inputs, outputs: output_fn(outputs, mesh)
    return lambda module, inputs, outputs: output_fn(module, outputs, mesh)
