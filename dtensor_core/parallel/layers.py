"""Styles that shard a module's parameters by columns or by rows, or replicate them.

| style    | module    | weight  | bias    | input it needs | output it makes |
|----------|-----------|---------|---------|----------------|-----------------|
| colwise  | Linear    | S(0)    | S(0)    | R              | S(-1)           |
| colwise  | Embedding | S(1)    |         | R              | S(-1)           |
| rowwise  | Linear    | S(1)    | R       | S(-1)          | P(sum)          |
| rowwise  | Embedding | S(0)    |         | R              | P(sum)          |
| packed   | Linear    | _S(0)   | _S(0)   | R              | _S(-1)          |
| sequence | norms     | R       | R       | S(1)           | S(1)            |

A Linear's weight is [out, in], so its columns, in the notation `x @ W`, are sharded by S(0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtensor_core.api import distribute_module, distribute_tensor
from dtensor_core.errors import four_parts
from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel.base import (
    Layouts,
    ParallelStyle,
    StyleInputError,
    UnsupportedModuleError,
    as_dtensor,
    brought_to,
    local_if,
)
from dtensor_core.placement import Placement, Replicate, Shard, _StridedShard
from dtensor_core.tensor import DTensor


@dataclass(frozen=True, slots=True)
class LayerSharding:
    """Sharding of a kind of module: the placements of its parameters and of its input."""

    parameters: Mapping[str, Placement]
    needs: Placement


class _ShardingStyle(ParallelStyle):
    """A style that shards the parameters of the kinds of modules in its table."""

    shardings: Mapping[type[nn.Module], LayerSharding]

    def __init__(self, input_layouts: Layouts, output_layouts: Layouts, use_local: bool) -> None:
        self.input_layouts = input_layouts
        self.output_layouts = output_layouts
        self.use_local_output = use_local

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        sharding = next(
            (sharding for kind, sharding in self.shardings.items() if isinstance(module, kind)),
            None,
        )
        if sharding is None:
            raise UnsupportedModuleError(
                four_parts(
                    summary=f"{type(self).__name__} of a {type(module).__name__}",
                    found=f"currently only support {' and '.join(map(_name, self.shardings))}!",
                    hint="apply the style to the submodules of these types",
                )
            )

        def partition(name: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for key, parameter in list(part.named_parameters(recurse=False)):
                placed = distribute_tensor(
                    parameter, mesh, [sharding.parameters[key]], src_data_rank=self.src_data_rank
                )
                part.register_parameter(
                    key, nn.Parameter(placed, requires_grad=parameter.requires_grad)
                )

        def prepare(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
            first = as_dtensor(_first(module, inputs), mesh, self.input_layouts)
            return (brought_to(first, (sharding.needs,)), *inputs[1:])

        def finish(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
            found = brought_to(output, self.output_layouts)
            if found is output and output.requires_grad and not self.use_local_output:
                # Then its gradient is sharded too, and so is the work for the gradient of the
                # weight.
                found = output.redistribute(placements=output.placements)
            return local_if(found, self.use_local_output)

        return distribute_module(module, device_mesh, partition, prepare, finish)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, "
            f"output_layouts={self.output_layouts}, use_local_output={self.use_local_output})"
        )


class ColwiseParallel(_ShardingStyle):
    """Shards a Linear by its output features, an Embedding by its features.

    Args:
        input_layouts: The placement of the input; replicated by default.
        output_layouts: The wanted placement of the output; by default sharded along the last dim,
            which takes no communication.
        use_local_output: Return the local tensor.
    """

    shardings: Mapping[type[nn.Module], LayerSharding] = {
        nn.Linear: LayerSharding({"weight": Shard(0), "bias": Shard(0)}, needs=Replicate()),
        nn.Embedding: LayerSharding({"weight": Shard(1)}, needs=Replicate()),
    }

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            (input_layouts or Replicate(),), (output_layouts or Shard(-1),), use_local_output
        )


class RowwiseParallel(_ShardingStyle):
    """Shards a Linear by its input features, an Embedding by its rows.

    Args:
        input_layouts: The placement of the input; by default sharded along the last dim.
        output_layouts: The wanted placement of the output. It is computed as partial sums, so
            Replicate (the default) takes an all-reduce, a Shard a reduce-scatter.
        use_local_output: Return the local tensor.
    """

    shardings: Mapping[type[nn.Module], LayerSharding] = {
        nn.Linear: LayerSharding({"weight": Shard(1), "bias": Replicate()}, needs=Shard(-1)),
        nn.Embedding: LayerSharding({"weight": Shard(0)}, needs=Replicate()),
    }

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            (input_layouts or Shard(-1),), (output_layouts or Replicate(),), use_local_output
        )


class PackedColwiseParallel(_ShardingStyle):
    """Shards a Linear that computes several products at once, by the output features of each.

    The weight concatenates `split_factor` layers (gate and up, or query, key and value of equal
    widths). Each rank has its shard of each layer's outputs.
    """

    def __init__(self, *, split_factor: int = 2, use_local_output: bool = True) -> None:
        rows = _StridedShard(0, split_factor=split_factor)
        self.shardings = {
            nn.Linear: LayerSharding({"weight": rows, "bias": rows}, needs=Replicate())
        }
        output = _StridedShard(-1, split_factor=split_factor)
        super().__init__((Replicate(),), (output,), use_local_output)


class PackedRowwiseParallel(_ShardingStyle):
    """Shards a Linear by its input features, which come from a `PackedColwiseParallel` layer."""

    def __init__(self, *, split_factor: int = 2, use_local_output: bool = True) -> None:
        columns = _StridedShard(1, split_factor=split_factor)
        features = _StridedShard(-1, split_factor=split_factor)
        self.shardings = {
            nn.Linear: LayerSharding({"weight": columns, "bias": Replicate()}, needs=features)
        }
        super().__init__((features,), (Replicate(),), use_local_output)


class SequenceParallel(ParallelStyle):
    """Runs a LayerNorm, RMSNorm or Dropout on shards of the sequence, with replicated parameters.

    A plain input is treated as this rank's shard of the sequence, dim `sequence_dim`. Parameters
    are assumed to be equal on all ranks, as in a new norm; nothing is sent.

    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def replicate(name: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for key, parameter in list(part.named_parameters(recurse=False)):
                placed = as_dtensor(parameter.detach(), mesh, (Replicate(),))
                part.register_parameter(
                    key, nn.Parameter(placed, requires_grad=parameter.requires_grad)
                )

        def prepare(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
            first = as_dtensor(_first(module, inputs), mesh, self.sequence_sharding)
            return (brought_to(first, self.sequence_sharding), *inputs[1:])

        def finish(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
            return local_if(output, self.use_local_output)

        return distribute_module(module, device_mesh, replicate, prepare, finish)

    def __repr__(self) -> str:
        return (
            f"SequenceParallel(sequence_dim={self.sequence_sharding[0].dim}, "
            f"use_local_output={self.use_local_output})"
        )


def _first(module: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    """Return the tensor that a module is called with."""
    if inputs and isinstance(inputs[0], torch.Tensor):
        return inputs[0]
    found = f"a {type(inputs[0]).__name__}" if inputs else "no positional argument"
    raise StyleInputError(
        four_parts(
            summary=f"a call of a parallelized {type(module).__name__}",
            found=f"{found}; expecting input of {module} to be a torch.Tensor or DTensor",
            hint="pass the tensor as the first positional argument",
        )
    )


def _name(kind: type) -> str:
    return f"nn.{kind.__name__}"
