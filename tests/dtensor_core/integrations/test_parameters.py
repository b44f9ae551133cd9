"""Assignments to `.data` of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing.fake import fake_world


def test_a_plain_parameter_refuses_a_dtensor_as_data_and_the_error_has_a_hint() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        parameter = nn.Parameter(torch.ones(4, 4))
        with pytest.raises(RuntimeError) as error:
            parameter.data = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        assert str(error.value) == (
            "parameter.data = a DTensor f32[4,4] tp:S(0)\n"
            "  Found: a plain parameter of shape (4, 4)\n"
            "  Why: a parameter can't become a DTensor in place\n"
            "  Try: module.weight = nn.Parameter(dtensor), or distribute_module"
        )
        assert parameter.sum() == 16


def test_data_of_ones_own_kind_is_taken() -> None:
    plain = nn.Parameter(torch.ones(2))
    plain.data = torch.zeros(3)
    assert plain.tolist() == [0, 0, 0]
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        parameter = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        parameter.data = distribute_tensor(torch.zeros(4, 4), mesh, [Replicate()])
        assert parameter.placements == (Replicate(),)  # pyright: ignore
        assert parameter.data.to_local().sum() == 0  # pyright: ignore


def test_reading_data_in_a_compiled_function_does_not_break_it() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def doubled(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.data * 2

    assert doubled(nn.Parameter(torch.ones(2))).tolist() == [2, 2]
