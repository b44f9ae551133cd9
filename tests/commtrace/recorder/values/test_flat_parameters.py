"""Parts of original parameters in flat parameters, and sketches of ranges of elements."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from commtrace.recorder.events.observed_value import NUM_FACTS
from commtrace.recorder.values.flat_parameters import FlatParameters, FlatPart, whole_gradients
from commtrace.recorder.values.owners import Owner
from commtrace.recorder.values.sketches import RangeWeights, Weights, facts_of
from commtrace.schema import NUM_SKETCHES
from dtensor_core import init_device_mesh
from dtensor_core.testing import fake_world

NORM = NUM_SKETCHES + 1
NUM_RANKS = 4
SHAPES = {"0.weight": (3, 5), "0.bias": (3,), "1.weight": (2, 3), "1.bias": (2,)}


@pytest.mark.parametrize("shape", [(7,), (5, 130), (3, 4, 70), (130, 3), (6, 5, 2), ()])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
def test_facts_of_ranges_add_up_to_those_of_the_tensor(
    shape: tuple[int, ...], num_parts: int
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = facts_of(tensor, Weights(shape, [slice(None)] * len(shape)))
    size = math.prod(shape)
    ends = [size * part // num_parts for part in range(num_parts + 1)]
    own = torch.stack(
        [
            facts_of(tensor.reshape(-1)[begin:end], RangeWeights(shape, begin, end))
            for begin, end in pairwise(ends)
        ]
    )
    torch.testing.assert_close(own[:, :NORM].sum(0), expected[:NORM], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own[:, NORM].square().sum().sqrt(), expected[NORM])
    assert own[:, NORM + 1].max() == expected[NORM + 1]


def test_elements_of_a_range_that_are_not_finite_are_counted() -> None:
    tensor = torch.ones(4, 70)
    tensor[1, 3] = math.nan
    tensor[2, 0] = math.inf
    own = facts_of(tensor.reshape(-1)[60:200], RangeWeights((4, 70), 60, 200))
    assert own.shape == (NUM_FACTS,)
    assert own[-2:].tolist() == [1, 1]
    assert own[NORM].item() == pytest.approx(math.sqrt(138))


def _model(**options: Any) -> FullyShardedDataParallel:
    layers = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    return FullyShardedDataParallel(layers, device_id=torch.device("cpu"), **options)


def _parts(model: nn.Module) -> list[tuple[torch.Tensor, FlatPart]]:
    known = FlatParameters()
    known.learn(model, Owner)
    return [(each, part) for each in model.parameters() for part in known.of(each)]


@pytest.mark.parametrize("has_names", [False, True])
def test_parts_of_ranks_are_all_elements_of_the_original_parameters(has_names: bool) -> None:
    held: dict[str, list[int]] = {name: [] for name in SHAPES}
    for rank in range(NUM_RANKS):
        with fake_world(NUM_RANKS, rank=rank):
            for parameter, part in _parts(_model(use_orig_params=has_names)):
                assert part.shape == SHAPES[part.owner.name]
                assert part.owner.module == part.owner.name.rpartition(".")[0]
                assert len(part.of(parameter)) == part.size
                assert part.mesh == "replicas=1,shards=4:0,1,2,3"
                assert part.placements == "R,S(flat)"
                held[part.owner.name] += range(part.begin, part.begin + part.size)
    assert held == {name: list(range(math.prod(shape))) for name, shape in SHAPES.items()}


def test_hybrid_shards_are_replicas_on_the_first_axis() -> None:
    with fake_world(NUM_RANKS, rank=1):
        mesh = init_device_mesh("cpu", (2, 2))
        hybrid = ShardingStrategy.HYBRID_SHARD
        model = _model(sharding_strategy=hybrid, device_mesh=mesh)
        parts = [part for _, part in _parts(model)]
        assert {part.mesh for part in parts} == {"replicas=2,shards=2:0,1,2,3"}
        assert parts[-1].begin + parts[-1].size == 2


@pytest.mark.filterwarnings("ignore:The `NO_SHARD`:FutureWarning")
def test_unsharded_flat_parameters_are_replicas() -> None:
    with fake_world(2):
        parts = _parts(_model(sharding_strategy=ShardingStrategy.NO_SHARD))
        assert {part.placements for _, part in parts} == {"R,R"}
        assert [part.size for _, part in parts] == [15, 3, 6, 2]


def test_gathered_parameters_are_not_taken_for_parts() -> None:
    with fake_world(2):
        model = _model()
        with FullyShardedDataParallel.summon_full_params(model):
            known = FlatParameters()
            known.learn(model, Owner)
            assert not any(known.of(each) for each in model.parameters())


def test_the_gradient_of_a_flat_parameter_consists_of_those_of_the_originals() -> None:
    with fake_world(2):
        ((flat, originals),) = whole_gradients(_model(), "critic.{}".format)
        shapes = {f"critic.{name}": shape for name, shape in SHAPES.items()}
        assert {name: shape for name, shape, _ in originals} == shapes
        assert [begin for _, _, begin in originals] == [0, 15, 18, 24]
        assert isinstance(flat, nn.Parameter)


def test_a_rank_without_a_part_has_an_empty_gradient() -> None:
    with fake_world(NUM_RANKS, rank=NUM_RANKS - 1):
        model = _model(use_orig_params=True)
        known = FlatParameters()
        known.learn(model, Owner)
        first, *_, last = model.parameters()
        gradient = known.gradient(first)
        assert gradient is not None
        assert not gradient.numel()
        assert known.gradient(last) is None
