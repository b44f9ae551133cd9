"""Every layout of a call's arguments, without arguments that cannot be DTensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard, init_device_mesh
from dtensor_core.testing import DTensorConverter, fake_world


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,))


def placements(value):
    return value.placements[0] if isinstance(value, DTensor) else value


def layouts(converter):
    """Placements of each argument, call by call."""
    return [
        (tuple(map(placements, args)), {k: placements(v) for k, v in kwargs.items()})
        for args, kwargs in converter
    ]


def test_all_combinations_of_replicated_and_evenly_sharded(mesh):
    converter = DTensorConverter(mesh, (torch.ones(8, 3), 5), {"other": torch.ones(4)})
    assert layouts(converter) == [
        ((first, 5), {"other": other})
        for first in (Replicate(), Shard(0))
        for other in (Replicate(), Shard(0))
    ]
    assert (converter.hit, converter.miss, converter.successful()) == (8, 0, True)


def test_dims_that_do_not_divide_evenly_are_not_sharded(mesh):
    converter = DTensorConverter(mesh, (torch.ones(1, 6, 12),), {})
    assert [args[0] for args, _ in layouts(converter)] == [Replicate(), Shard(2)]


def test_bools_and_scalars_are_replicated(mesh):
    converter = DTensorConverter(mesh, (torch.ones(8).bool(), torch.tensor(1.0)), {})
    assert layouts(converter) == [((Replicate(), Replicate()), {})]


def test_nested_arguments_keep_their_structure(mesh):
    converter = DTensorConverter(mesh, ([torch.ones(3), {"a": torch.ones(3)}],), {})
    ((inner,), _) = next(converter)
    assert isinstance(inner[0], DTensor)
    assert isinstance(inner[1]["a"], DTensor)


def test_a_parameter_stays_a_parameter(mesh):
    converter = DTensorConverter(mesh, (nn.Parameter(torch.ones(4), requires_grad=False),), {})
    ((parameter,), _) = next(converter)
    assert isinstance(parameter, nn.Parameter)
    assert isinstance(parameter.data, DTensor)
    assert not parameter.requires_grad


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(4).to_sparse(),
        torch.ones(4, device="meta"),
        torch.ones(4, dtype=torch.complex64).conj(),
    ],
    ids=["sparse", "meta", "conj"],
)
def test_what_can_not_be_a_dtensor_is_passed_on(mesh, tensor):
    converter = DTensorConverter(mesh, (tensor,), {})
    ((passed,), _) = next(converter)
    assert passed is tensor
    assert (converter.hit, converter.miss, converter.successful()) == (0, 1, False)


def test_without_tensors_it_is_not_successful(mesh):
    converter = DTensorConverter(mesh, (1,), {})
    assert layouts(converter) == [((1,), {})]
    assert not converter.successful()
