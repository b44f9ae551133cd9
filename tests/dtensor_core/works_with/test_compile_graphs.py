"""What compiled graphs of DTensors hold: how often they break, and what they send.

One process plays one rank of a fake world, so that graphs are looked at, not values.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dtensor_core import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world
from tests.dtensor_core.works_with.compiled import forgotten  # noqa: F401


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def test_an_argument_may_still_be_arriving(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    compiled = torch.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
    got = compiled(x.redistribute(placements=[Replicate()], async_op=True))
    assert got.placements == (Replicate(),)
