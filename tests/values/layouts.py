"""Layouts of the models: how parameters are sharded, and how a batch is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtensor_core import Placement, Replicate, Shard, distribute_tensor
from dtensor_core.parallel import (
    ColwiseParallel,
    ExpertParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from tests.values.models import Attention, Convolution, Dense, EncoderDecoder, Mixture, Tables

Parallelize = Callable[[nn.Module, DeviceMesh], nn.Module]


@dataclass(frozen=True)
class Layout:
    """Layout of a model.

    Attributes:
        model: the model.
        axes: sizes of the mesh axes.
        batch: dimension of the batch that each axis shards; the others replicate it.
        parallelize: shards the parameters.
        is_plain: the batch is a plain tensor.
        options: of `programs.train`.
        within: makes a context of forward and backward.
    """

    model: type[nn.Module]
    axes: dict[str, int]
    batch: dict[str, int] = field(default_factory=dict)
    parallelize: Parallelize | None = None
    is_plain: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    within: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return int(torch.tensor(list(self.axes.values())).prod())

    def placed(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Return the model with distributed parameters."""
        return (self.parallelize or replicated)(model, mesh)

    def fed(self, tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """Return a batch for the model."""
        if self.is_plain:
            return tokens
        placements = [
            Shard(self.batch[axis]) if axis in self.batch else Replicate() for axis in self.axes
        ]
        return distribute_tensor(tokens, mesh, placements)


def sharded(model: nn.Module, mesh: DeviceMesh, of: Callable[[str, Any], list[Any]]) -> nn.Module:
    """Return the model with parameters in the layouts that a function has for their names."""
    made: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, each in list(module.named_parameters(recurse=False)):
            if id(each) not in made:
                layout = of(f"{path}.{name}", each)
                made[id(each)] = nn.Parameter(distribute_tensor(each.detach(), mesh, layout))
            module.register_parameter(name, made[id(each)])
    return model


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model with replicated parameters."""
    return sharded(model, mesh, lambda *_: [Replicate()] * mesh.ndim)


def fully_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model with parameters that the first axis shards along their first dimension."""
    return sharded(model, mesh, lambda *_: [Shard(0)] + [Replicate()] * (mesh.ndim - 1))


def by_name(*names: str, dim: int = 0) -> Parallelize:
    """Return a function that shards the parameters of these modules, over the last axis."""

    def place(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def layout(path: str, _: Any) -> list[Placement]:
            is_sharded = any(f".{name}." in f".{path}" for name in names)
            last: Placement = Shard(dim) if is_sharded else Replicate()
            return [*[Replicate()] * (mesh.ndim - 1), last]

        return sharded(model, mesh, layout)

    return place


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model with tensor parallel attention and feed-forward networks."""
    plan: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            plan |= {f"{path}.{name}": ColwiseParallel() for name in "qkv"}
            plan[f"{path}.o"] = RowwiseParallel()
        elif path.endswith("mlp"):
            plan |= {f"{path}.up": ColwiseParallel(), f"{path}.down": RowwiseParallel()}
    return parallelize_module(model, mesh["tp"], plan)


def sequence_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the dense transformer with sequence parallel norms and residuals."""
    gathered: Any = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "dropout": SequenceParallel(use_local_output=True),
        "layer.attention_norm": SequenceParallel(),
        "layer.norm": SequenceParallel(),
        "layer.attention": PrepareModuleInput(**gathered),
        **{f"layer.attention.{name}": ColwiseParallel() for name in "qkv"},
        "layer.attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "layer.mlp.up": ColwiseParallel(input_layouts=Shard(1)),
        "layer.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh["tp"], plan)


def expert_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the mixture with experts on different ranks, which all have the same tokens."""
    plan = {"experts": ExpertParallel(input_layouts=Replicate())}
    return parallelize_module(model, mesh["ep"], plan)


ADAM = {"optimizer": torch.optim.Adam, "lr": 3e-3}
CLIPPED = {"max_norm": 0.5}
ACCUMULATED = {"num_parts": 2}

LAYOUTS: dict[str, Layout] = {
    "dense tp": Layout(Dense, {"tp": 2}, parallelize=tensor_parallel, is_plain=True),
    "dense sp": Layout(Dense, {"tp": 2}, parallelize=sequence_parallel, is_plain=True),
    "dense dp": Layout(Dense, {"dp": 2}, {"dp": 0}, options=ADAM | CLIPPED),
    "dense cp uneven": Layout(Dense, {"cp": 3}, {"cp": 1}),
    "dense fsdp uneven": Layout(Dense, {"fsdp": 3}, {"fsdp": 0}, fully_sharded, options=ADAM),
    "dense dp x cp": Layout(Dense, {"dp": 2, "cp": 2}, {"dp": 0, "cp": 1}),
    "mixture dp": Layout(Mixture, {"dp": 2}, {"dp": 0}, options=CLIPPED),
    "mixture ep": Layout(
        Mixture, {"ep": 2}, parallelize=expert_parallel, is_plain=True, options=ADAM
    ),
    "mixture experts": Layout(Mixture, {"ep": 2}, parallelize=by_name("experts")),
    "mixture dp x experts": Layout(
        Mixture, {"dp": 2, "ep": 2}, {"dp": 0}, by_name("experts"), options=ADAM
    ),
    "mixture cp": Layout(Mixture, {"cp": 2}, {"cp": 1}),
    "encoder-decoder tp": Layout(EncoderDecoder, {"tp": 2}, {}, tensor_parallel, is_plain=True),
    "encoder-decoder dp": Layout(EncoderDecoder, {"dp": 2}, {"dp": 0}),
    "encoder-decoder cp": Layout(EncoderDecoder, {"cp": 2}, {"cp": 1}, options=ADAM),
    "convolution dp uneven": Layout(Convolution, {"dp": 3}, {"dp": 0}),
    "convolution cp": Layout(Convolution, {"cp": 2}, {"cp": 1}, options=ADAM | CLIPPED),
    "convolution cp uneven": Layout(Convolution, {"cp": 3}, {"cp": 1}),
    "convolution channels": Layout(Convolution, {"tp": 2}, {}, by_name("first", "norm")),
    "tables rows": Layout(Tables, {"tp": 2}, {}, by_name("of_token", "of_next", "bag")),
    "tables columns": Layout(
        Tables, {"tp": 2}, {}, by_name("of_token", "of_next", dim=1), options=ACCUMULATED
    ),
    "tables dp uneven": Layout(Tables, {"dp": 3}, {"dp": 0}, options=ADAM),
    "tables fsdp x cp": Layout(Tables, {"fsdp": 2, "cp": 2}, {"cp": 1}, fully_sharded),
}

LOSS_PARALLEL = Layout(Convolution, {"tp": 2}, {}, by_name("head"), within=loss_parallel)
"""A head whose logits are sharded by vocabulary, and so is the loss."""
