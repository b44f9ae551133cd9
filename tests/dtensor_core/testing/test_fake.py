"""A fake world has any size, communicates nothing, and leaves nothing behind."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world


def test_decisions_on_a_mesh_of_many_ranks():
    with fake_world(512, rank=77):
        mesh = init_device_mesh("cpu", (64, 8), mesh_dim_names=("dp", "tp"))
        assert mesh.get_coordinate() == (9, 5)
        placed = distribute_tensor(
            torch.zeros(128, 16), mesh, [Shard(0), Shard(1)], src_data_rank=None
        )
        assert placed.to_local().shape == (2, 2)
        assert (placed @ placed.t()).shape == (128, 128)
        assert placed.redistribute(placements=[Replicate(), Replicate()]).shape == (128, 16)


def test_it_is_gone_afterwards_even_after_an_error():
    def body():
        with fake_world(2):
            raise KeyError(dist.get_world_size())

    hook = sys.excepthook
    with pytest.raises(KeyError, match="2"):
        body()
    assert not dist.is_initialized()
    assert sys.excepthook is hook


def test_a_world_in_a_world_is_refused():
    with fake_world(2), pytest.raises(RuntimeError, match=r"has a group of 2 ranks \(fake\)"):
        fake_world(4).__enter__()


def test_a_rank_outside_of_the_world_is_refused():
    with pytest.raises(ValueError, match="rank 4 is not one of 4 ranks"):
        fake_world(4, rank=4).__enter__()
