"""Tensor-parallel styles issue exactly the collectives that torch's do, forward and backward."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.debug import CommDebugMode
from dtensor_core.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.drop_in.counted import RANKS, functional, with_each_counter
from tests.dtensor_core.models.small_models import RMSNormPython


def sharded(module: nn.Module, style: Any) -> nn.Module:
    """Parallelize a copy of a module with a style, on all ranks."""
    return parallelize_module(deepcopy(module), init_device_mesh("cpu", (RANKS,)), style)


def expect(counter: Any, **counts: int) -> None:
    """Assert the counts of the named collectives, and that there are no others."""
    found = counter.get_comm_counts()
    assert {name: found[getattr(functional, name)] for name in counts} == counts
    assert counter.get_total_counts() == sum(counts.values())


@with_each_counter
def test_a_colwise_linear_reduces_the_gradient_of_its_input(run) -> None:
    def body(mode: Any) -> None:
        counter = mode()
        x = torch.rand(8, 16, requires_grad=True)
        layer = nn.Linear(16, 16)
        plain = sharded(layer, ColwiseParallel())
        with counter:
            out = plain(x)
            assert out.shape == (8, 16 // RANKS)
            expect(counter)
            out.sum().backward()
            expect(counter, all_reduce=1)
        assert x.grad is not None
        gathering = sharded(layer, ColwiseParallel(input_layouts=Shard(0)))
        with counter:
            out = gathering(x)
            assert out.shape == (8 * RANKS, 16 // RANKS)
            expect(counter, all_gather_into_tensor=1)
            out.sum().backward()
            expect(counter, all_gather_into_tensor=1, reduce_scatter_tensor=1)

    run(body)


@on_threads(RANKS)
def test_a_colwise_linear_shards_the_gradient_of_the_output_that_it_hands_on() -> None:
    style = ColwiseParallel(use_local_output=False)
    linear = parallelize_module(nn.Linear(4, 8), kept_mesh((RANKS,)), style)
    with CommDebugMode() as counter:
        linear(torch.ones(2, 4)).sum().backward()
    assert counter.get_total_counts() == 0
    for parameter in linear.parameters():
        assert parameter.grad.placements == (Shard(0),)  # pyright: ignore
        assert torch.equal(parameter.grad.full_tensor(), torch.full(parameter.shape, 2.0))  # pyright: ignore


@with_each_counter
def test_a_colwise_embedding_sends_nothing(run) -> None:
    def body(mode: Any) -> None:
        tokens = torch.arange(8).reshape(4, 2)
        table = sharded(nn.Embedding(16, 16), ColwiseParallel())
        counter = mode()
        with counter:
            out = table(tokens)
            assert out.shape == (4, 2, 16 // RANKS)
            expect(counter)
            out.sum().backward()
            expect(counter)

    run(body)


@with_each_counter
def test_a_rowwise_linear_reduces_its_output(run) -> None:
    def body(mode: Any) -> None:
        counter = mode()
        x = torch.rand(8, 16 // RANKS, requires_grad=True)
        layer = nn.Linear(16, 16)
        reducing = sharded(layer, RowwiseParallel())
        with counter:
            out = reducing(x)
            assert out.shape == (8, 16)
            expect(counter, all_reduce=1)
            out.sum().backward()
            expect(counter, all_reduce=1)
        scattering = sharded(layer, RowwiseParallel(output_layouts=Shard(0)))
        with counter:
            out = scattering(x)
            assert out.shape == (8 // RANKS, 16)
            expect(counter, reduce_scatter_tensor=1)
            out.sum().backward()
            expect(counter, reduce_scatter_tensor=1, all_gather_into_tensor=1)

    run(body)


@with_each_counter
def test_a_rowwise_embedding_reduces_its_output(run) -> None:
    def body(mode: Any) -> None:
        counter = mode()
        table = nn.Embedding(16, 16)
        reducing = sharded(table, RowwiseParallel(input_layouts=Replicate()))
        with counter:
            out = reducing(torch.arange(8).reshape(4, 2))
            assert out.shape == (4, 2, 16)
            expect(counter, all_reduce=1)
            out.sum().backward()
            expect(counter, all_reduce=1)
        scattering = sharded(
            table, RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        )
        with counter:
            out = scattering(torch.arange(8))
            assert out.shape == (8, 16 // RANKS)
            expect(counter, reduce_scatter_tensor=1)
            out.sum().backward()
            expect(counter, reduce_scatter_tensor=1, all_gather_into_tensor=1)

    run(body)


class Adding(nn.Module):
    """A linear layer with a second input added to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + y


class AddingNamed(Adding):
    def forward(self, x: torch.Tensor, *, y: torch.Tensor, z: float = 2) -> torch.Tensor:  # pyright: ignore
        return self.linear(x) + y + z


