"""Programs that communicate by hand, with layouts that they declare or not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.values import compare
from commtrace.errors import UsageError
from commtrace.tracefile import read_parts
from dtensor_core import Partial, Replicate, Shard
from dtensor_core.testing import fake_world, run_threads

WIDTH, HIDDEN, NUM_RANKS = 6, 8, 2


class _Copy(torch.autograd.Function):
    """Input of a column parallel layer: its gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Reduce(torch.autograd.Function):
    """Output of a row parallel layer, summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Up(nn.Linear):
    """Column parallel, if it is given a part of its weight."""

    is_parallel = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rank's part of the hidden numbers."""
        copied: Any = _Copy.apply(input) if self.is_parallel else input
        return super().forward(copied)


class Down(nn.Linear):
    """Row parallel, if it is given a part of its weight."""

    is_parallel, is_reduced = False, True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks."""
        contribution = super().forward(input)
        return _Reduce.apply(contribution) if self.is_parallel and self.is_reduced else contribution  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Up(WIDTH, HIDDEN, bias=False), Down(HIDDEN, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        return self.head(self.down(self.up(x).relu()))

    def keep_part(self, rank: int, num_ranks: int) -> None:
        """Keep the part of a rank of the parallel layers."""
        self.up.is_parallel = self.down.is_parallel = True
        for layer, dim in ((self.up, 0), (self.down, 1)):
            layer.weight = nn.Parameter(layer.weight.detach().chunk(num_ranks, dim)[rank].clone())


def recorded(num_ranks: int, *, is_declared: bool = True, is_reduced: bool = True) -> Frames:
    """Train the layer for two steps on some ranks."""

    def train(folder: str) -> None:
        torch.manual_seed(0)
        model = Layer()
        if num_ranks > 1:
            model.keep_part(dist.get_rank(), num_ranks)
        model.down.is_reduced = is_reduced
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with commtrace.record(values="module") as recording:
            if num_ranks > 1 and is_declared:
                mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("tp",))
                recording.declare(model.up.weight, mesh, [Shard(0)])
                recording.declare(model.down.weight, mesh, [Shard(1)])
                recording.declare(model.up, mesh, [Shard(-1)])
                recording.declare(model.down, mesh, [Replicate()])
            for _ in range(2):
                model(torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
        recording.save(Path(folder) / f"rank{dist.get_rank() if num_ranks > 1 else 0}.json")

    with tempfile.TemporaryDirectory() as folder:
        run_threads(train, num_ranks, folder) if num_ranks > 1 else train(folder)
        return frames_of(read_parts(sorted(Path(folder).glob("*.json"))))


def test_declared_layouts_are_compared_like_those_of_distributed_tensors() -> None:
    found = compare(recorded(1), recorded(NUM_RANKS))
    assert found.agrees, found.fault
    names = set(found.pairs["name"])
    assert {"up.weight", "down.weight", "head.weight"} <= names
    of_up = found.pairs[found.pairs["module"] == "up"]
    assert {"output", "output_gradient", "gradient", "state", "updated"} <= set(of_up["role"])


def test_parts_of_unknown_layout_are_compared_by_their_sums_and_norms() -> None:
    found = compare(recorded(1), recorded(NUM_RANKS, is_declared=False))
    assert found.agrees, found.fault
    layouts = found.pairs.groupby("name")["layout_right"].agg(set)
    assert layouts["up.weight"] == {"in parts on ranks"}
    assert "in parts on ranks" not in layouts["head.weight"]


def test_a_missing_reduction_is_found_at_its_module() -> None:
    run = recorded(NUM_RANKS, is_reduced=False)
    found = compare(recorded(1), run).fault
    assert found is not None
    assert (found.right["step"], found.right["module"], found.right["role"]) == (
        0,
        "down",
        "output",
    )
    assert found.is_certain
    (problem, *_) = CATALOG["consistency"].function(run).to_dict("records")
    assert problem["problem"] == "replicas differ"
    assert "in down has the layout tp:R" in problem["explanation"]


def test_without_a_declaration_a_missing_reduction_is_found_as_a_sum() -> None:
    found = compare(recorded(1), recorded(NUM_RANKS, is_declared=False, is_reduced=False)).fault
    assert found is not None
    assert (found.right["module"], found.right["role"]) == ("down", "output")
    assert (
        found.relation.text == "ranks have parts of a sum that is right, and nothing reduces them"
    )


class Copy(nn.Module):
    """Input of column parallel layers, whose gradients are contributions to a sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input; gradients are summed behind it."""
        return _Copy.apply(x) * 1.0 if dist.is_initialized() else x * 1.0  # type: ignore[no-any-return]


def _of_copied_input(num_ranks: int, gradient: Any = None) -> Frames:
    """Train a column parallel layer whose input passes a module that is declared replicated."""

    def train(folder: str) -> None:
        torch.manual_seed(0)
        model: Any = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), Copy(), nn.Linear(WIDTH, HIDDEN, bias=False)
        )
        _, copy, up = model
        if num_ranks > 1:
            part = up.weight.detach().chunk(num_ranks)[dist.get_rank()]
            up.weight = nn.Parameter(part.clone())
        with commtrace.record(values="module") as recording:
            if num_ranks > 1:
                mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("tp",))
                recording.declare(up.weight, mesh, [Shard(0)])
                recording.declare(up, mesh, [Shard(-1)])
                recording.declare(copy, mesh, [Replicate()], gradient=gradient)
            model(torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)).square().sum().backward()
            recording.step()
        recording.save(Path(folder) / f"rank{dist.get_rank() if num_ranks > 1 else 0}.json")

    with tempfile.TemporaryDirectory() as folder:
        run_threads(train, num_ranks, folder) if num_ranks > 1 else train(folder)
        return frames_of(read_parts(sorted(Path(folder).glob("*.json"))))


def test_a_replicated_output_may_have_a_partial_gradient() -> None:
    run = _of_copied_input(NUM_RANKS, [Partial()])
    found = compare(_of_copied_input(1), run)
    assert found.agrees, found.fault
    of_copy = found.pairs[found.pairs["module"] == "1"]
    assert set(of_copy["role"]) == {"output", "output_gradient"}
    assert not CATALOG["consistency"].function(run)["is_fault"].any()


def test_the_gradient_of_a_replica_has_no_layout_unless_it_is_declared() -> None:
    run = _of_copied_input(NUM_RANKS)
    assert not CATALOG["consistency"].function(run)["is_fault"].any()
    found = compare(_of_copied_input(1), run)
    assert found.agrees, found.fault
    of_copy = found.pairs[(found.pairs["module"] == "1") & (found.pairs["phase"] == "backward")]
    assert of_copy["is_sum"].all()
    assert len(of_copy)


def test_a_gradient_that_is_declared_wrongly_is_a_difference() -> None:
    fault = compare(_of_copied_input(1), _of_copied_input(NUM_RANKS, [Replicate()])).fault
    assert fault is not None
    assert (fault.right["module"], fault.right["role"]) == ("1", "output_gradient")


def test_a_parameter_has_no_gradient_of_another_layout() -> None:
    with fake_world(2), commtrace.record(values="module") as recording:
        mesh = init_device_mesh("cpu", (2,))
        weight = nn.Linear(2, 2).weight
        with pytest.raises(UsageError, match="a parameter with `gradient`"):
            recording.declare(weight, mesh, [Shard(0)], gradient=[Shard(0)])
        with pytest.raises(UsageError, match="2 placements for a mesh of 1 axes"):
            recording.declare(nn.Linear(2, 2), mesh, [Shard(0)], gradient=[Shard(0), Shard(1)])


def test_a_declaration_has_a_placement_for_each_axis() -> None:
    with fake_world(2), commtrace.record(values="module") as recording:
        mesh = init_device_mesh("cpu", (2,))
        with pytest.raises(UsageError, match="2 placements for a mesh of 1 axes"):
            recording.declare(nn.Linear(2, 2), mesh, [Shard(0), Shard(1)])
