"""Styles that run a module's own forward on local tensors, and say how gradients lie.

Inside of such a module nothing is a DTensor, so its layouts are declared where tensors cross into
it and out of it. A tensor that is the same on every rank, and of which each rank uses only what
concerns its own shard, has a gradient that is partial: each rank computes a part of the sum.

| style                  | gradient of parameters | gradient of inputs   | output               |
|------------------------|------------------------|----------------------|----------------------|
| `LocalParameters`      | as they lie            | as it is             | as it is             |
| `ReplicatedForShards`  | partial: all-reduced   | as it is             | as it is             |
| `ExpertTensorParallel` | as they lie            | partial: all-reduced | partial: all-reduced |
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

_WHOLE, _PARTIAL = (Replicate(),), (Partial(),)


def with_partial_gradient(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The tensor, the same on every rank; its gradient is the sum of what all ranks compute."""
    if not tensor.requires_grad:
        return tensor
    crossed = DTensor.from_local(tensor, mesh, _WHOLE, run_check=False)
    return crossed.to_local(grad_placements=_PARTIAL)


def summed(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The sum of all ranks' tensors; the gradient of each is that of the sum."""
    partial = DTensor.from_local(tensor, mesh, _PARTIAL, run_check=False)
    return partial.redistribute(placements=_WHOLE).to_local()


def place(
    module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement, source: int | None
) -> None:
    """Make a DTensor of one parameter; one that is a DTensor already stays as it is."""
    parameter = module._parameters[name]
    if parameter is not None and not isinstance(parameter, DTensor):
        placed = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=source)
        module._parameters[name] = nn.Parameter(placed, requires_grad=parameter.requires_grad)


class LocalParameters(ParallelStyle):
    """Runs a module on the local parts of its DTensor parameters; subclasses add crossings."""

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
        module.register_forward_hook(after, with_kwargs=True, always_call=True)
        return module

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The arguments that the module's forward gets, and what `leave` wants to know of them."""
        return args, kwargs, None

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """Output of a call of the module, made of what its forward returned."""
        return output

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ReplicatedForShards(LocalParameters):
    """Replicated parameters that each rank applies to its own shard, such as norms of heads.

    Each rank computes the part of their gradients that its shard makes; they are all-reduced.
    """

    gradients = _PARTIAL

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name in module._parameters:
            place(module, name, device_mesh, Replicate(), self.src_data_rank)
        return super()._apply(module, device_mesh)


class ExpertTensorParallel(LocalParameters):
    """Runs experts of which each rank has a slice of every one, on tokens that all ranks have.

    Takes the tokens, the experts chosen and their weights. What each rank makes of its slices is a
    part of the sum, and so are the gradients of the tokens and of the routing weights: all three
    are all-reduced. Parameters must be cut before, or the sum would count them once a rank.

    Raises UnsupportedModuleError for a parameter that isn't cut.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, each in module.named_parameters(recurse=False):
            if not isinstance(each, DTensor) or each._spec.is_replicated():
                raise UnsupportedModuleError(
                    four_parts(
                        asked=f"{self} of a {type(module).__name__}",
                        found=f"its parameter {name}, which every rank has whole",
                        why="the outputs of all ranks are summed, and would have it once a rank",
                        hint="cut it, or use ExpertParallel, which leaves experts whole",
                    )
                )
        return super()._apply(module, device_mesh)

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Tokens and routing weights, whose gradients are summed."""
        return (
            tuple(_crossed(each, mesh) for each in args),
            {name: _crossed(each, mesh) for name, each in kwargs.items()},
            None,
        )

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """The sum of what the ranks' slices make."""
        return summed(output, mesh)


def _crossed(value: Any, mesh: DeviceMesh) -> Any:
    return with_partial_gradient(value, mesh) if isinstance(value, torch.Tensor) else value


class SummedOutput(LocalParameters):
    """Sums what the ranks' modules return; for modules that end in a product of shards."""

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """The sum over all ranks."""
        return summed(output, mesh)


class SharedInput(LocalParameters):
    """Divides the input by the number of ranks: for experts that all ranks compute whole.

    Among experts whose outputs are summed over the ranks, such as an identity expert.
    """

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The input, divided."""
        return (args[0] / mesh.size(), *args[1:]), kwargs, None


class PartialGradientOfTail(LocalParameters):
    """The last `width` columns of the output go to shards of heads: their gradient is summed.

    For a latent attention's projection whose output is split in two, of which the first part goes
    through a column-parallel layer, which sums that gradient itself.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def leave(self, module: nn.Module, output: Any, state: Any, mesh: DeviceMesh) -> Any:
        """The output, of whose tail the gradient is summed."""
        head, tail = output.split([output.shape[-1] - self.width, self.width], dim=-1)
        return torch.cat([head, with_partial_gradient(tail, mesh)], dim=-1)
