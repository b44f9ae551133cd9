"""Styles that run a module's own forward on local tensors, and declare the layout of gradients.

Nothing inside of such a module is a DTensor, so layouts are declared where tensors enter and leave
it. If a tensor is replicated and each rank uses only the part that concerns its own shard, its
gradient is partial: each rank computes a part of the sum.

| style                  | gradient of parameters | gradient of inputs   | output               |
|------------------------|------------------------|----------------------|----------------------|
| `LocalParameters`      | as the parameters      | unchanged            | unchanged            |
| `ReplicatedForShards`  | partial: all-reduced   | unchanged            | unchanged            |
| `ExpertTensorParallel` | as the parameters      | partial: all-reduced | partial: all-reduced |
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtensor_core.api import distribute_tensor
from dtensor_core.errors import four_parts
from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel.base import ParallelStyle, UnsupportedModuleError
from dtensor_core.placement import Partial, Placement, Replicate
from dtensor_core.tensor import DTensor

_FULL, _PARTIAL = (Replicate(),), (Partial(),)


def with_partial_gradient(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return a replicated tensor whose gradient is summed over all ranks."""
    if not tensor.requires_grad:
        return tensor
    crossed = DTensor.from_local(tensor, mesh, _FULL, run_check=False)
    return crossed.to_local(grad_placements=_PARTIAL)


def summed(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Sum the tensors of all ranks; each has the gradient of the sum."""
    partial = DTensor.from_local(tensor, mesh, _PARTIAL, run_check=False)
    return partial.redistribute(placements=_FULL).to_local()


def place(
    module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement, source: int | None
) -> None:
    """Replace a parameter by a DTensor, unless it is a DTensor already."""
    parameter = module._parameters[name]
    if parameter is not None and not isinstance(parameter, DTensor):
        placed = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=source)
        module._parameters[name] = nn.Parameter(placed, requires_grad=parameter.requires_grad)


class LocalParameters(ParallelStyle):
    """Runs a module on the local parts of its DTensor parameters; subclasses add conversions."""

    gradients: tuple[Placement, ...] | None = None
    """Placements of the gradients of local parameters; None: as the parameters."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        calls: list[tuple[dict[str, Any], Any]] = []

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            held = {
                name: each for name, each in module._parameters.items() if isinstance(each, DTensor)
            }
            args, kwargs, state = self.enter(module, args, kwargs, device_mesh)
            calls.append((held, state))
            for name, each in held.items():
                module._parameters[name] = each.to_local(  # pyright: ignore[reportArgumentType]
                    grad_placements=self.gradients
                )
            return args, kwargs

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not calls:  # the call failed on its way in
                return None
            held, state = calls.pop()
            module._parameters.update(held)  # pyright: ignore[reportArgumentType]
            return None if output is None else self.leave(module, output, state, device_mesh)

        module.register_forward_pre_hook(before, with_kwargs=True)
        # Called after an error too, so that the module gets its DTensor parameters back.
        module.register_forward_hook(after, with_kwargs=True, always_call=True)
        return module

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return the arguments for the module's forward, and state for `leave`."""
        return args, kwargs, None

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Return the output of a call of the module, given its forward's output."""
        return output

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ReplicatedForShards(LocalParameters):
    """Replicated parameters that each rank applies to its own shard, such as norms of heads.

    Each rank computes its shard's part of their gradients; these are all-reduced.
    """

    gradients = _PARTIAL

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name in module._parameters:
            place(module, name, device_mesh, Replicate(), self.src_data_rank)
        return super()._apply(module, device_mesh)


class ExpertTensorParallel(LocalParameters):
    """Runs experts that are sliced over the ranks, on tokens that all ranks have.

    Takes the tokens, the chosen experts and their weights. Each rank's slices give partial sums of
    the output, and of the gradients of the tokens and of the routing weights; all three are
    all-reduced. Parameters must be sharded before, or the sum would count them once per rank.

    Raises UnsupportedModuleError for a parameter that isn't sharded.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, each in module.named_parameters(recurse=False):
            if not isinstance(each, DTensor) or each._spec.is_replicated():
                raise UnsupportedModuleError(
                    four_parts(
                        summary=f"{self} of a {type(module).__name__}",
                        found=f"parameter {name}, which is replicated",
                        why="outputs are summed over ranks, so a replicated parameter would count "
                        "once per rank",
                        hint="shard it, or use ExpertParallel, which keeps experts complete",
                    )
                )
        return super()._apply(module, device_mesh)

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return tokens and routing weights with summed gradients."""
        return (
            tuple(_crossed(each, mesh) for each in args),
            {name: _crossed(each, mesh) for name, each in kwargs.items()},
            None,
        )

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Sum the outputs of all ranks' slices."""
        return summed(output, mesh)


def _crossed(value: Any, mesh: DeviceMesh) -> Any:
    return with_partial_gradient(value, mesh) if isinstance(value, torch.Tensor) else value


class SummedOutput(LocalParameters):
    """Sums the outputs of all ranks; for modules that end in a product of shards."""

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Sum the outputs of all ranks."""
        return summed(output, mesh)


class SharedInput(LocalParameters):
    """Divides the input by the number of ranks, for an expert that all ranks compute in full.

    Used among experts whose outputs are summed over the ranks, such as an identity expert.
    """

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Return the input divided by the number of ranks."""
        return (args[0] / mesh.size(), *args[1:]), kwargs, None


class PartialGradientOfTail(LocalParameters):
    """Sums the gradient of the output's last `width` columns, which go to shards of heads.

    For a latent attention's projection whose output is split in two. The first part goes through a
    column-parallel layer, which sums that gradient itself.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Return the output, with the gradient of its tail summed."""
        head, tail = output.split([output.shape[-1] - self.width, self.width], dim=-1)
        return torch.cat([head, with_partial_gradient(tail, mesh)], dim=-1)
