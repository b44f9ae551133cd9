"""Small training programs in several layouts, recorded with fingerprints on thread ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import commtrace
from commtrace.analyze import Frames
from commtrace.analyze.frame import frames_of
from commtrace.tracefile import read_parts
from dtensor_core import Replicate, Shard, distribute_tensor
from dtensor_core.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.testing import run_threads

WIDTH, VOCABULARY, LENGTH, BATCH, NUM_LAYERS = 16, 48, 8, 4, 2


class Attention(nn.Module):
    """Self-attention, with heads of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend within [B, L, D]."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.size(-1) ** 0.5, -1)
        return self.o((weights @ v).transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """A decoder without a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [B, L, V] of tokens [B, L]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Convolution(nn.Module):
    """Convolutions with group norms over an embedded sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.first, self.second = (nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.norm, self.head = nn.GroupNorm(4, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [B, L, V] of tokens [B, L]."""
        x = self.embedding(tokens).transpose(1, 2)
        x = x + self.second(F.relu(self.norm(self.first(x))))
        return self.head(x.transpose(1, 2))


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model with parameters that are DTensors, replicated on all axes."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            layout = [Replicate()] * mesh.ndim
            module.register_parameter(
                name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, layout))
            )
    return model


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the transformer, tensor parallel over axis tp."""
    plan: dict[str, Any] = {}
    for number in range(NUM_LAYERS):
        path = f"layers.{number}"
        plan |= {f"{path}.attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {f"{path}.attention.o": RowwiseParallel(), f"{path}.up": ColwiseParallel()}
        plan[f"{path}.down"] = RowwiseParallel()
    return parallelize_module(model, mesh["tp"], plan)


def sequence_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the transformer, sequence parallel over axis tp between its linear layers."""
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for number in range(NUM_LAYERS):
        path = f"layers.{number}"
        gathered = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
        plan |= {
            f"{path}.attention_norm": SequenceParallel(),
            f"{path}.norm": SequenceParallel(),
            f"{path}.attention": PrepareModuleInput(**gathered),  # type: ignore[arg-type]
            **{f"{path}.attention.{name}": ColwiseParallel() for name in "qkv"},
            f"{path}.attention.o": RowwiseParallel(output_layouts=Shard(1)),
            f"{path}.up": ColwiseParallel(input_layouts=Shard(1)),
            f"{path}.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    return parallelize_module(model, mesh["tp"], plan)


def whole(tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Leave the batch as it is on every rank."""
    return tokens


def as_replicas(tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Distribute a batch as replicas."""
    return distribute_tensor(tokens, mesh, [Replicate()] * mesh.ndim)


def by_batch(tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Distribute a batch over the first axis."""
    return distribute_tensor(tokens, mesh, [Shard(0)] + [Replicate()] * (mesh.ndim - 1))


def by_length(tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Distribute a batch by its positions, over the last axis."""
    return distribute_tensor(tokens, mesh, [Replicate()] * (mesh.ndim - 1) + [Shard(1)])


Parallelize = Callable[[nn.Module, DeviceMesh], nn.Module]
Feed = Callable[[torch.Tensor, DeviceMesh], torch.Tensor]


def train(
    make: Callable[[], nn.Module],
    path: Path,
    *,
    sizes: dict[str, int] | None = None,
    parallelize: Parallelize | None = None,
    feed: Feed = whole,
    dtype: torch.dtype = torch.float32,
    num_steps: int = 2,
    fault: Callable[[nn.Module, int], AbstractContextManager[Any]] | None = None,
    level: str = "op",
) -> None:
    """Train a model for some steps, recorded to a file of this rank."""
    torch.manual_seed(0)
    model, mesh = make().to(dtype), None
    generator = torch.Generator().manual_seed(1)
    if sizes is not None:
        names = tuple(sizes)
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
    if parallelize is not None and mesh is not None:
        model = parallelize(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with commtrace.record(values=level) as recording:
        for step in range(num_steps):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
            fed = tokens if mesh is None else feed(tokens, mesh)
            with fault(model, step) if fault is not None else nullcontext():
                logits = model(fed)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), fed.flatten())
                recording.observe("loss", loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    rank = dist.get_rank() if dist.is_initialized() else 0
    recording.save(path / f"rank{rank}.json")


def recorded(make: Callable[[], nn.Module], world_size: int = 1, **options: Any) -> Frames:
    """Train a model on thread ranks, and return what they recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if world_size == 1:
            train(make, path, **options)
        else:
            run_threads(lambda: train(make, path, **options), world_size)
        return frames_of(read_parts(sorted(path.glob("*.json"))))
