"""`torch.cond` with DTensors."""

from __future__ import annotations

import pytest
import torch

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import kept_mesh, on_threads
from dtensor_core.testing.fake import fake_world


def chosen(predicate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(predicate, torch.sin, torch.cos, (x,))


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Partial()])
@on_threads(2)
def test_the_branch_that_a_predicate_selects_is_run_on_every_rank(placement):
    mesh = kept_mesh((2,))
    x = distribute_tensor(torch.arange(3.0), mesh, [Shard(0)])
    of = DTensor.from_local(torch.ones(1), mesh, [placement])
    for predicate, expected in ((of.sum() > 0, torch.sin), (of.sum() < 0, torch.cos)):
        found = chosen(predicate, x)
        assert isinstance(found, DTensor)
        assert torch.equal(found.full_tensor(), expected(torch.arange(3.0)))
    assert torch.equal(chosen(torch.tensor(False), x).full_tensor(), torch.arange(3.0).cos())  # pyright: ignore


def test_in_a_graph_the_error_says_what_to_do():
    with fake_world(2):
        x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
        compiled = torch.compile(chosen, backend="eager", fullgraph=True)
        with pytest.raises(RuntimeError, match=r"call torch\.cond outside of torch\.compile"):
            compiled(x.sum() > 0, x)
        assert torch.equal(compiled(torch.tensor(True), torch.ones(2)), torch.ones(2).sin())
