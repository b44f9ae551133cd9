"""FSDP2 around a tensor-parallel module trains it like one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.tensor as theirs
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dtensor_core import DTensor, Shard, _StridedShard, init_device_mesh
from dtensor_core.testing.pool import run_processes
from tests.dtensor_core.works_with.layouts import assert_close, model, numbers, parallel


def _steps(each: nn.Module, batch: torch.Tensor) -> list[Any]:
    optimizer = torch.optim.AdamW(each.parameters(), lr=0.1)
    norms: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        (each(batch) ** 2).mean().backward()
        norms.append(nn.utils.clip_grad_norm_(each.parameters(), 0.5))
        optimizer.step()
    return norms


def _train() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    batch = numbers(8, 6)
    mine = batch.chunk(2)[mesh.get_local_rank("dp")]

    alone: Any = fully_shard(model(), mesh=mesh["dp"])
    assert all(isinstance(each, theirs.DTensor) for each in alone.parameters())
    alone(mine).sum().backward()

    whole, both = model(), parallel(mesh["tp"])
    for layer in (both[0], both[2]):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(both, mesh=mesh["dp"])
    wanted = _steps(whole, batch)
    assert_close(_steps(both, mine), wanted)
    assert_close(list(both.parameters()), list(whole.parameters()))
    weight = both[0].weight
    assert isinstance(weight, DTensor)
    assert isinstance(weight, nn.Parameter)
    assert weight.placements == (_StridedShard(0, split_factor=2), Shard(0))
    state = both.state_dict()
    both.load_state_dict({name: value * 2 for name, value in state.items()})
    assert_close(both[0].weight, whole.get_submodule("0").weight * 2)  # pyright: ignore
    alone(mine).sum().backward()  # what was sharded before runs on

    mixed = parallel(mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    fully_shard(mixed, mesh=mesh["dp"], mp_policy=policy)
    dtypes: list[torch.dtype] = []
    mixed[0].register_forward_hook(lambda module, args, out: dtypes.append(module.weight.dtype))
    wanted = model()(mine)
    torch.testing.assert_close(mixed(mine), wanted, rtol=0.05, atol=0.05)
    assert dtypes == [torch.bfloat16]
    mixed(mine).sum().backward()
    assert all(each.grad.dtype == torch.float64 for each in mixed.parameters())


def test_it_trains_like_one_process() -> None:
    run_processes(_train, 4)
