"""Plans of styles for models: the values of a single device, and the asserted collectives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard, init_device_mesh
from dtensor_core.debug import CommDebugMode
from dtensor_core.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.drop_in.counted import RANKS, functional
from tests.dtensor_core.models.small_models import MLPModule, MLPStacked, ModelArgs, Transformer

PAIR = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
GATHERED = ColwiseParallel(output_layouts=Replicate())
FROM_ROOT = {
    "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
    "net1": ColwiseParallel(input_layouts=Shard(0)),
    "net2": RowwiseParallel(),
}
PLANS: list[tuple[Any, Any]] = [
    (MLPModule, PAIR),
    (MLPModule, {"net1": GATHERED, "net2": RowwiseParallel(input_layouts=Replicate())}),
    (MLPModule, {"net*": GATHERED}),
    (MLPModule, {"net?": GATHERED}),
    (MLPModule, {"net[1-2]": GATHERED}),
    (MLPModule, FROM_ROOT),
    (MLPStacked, {"layers.*.net[1]": ColwiseParallel(), "layers.*.net[2]": RowwiseParallel()}),
    (MLPStacked, {"layers.*": PAIR}),
]


def data(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def full(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize(("make", "plan"), PLANS)
def test_a_plan_changes_no_value_over_steps_of_training(make: Any, plan: Any) -> None:
    inputs, plain = data(8, 10), make("cpu")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
    expected = []
    for _ in range(2):
        optimizer.zero_grad()
        expected.append(plain(inputs))
        expected[-1].sum().backward()
        optimizer.step()

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((2, RANKS // 2), ("dp", "tp"))["tp"]
        with mesh:
            model = parallelize_module(make("cpu"), parallelize_plan=copy.deepcopy(plan))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        for wanted in expected:
            optimizer.zero_grad()
            out = full(model(inputs))
            torch.testing.assert_close(out, wanted)
            out.sum().backward()
            optimizer.step()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(mine), theirs)

    body()


@pytest.mark.parametrize("sharded", [False, True])
def test_an_mlp_sends_once_before_and_once_behind(sharded: bool) -> None:
    plain, inputs = MLPModule("cpu"), data(8, 10)
    expected = plain(inputs)
    expected.sum().backward()

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        layout = Shard(0) if sharded else Replicate()
        plan = {
            "net1": ColwiseParallel(input_layouts=layout),
            "net2": RowwiseParallel(output_layouts=layout),
        }
        model = parallelize_module(MLPModule("cpu"), mesh, plan)
        rank = mesh.get_local_rank()
        with CommDebugMode() as counter:
            out = model(inputs.chunk(RANKS)[rank] if sharded else inputs)
        gather, scatter = functional.all_gather_into_tensor, functional.reduce_scatter_tensor
        assert counter.get_comm_counts() == (
            {gather: 1, scatter: 1} if sharded else {functional.all_reduce: 1}
        )
        torch.testing.assert_close(out, expected.chunk(RANKS)[rank] if sharded else expected)
        out.sum().backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert isinstance(mine.grad, DTensor)
            torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)

    body()


@pytest.mark.parametrize("sequence", [False, True])
def test_a_transformer_equals_one_device_and_books_its_collectives(sequence: bool) -> None:
    torch.manual_seed(0)
    plain = Transformer(ModelArgs(dropout_p=0.0, vocab_size=16)).double()
    tokens = torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(1))
    expected = plain(tokens)
    expected.sum().backward()

    @on_threads(RANKS)
    def body() -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        model = Transformer.parallelize(copy.deepcopy(plain), mesh, sequence)
        model.zero_grad()
        with CommDebugMode() as counter:
            out = model(tokens)
        torch.testing.assert_close(full(out), expected)
        counts = counter.get_comm_counts()
        if sequence:
            gather, scatter = functional.all_gather_into_tensor, functional.reduce_scatter_tensor
            assert counts == {gather: 6, scatter: 6}
        else:
            assert counts == {functional.all_reduce: 6, functional.all_gather_into_tensor: 1}
            counted = counter.comm_module_counts
            for name, number in {
                "Global": 6,
                "Transformer": 6,
                "Transformer.tok_embeddings": 1,
                "Transformer.pos_embeddings": 1,
                "Transformer.layers.0": 2,
                "Transformer.layers.0.attention": 1,
                "Transformer.layers.0.attention.wo": 1,
                "Transformer.layers.1.feed_forward.w2": 1,
            }.items():
                assert counted[name]["forward"][functional.all_reduce] == number
            output = counted["Transformer.output"]["forward"]
            assert output == {functional.all_gather_into_tensor: 1}
        out.sum().backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(full(mine.grad), theirs.grad)

    body()


@on_threads(RANKS)
def test_a_plan_on_the_meta_device_is_made_real_afterwards() -> None:
    mesh = kept_mesh((RANKS,))
    layer = parallelize_module(nn.Linear(4, 8, device="meta"), mesh, ColwiseParallel())
    assert all(parameter.is_meta for parameter in layer.parameters())
    layer.to_empty(device="cpu")
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    assert torch.equal(layer.weight.full_tensor(), nn.Linear(4, 8).weight)