class AddingAllNamed(Adding):
    def forward(self, *, x: Any, y: Any = 2, z: Any = None) -> torch.Tensor:  # pyright: ignore
        return self.linear(x) + y + z


@on_threads(RANKS)
def test_inputs_are_gathered_and_outputs_sharded() -> None:
    gather = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    full = sharded(nn.Identity(), gather)(torch.ones(2, 16)).full_tensor()
    assert torch.equal(full, torch.ones(2 * RANKS, 16))
    chop = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    assert torch.equal(sharded(nn.Identity(), chop)(torch.ones(8, 16)), torch.ones(8 // RANKS, 16))
    both = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(1),
    )
    out = sharded(nn.Identity(), both)(torch.ones(2, 16))
    assert torch.equal(out, torch.ones(2 * RANKS, 16 // RANKS))


def test_input_layouts_and_desired_layouts_have_equal_lengths() -> None:
    with pytest.raises(
        AssertionError, match="input_layouts and desired_input_layouts should have same length!"
    ):
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))


@on_threads(RANKS)
def test_layouts_must_be_as_many_as_inputs() -> None:
    mesh = kept_mesh((RANKS,))
    x, y = torch.randn(2, 8), torch.ones(RANKS * 2, 8 // RANKS)
    for layouts, wanted in (((Shard(0),), (Replicate(),)), ((Shard(0), None), (Replicate(), None))):
        module = Adding()
        parallelize_module(module.linear, mesh, ColwiseParallel())
        style = PrepareModuleInput(input_layouts=layouts, desired_input_layouts=wanted)
        parallelize_module(module, mesh, style)
        if len(layouts) == 1:
            with pytest.raises(
                ValueError, match="module inputs and input_layouts should have same length!"
            ):
                module(x, y)
        else:
            assert module(x, y).shape == (RANKS * 2, 8 // RANKS)


@with_each_counter
def test_each_named_input_that_is_gathered_is_one_collective(run) -> None:
    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        colwise = ColwiseParallel(use_local_output=False)
        counter = mode()

        one = AddingNamed()
        parallelize_module(one.linear, mesh, colwise)
        gather_y = PrepareModuleInput(
            input_kwarg_layouts={"y": Shard(0)}, desired_input_kwarg_layouts={"y": Replicate()}
        )
        parallelize_module(one, mesh, gather_y)
        with counter:
            out = one(torch.randn(RANKS, 8), y=torch.ones(1, 8))
        assert counter.get_total_counts() == 1
        assert out.shape == (RANKS, 8)

        two = AddingAllNamed()
        parallelize_module(two.linear, mesh, colwise)
        gather_xz = PrepareModuleInput(
            input_kwarg_layouts={"x": Shard(0), "z": Shard(0)},
            desired_input_kwarg_layouts={"x": Replicate(), "z": Replicate()},
        )
        parallelize_module(two, mesh, gather_xz)
        x = torch.randn(1, 8)
        for given in (x, DTensor.from_local(x, mesh, [Shard(0)])):
            with counter:
                out = two(x=given, z=torch.ones(1, 8))
            assert counter.get_total_counts() == 2
            assert out.shape == (RANKS, 8)

    run(body)


NORMS = [
    (nn.LayerNorm(12), ("weight", "bias")),
    (nn.LayerNorm(12, elementwise_affine=False), ()),
    (RMSNormPython(12), ("weight",)),
    (nn.Dropout(0.5), ()),
]


@with_each_counter
@pytest.mark.parametrize(("module", "parameters"), NORMS, ids=lambda value: "")
def test_sequence_parallel_sends_nothing_and_leaves_partial_sums_of_gradients(
    run, module, parameters
) -> None:
    full = torch.rand(20, 8 * RANKS, 12, generator=torch.Generator().manual_seed(0))
    expected = module(full)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        x = distribute_tensor(full.clone().requires_grad_(), mesh, [Shard(1)])
        norm = sharded(module, SequenceParallel())
        counter = mode()
        with counter:
            out = norm(x)
            out.backward(torch.ones_like(out))
        assert isinstance(out, DTensor)
        assert out.placements == (Shard(1),)
        expect(counter)
        for name in parameters:
            assert getattr(norm, name).grad.placements == (Partial(),)
        if mode.__module__.startswith("commtrace") and not isinstance(module, nn.Dropout):
            torch.testing.assert_close(out.full_tensor(), expected)

    run(body)


@with_each_counter
def test_sequence_parallel_moves_an_input_that_is_sharded_along_another_dim(run) -> None:
    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        x = distribute_tensor(torch.rand(20, 8, 12, requires_grad=True), mesh, [Shard(0)])
        norm = sharded(RMSNormPython(12), SequenceParallel())
        counter = mode()
        with counter:
            out = norm(x)
            out.backward(torch.ones_like(out))
        assert out.placements == (Shard(1),)
        assert norm.weight.grad.placements == (Partial(),)
        assert counter.get_total_counts() == 2

    run(body)
