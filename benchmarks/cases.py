"""What is timed: each case on plain tensors, on dtensor_core and on torch.distributed.tensor.

Both DTensors have the same public names, so a case is written once, against `Kit`; plain is what
one rank would do by hand, with tensors of the size of its shard, and for a training step the whole
model on one rank. All run as rank 0 of a fake process group of 4, which computes and dispatches
like a real one, and sends nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.measure import Contender
from dtensor_core.testing import MLPModule, ModelArgs, Transformer, fake_world

RANKS = 4
ROWS, COLUMNS = 64, 32
BATCH, SEQUENCE = 4, 32
MODEL = ModelArgs(
    n_layers=2,
    vocab_size=64,
    max_seq_len=SEQUENCE,
    dim=64,
    n_heads=RANKS,
    dropout_p=0.0,
    weight_tying=False,
)


@dataclass(frozen=True, slots=True)
class Kit:
    """One DTensor: its tensors and placements, and its tensor-parallel styles."""

    tensor: Any
    parallel: Any


def kits() -> dict[str, Kit]:
    """The DTensors to compare, by the name of their package."""
    homes = {
        "dtensor_core": ("dtensor_core", "dtensor_core.parallel"),
        "torch": ("torch.distributed.tensor", "torch.distributed.tensor.parallel"),
    }
    return {
        name: Kit(*(importlib.import_module(module) for module in modules))
        for name, modules in homes.items()
    }


@contextmanager
def fake_ranks() -> Iterator[DeviceMesh]:
    """A mesh of `RANKS` in a fake world, for as long as the body runs."""
    with fake_world(RANKS):
        yield init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is timed: `plain(mesh)` and `sharded(kit, mesh)` make what is called."""

    name: str
    about: str
    plain: Callable[[DeviceMesh], Contender]
    sharded: Callable[[Kit, DeviceMesh], Contender]


def _operator(
    name: str,
    about: str,
    operator: Callable[..., object],
    *,
    weights: tuple[int, ...] | None = None,
) -> Case:
    """A case of an operator on `[ROWS, COLUMNS]` cut by rows, and perhaps on whole weights."""

    def plain(mesh: DeviceMesh) -> Contender:
        local = torch.ones(ROWS // RANKS, COLUMNS)
        arguments = (local,) if weights is None else (local, torch.ones(weights))
        return lambda: operator(*arguments)

    def sharded(kit: Kit, mesh: DeviceMesh) -> Contender:
        api = kit.tensor
        cut = api.distribute_tensor(torch.ones(ROWS, COLUMNS), mesh, [api.Shard(0)])
        if weights is None:
            return lambda: operator(cut)
        whole = api.distribute_tensor(torch.ones(weights), mesh, [api.Replicate()])
        return lambda: operator(cut, whole)

    return Case(name, about, plain, sharded)


def _double(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, x)


def _gather_by_hand(mesh: DeviceMesh) -> Contender:
    local = torch.ones(ROWS // RANKS, COLUMNS)
    group = mesh.get_group().group_name
    ops = torch.ops._c10d_functional
    return lambda: ops.wait_tensor(ops.all_gather_into_tensor(local, RANKS, group))


def _gather(kit: Kit, mesh: DeviceMesh) -> Contender:
    api = kit.tensor
    cut = api.distribute_tensor(torch.ones(ROWS, COLUMNS), mesh, [api.Shard(0)])
    return lambda: cut.redistribute(mesh, [api.Replicate()]).to_local()


def _step(model: torch.nn.Module, loss_of: Callable[[torch.nn.Module], torch.Tensor]) -> Contender:
    """A training step that leaves the weights as they are, so that every step is alike."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return step


def _mlp_loss(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.ones(ROWS, 10)).square().sum()


def _mlp(mesh: DeviceMesh) -> Contender:
    return _step(MLPModule("cpu"), _mlp_loss)


def _parallel_mlp(kit: Kit, mesh: DeviceMesh) -> Contender:
    styles = kit.parallel
    model = MLPModule("cpu")
    plan = {"net1": styles.ColwiseParallel(), "net2": styles.RowwiseParallel()}
    styles.parallelize_module(model, mesh, plan)
    return _step(model, _mlp_loss)


def _transformer_loss(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE) % MODEL.vocab_size
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def _transformer(mesh: DeviceMesh) -> Contender:
    return _step(Transformer(MODEL), _transformer_loss)


def _parallel_transformer(kit: Kit, mesh: DeviceMesh) -> Contender:
    """Matrices in pairs, by columns and then by rows; whole activations between the pairs."""
    api, styles = kit.tensor, kit.parallel
    whole = api.Replicate()
    plan = {
        "tok_embeddings": styles.RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "pos_embeddings": styles.RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "layers.*.attention": styles.PrepareModuleInput(
            input_layouts=whole, desired_input_layouts=whole
        ),
        "layers.*.attention.w[qkv]": styles.ColwiseParallel(use_local_output=False),
        "layers.*.attention.wo": styles.RowwiseParallel(output_layouts=whole),
        "layers.*.feed_forward.w1": styles.ColwiseParallel(),
        "layers.*.feed_forward.w2": styles.RowwiseParallel(output_layouts=whole),
        "output": styles.ColwiseParallel(output_layouts=whole),
    }
    model = Transformer(MODEL)
    styles.parallelize_module(model, mesh, plan)
    return _step(model, _transformer_loss)


CASES = (
    _operator("add", "x + x, x [64, 32] cut by rows", _double),
    _operator("mm", "x @ w, w [32, 32] on every rank", torch.mm, weights=(COLUMNS, COLUMNS)),
    _operator("relu", "relu(x)", torch.relu),
    Case("redistribute", "x from S(0) to R: an all-gather", _gather_by_hand, _gather),
    Case("mlp", "a training step of two layers, tensor parallel", _mlp, _parallel_mlp),
    Case(
        "transformer",
        "a training step of a 2-layer Transformer, tensor parallel",
        _transformer,
        _parallel_transformer,
    ),
)
