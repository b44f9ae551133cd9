"""Plans: styles of submodules, sources of parameters, and the errors without a match."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtensor_core import DeviceMesh, DTensor, Shard, init_device_mesh
from dtensor_core.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from dtensor_core.testing import fake_world, on_threads, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.small_models import MLPModule, MLPStacked


class Note(ParallelStyle):
    """A style that records the modules it is applied to."""

    def __init__(self) -> None:
        self.applied: list[tuple[nn.Module, DeviceMesh, int | None]] = []

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.applied.append((module, device_mesh, self.src_data_rank))
        return module

    @property
    def modules(self) -> list[nn.Module]:
        return [module for module, _, _ in self.applied]


@pytest.fixture
def mesh():
    with fake_world(2):
        yield init_device_mesh("cpu", (2,))


@pytest.fixture
def model():
    return MLPStacked("cpu", n_layers=2)


def noted(model, mesh, *keys, **options) -> list[nn.Module]:
    note = Note()
    plan = dict.fromkeys(keys, note)
    assert parallelize_module(model, mesh, plan, **options) is model
    return note.modules


def test_a_style_is_for_the_module_itself(model, mesh):
    note = Note()
    assert parallelize_module(model, mesh, note) is model
    assert note.applied == [(model, mesh, 0)]


def test_keys_are_paths(model, mesh):
    assert noted(model, mesh, "layers.1.net2") == [model.layers[1].net2]
    assert noted(model, mesh, "layers") == [model.layers]


def test_keys_may_have_wildcards(model, mesh):
    assert noted(model, mesh, "layers.*.net?") == [
        model.layers[0].net1,
        model.layers[0].net2,
        model.layers[1].net1,
        model.layers[1].net2,
    ]
    assert noted(model, mesh, "layers.[1].net1") == [model.layers[1].net1]
    assert noted(model, mesh, "*") == [model.layers]


def test_the_empty_key_is_the_module_itself(model, mesh):
    assert noted(model, mesh, "") == [model]


def test_plans_may_be_nested(model, mesh):
    note = Note()
    parallelize_module(model, mesh, {"layers.*": {"net1": note, "": {"net2": note}}})
    assert note.modules == [
        model.layers[0].net1,
        model.layers[0].net2,
        model.layers[1].net1,
        model.layers[1].net2,
    ]


def test_a_key_that_nothing_matches_warns_and_is_passed_over(model, mesh):
    with pytest.warns(UserWarning, match="'layers.0.net3' could not be resolved: no submodule "):
        assert noted(model, mesh, "layers.0.net3", "layers.0.net1") == [model.layers[0].net1]
    with pytest.warns(UserWarning, match="token 'nothing' in module MLPStacked"):
        assert noted(model, mesh, "nothing.0") == []


def test_a_key_that_some_do_not_match_warns_of_these(model, mesh):
    model.layers[1].extra = nn.ReLU()
    with pytest.warns(UserWarning, match="token 'extra' in module MLPModule") as caught:
        assert noted(model, mesh, "layers.*.extra") == [model.layers[1].extra]
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_no_plan_warns(model, mesh):
    with pytest.warns(UserWarning, match="No parallelize_plan is provided"):
        assert parallelize_module(model, mesh) is model


def test_what_is_no_plan_is_refused(model, mesh):
    with pytest.raises(TypeError, match=r"Expect Union\[ParallelStyle, Dict\[str, ParallelStyle"):
        parallelize_module(model, mesh, [ColwiseParallel()])


def test_the_mesh_defaults_to_the_one_in_force(model, mesh):
    note = Note()
    with mesh:
        parallelize_module(model, parallelize_plan=note)
    assert note.applied[0][1] is mesh
    with pytest.raises(ValueError, match="a device mesh"):
        parallelize_module(model, parallelize_plan=note)


@pytest.mark.parametrize("key", ["", "layers", "layers.0"])
def test_the_source_rank_reaches_every_style(model, mesh, key):
    note = Note()
    parallelize_module(model, mesh, {key: note}, src_data_rank=None)
    assert note.applied[0][2] is None


def test_parameters_come_from_the_source_rank_or_from_each():
    def body(source):
        linear = nn.Linear(2, 4)
        nn.init.constant_(linear.weight, float(dist.get_rank()))
        mesh = init_device_mesh("cpu", (2,))
        with Collectives() as issued:
            parallelize_module(linear, mesh, ColwiseParallel(), src_data_rank=source)
        return linear.weight.to_local()[0, 0].item(), sum(issued.counts.values())

    assert run_threads(body, 2, 0) == [(0.0, 2), (0.0, 2)]
    assert run_threads(body, 2, 1) == [(1.0, 2), (1.0, 2)]
    assert run_threads(body, 2, None) == [(0.0, 0), (1.0, 0)]


@on_threads(4)
def test_a_stack_of_mlps_is_what_it_is_on_one_rank():
    mesh = init_device_mesh("cpu", (4,))
    model = MLPStacked("cpu")
    value = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    expected = model(value)
    plan = {"layers.*.net1": ColwiseParallel(), "layers.*.net2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    with Collectives() as issued:
        torch.testing.assert_close(model(value), expected)
    assert issued == {"all_reduce": 2}


@on_threads(4)
def test_an_axis_of_a_larger_mesh():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = MLPModule("cpu")
    value = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    expected = model(value)
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    assert isinstance(model.net1.weight.data, DTensor)
    assert model.net1.weight.placements == (Shard(0),)
    assert model.net1.weight.to_local().shape == (8, 10)
    torch.testing.assert_close(model(value), expected)
