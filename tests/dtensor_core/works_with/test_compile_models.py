"""torch.compile over parallelized models and optimizers: training steps equal to eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dtensor_core import DeviceMesh, Replicate, Shard, init_device_mesh
from dtensor_core.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.testing import run_processes, run_threads
from tests.dtensor_core.models.small_models import MLPModule, ModelArgs, Transformer
from tests.dtensor_core.works_with.compiled import forgotten, full, needs_cpp  # noqa: F401

Make = Callable[[DeviceMesh], nn.Module]


class Block(nn.Module):
    """Norm, MLP and residual, on shards of the sequence except inside of the MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(10)
        self.mlp = MLPModule("cpu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


def mlp(mesh: DeviceMesh) -> nn.Module:
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    return parallelize_module(MLPModule("cpu"), mesh, plan)


def block(mesh: DeviceMesh) -> nn.Module:
    plan = {
        "norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.net1": ColwiseParallel(),
        "mlp.net2": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(Block(), mesh, plan)


def transformer(mesh: DeviceMesh) -> nn.Module:
    model = Transformer(ModelArgs(n_layers=1, dropout_p=0.0))
    return Transformer.parallelize(model, mesh, use_seq_parallel=True)


def features() -> torch.Tensor:
    return torch.randn(4, 10)


def tokens() -> torch.Tensor:
    return torch.randint(0, 8, (2, 8))


def train(make: Make, inputs: Callable[[], torch.Tensor], backend: str) -> None:
    """Compare two steps of SGD in eager and compiled: results and parameters."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make(mesh))
    eager, model = models
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for step in range(2):
        torch.manual_seed(step)
        x = inputs()
        for forward in (eager, compiled):
            forward(x).square().sum().backward()
        torch.testing.assert_close(compiled(x), eager(x))
        for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert mine.grad.placements == theirs.grad.placements  # pyright: ignore
            torch.testing.assert_close(full(mine.grad), full(theirs.grad))
            with torch.no_grad():
                for parameter in (mine, theirs):
                    parameter.sub_(0.1 * parameter.grad)  # pyright: ignore
                    parameter.grad = None


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (mlp, features),
        (block, lambda: torch.randn(2, 3, 10)),
        (transformer, tokens),
    ],
)
def test_training_a_compiled_model(make: Make, inputs: Callable[[], torch.Tensor]) -> None:
    run_threads(train, 2, make, inputs, "aot_eager")


def test_training_over_gloo() -> None:
    run_processes(train, 2, mlp, features, "aot_eager")


@needs_cpp
def test_training_with_inductor() -> None:
    with torch._inductor.config.patch(compile_threads=1):
        run_threads(train, 2, mlp, features, "inductor", timeout_s=240)


def step_twice() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    eager, model = mlp(mesh), mlp(mesh)
    plain = torch.optim.AdamW(eager.parameters(), lr=0.1, foreach=True)
    traced = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    compiled = torch.compile(traced.step, backend="aot_eager")
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(4, 10)
        eager(x).square().sum().backward()
        model(x).square().sum().backward()
        plain.step()
        compiled()
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(full(mine), full(theirs))


def test_a_compiled_optimizer_step() -> None:
    run_threads(step_twice, 2)
