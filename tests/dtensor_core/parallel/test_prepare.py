"""Styles that set the layouts of inputs and outputs."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard
from dtensor_core.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    parallelize_module,
)
from dtensor_core.testing import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

RANKS = 4


def prepared(module, style):
    return parallelize_module(deepcopy(module), kept_mesh((RANKS,)), style)


class Sum(nn.Module):
    """Returns its inputs."""

    def forward(self, x, y=None, *, z=None):
        return x, y, z


class LinearPlus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x, *, y, z=2):
        return self.linear(x) + y + z


class KwargsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, *, x, y=2, z=None):
        return self.linear(x) + y + z


@on_threads(RANKS)
def test_an_input_is_gathered():
    style = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    with Collectives() as issued:
        output = prepared(nn.Identity(), style)(torch.ones(2, 16))
    assert issued == {"all_gather_into_tensor": 1}
    assert torch.equal(output.to_local(), torch.ones(2 * RANKS, 16))


@on_threads(RANKS)
def test_an_output_is_sharded():
    style = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    with Collectives() as issued:
        output = prepared(nn.Identity(), style)(torch.ones(8, 16))
    assert issued == {}
    assert type(output) is torch.Tensor
    assert torch.equal(output, torch.ones(8 // RANKS, 16))


@on_threads(RANKS)
def test_inputs_without_a_layout_are_left_alone():
    style = PrepareModuleInput(
        input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None)
    )
    plain = torch.ones(2)
    x, y, z = prepared(Sum(), style)(torch.ones(2), plain)
    assert x.shape == (8,)
    assert y is plain
    assert z is None


@on_threads(RANKS)
def test_several_inputs_as_a_module_with_a_sharded_linear_gets_them():
    class Plus(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, y):
            return self.linear(x) + y

    mesh = kept_mesh((RANKS,))
    arguments = torch.randn(2, 8), torch.ones(RANKS * 2, 8 // RANKS)
    module = Plus()
    parallelize_module(module.linear, mesh, ColwiseParallel())
    parallelize_module(
        module,
        mesh,
        PrepareModuleInput(
            input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None)
        ),
    )
    assert module(*arguments).shape == (RANKS * 2, 8 // RANKS)


@on_threads(RANKS)
def test_keyword_inputs():
    style = PrepareModuleInput(
        input_kwarg_layouts={"y": Shard(0)}, desired_input_kwarg_layouts={"y": Replicate()}
    )
    module = LinearPlus()
    parallelize_module(module.linear, kept_mesh((RANKS,)), ColwiseParallel(use_local_output=False))
    parallelize_module(module, kept_mesh((RANKS,)), style)
    with Collectives() as issued:
        output = module(torch.randn(RANKS, 8), y=torch.ones(1, 8))
    assert issued == {"all_gather_into_tensor": 1}
    assert output.shape == (RANKS, 8)


@on_threads(RANKS)
def test_keyword_inputs_only_plain_or_dtensors():
    style = PrepareModuleInput(
        input_kwarg_layouts={"x": Shard(0), "z": Shard(0)},
        desired_input_kwarg_layouts={"x": Replicate(), "z": Replicate()},
    )
    mesh = kept_mesh((RANKS,))
    module = KwargsOnly()
    parallelize_module(module.linear, mesh, ColwiseParallel(use_local_output=False))
    parallelize_module(module, mesh, style)
    local = torch.randn(1, 8)
    for x in (local, DTensor.from_local(local, mesh, [Shard(0)])):
        with Collectives() as issued:
            output = module(x=x, z=torch.ones(1, 8))
        assert issued == {"all_gather_into_tensor": 2}
        assert output.shape == (RANKS, 8)


@on_threads(RANKS)
def test_a_module_may_get_local_inputs():
    style = PrepareModuleInput(
        input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
    )
    output = prepared(nn.Identity(), style)(torch.ones(2))
    assert type(output) is torch.Tensor
    assert output.shape == (8,)


@on_threads(RANKS)
def test_an_annotation_alone_communicates_nothing():
    style = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1))
    with Collectives() as issued:
        output = prepared(nn.Identity(), style)(torch.ones(2, 2))
    assert issued == {}
    assert output.placements == (Shard(1),)


@on_threads(RANKS)
def test_inputs_and_outputs_at_once():
    style = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(1),
    )
    with Collectives() as issued:
        output = prepared(nn.Identity(), style)(torch.ones(2, 8))
    assert issued == {"all_gather_into_tensor": 1}
    assert output.shape == (8, 2)


@on_threads(RANKS)
def test_several_outputs():
    style = PrepareModuleOutput(
        output_layouts=(Replicate(), None, None),
        desired_output_layouts=(Shard(0), None, None),
        use_local_output=False,
    )
    x, y, z = prepared(Sum(), style)(torch.ones(4), 5)
    assert x.placements == (Shard(0),)
    assert (y, z) == (5, None)


@on_threads(RANKS)
def test_gradients_go_back_through_both():
    style = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(0),
    )
    value = torch.ones(2, 3, requires_grad=True)
    prepared(nn.Identity(), style)(value).mul(3).sum().backward()
    assert torch.equal(value.grad, torch.full((2, 3), 3.0))


def test_layouts_must_be_equally_many():
    with pytest.raises(
        AssertionError, match="input_layouts and desired_input_layouts should have same length!"
    ):
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))
    with pytest.raises(
        AssertionError,
        match="input_kwarg_layouts and desired_input_kwarg_layouts should have same length!",
    ):
        PrepareModuleInput(input_kwarg_layouts={"x": Shard(0)})
    with pytest.raises(AssertionError, match="desired module inputs should not be None!"):
        PrepareModuleInput(input_layouts=Shard(0))
    with pytest.raises(
        AssertionError, match="output_layouts and desired_output_layouts should have same length!"
    ):
        PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=(Shard(0), Shard(0)))


def test_the_full_text_of_an_error():
    with pytest.raises(AssertionError) as error:
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))
    assert str(error.value) == (
        "input_layouts=(Shard(dim=0),) and desired_input_layouts=(Replicate(), None)\n"
        "  Found: 1 and 2 layouts; input_layouts and desired_input_layouts should have same "
        "length!\n"
        "  Try: pass None for each tensor to leave unchanged"
    )


@on_threads(RANKS)
def test_inputs_must_be_as_many_as_layouts():
    style = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    with pytest.raises(
        ValueError, match="module inputs and input_layouts should have same length!"
    ):
        prepared(Sum(), style)(torch.ones(2), torch.ones(2))
    style = PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate())
    with pytest.raises(
        ValueError, match="module outputs and output_layouts should have same length!"
    ):
        prepared(Sum(), style)(torch.ones(2))


@on_threads(RANKS)
def test_what_has_a_layout_must_be_a_tensor():
    style = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    with pytest.raises(AssertionError, match=r"expecting input to be a torch\.Tensor!"):
        prepared(Sum(), style)(5)


def test_a_style_has_a_repr():
    style = PrepareModuleInputOutput(
        input_layouts=(Shard(0), None),
        desired_input_layouts=(Replicate(), None),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(1),
    )
    assert repr(style) == (
        "PrepareModuleInputOutput("
        "PrepareModuleInput(input_layouts=(Shard(dim=0), None), "
        "desired_input_layouts=(Replicate(), None), input_kwarg_layouts={}, "
        "desired_input_kwarg_layouts={}, use_local_output=False), "
        "PrepareModuleOutput(output_layouts=(Replicate(),), "
        "desired_output_layouts=(Shard(dim=1),), use_local_output=True))"
    )
