"""FSDP2 trains like a single process; the parameters alone determine its class of DTensors."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as theirs
from torch import nn
from torch.distributed.checkpoint import state_dict as helpers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import parallel as their_styles

from dtensor_core import (
    DTensor,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.parallel import ExpertParallel, parallelize_module
from dtensor_core.testing.pool import run_processes
from tests.dtensor_core.parallel.test_experts import Chosen
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

    reference, both = model(), parallel(mesh["tp"])
    for layer in (both[0], both[2]):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(both, mesh=mesh["dp"])
    wanted = _steps(reference, batch)
    assert_close(_steps(both, mine), wanted)
    assert_close(list(both.parameters()), list(reference.parameters()))
    weight = both[0].weight
    assert isinstance(weight, DTensor)
    assert isinstance(weight, nn.Parameter)
    assert weight.placements == (_StridedShard(0, split_factor=2), Shard(0))
    state = both.state_dict()
    both.load_state_dict({name: value * 2 for name, value in state.items()})
    assert_close(both[0].weight, reference.get_submodule("0").weight * 2)  # pyright: ignore

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


class Experts(nn.Module):
    """Applies every expert to every token, weighted by the router: tokens x dim -> tokens x dim."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 6, 5) / 3)
        self.second = nn.Parameter(torch.randn(4, 5, 6) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: Any = torch.relu(torch.einsum("td,edh->eth", self.given(x), self.first))
        out: Any = torch.einsum("eth,ehd->td", hidden, self.second)
        return out.full_tensor() if isinstance(out, DTensor) else out

    def given(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(self.first, DTensor):
            return x
        return DTensor.from_local(x, self.first.device_mesh, [Replicate()])


def _mixture(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(8, 6), Experts(), nn.Linear(6, 7)).to(dtype)


def _with_sharded_experts(mesh: Any) -> nn.Sequential:
    mixture = _mixture()
    for name in ("first", "second"):
        weight = getattr(mixture[1], name).detach()
        sharded = nn.Parameter(distribute_tensor(weight, mesh["ep"], [Shard(0)]))
        setattr(mixture[1], name, sharded)
    return mixture


def _trained(
    mixture: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer
) -> list[torch.Tensor]:
    norms: list[torch.Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(mixture(tokens), (tokens + 3) % 7).backward()
        norms.append(nn.utils.clip_grad_norm_(mixture.parameters(), 0.3))
        optimizer.step()
    return norms


def _compare(mixture: nn.Module, dp: Any, **how: Any) -> None:
    """Compare three clipped steps, and the state dict after them, with a single process."""
    reference, tokens = _mixture(), torch.arange(12) % 7
    wanted = _trained(reference, tokens, torch.optim.AdamW(reference.parameters(), lr=0.1))
    mine = tokens.chunk(dp.size())[dp.get_local_rank()]
    optimizer = torch.optim.AdamW(mixture.parameters(), lr=0.1, **how)
    assert_close(_trained(mixture, mine, optimizer), wanted)
    assert_close(list(mixture.parameters()), list(reference.parameters()))
    options = helpers.StateDictOptions(full_state_dict=True)
    full = helpers.get_model_state_dict(mixture, options=options)
    assert_close(list(full.values()), list(reference.state_dict().values()))
    helpers.set_model_state_dict(mixture, {n: v * 2 for n, v in full.items()}, options=options)
    assert_close(list(mixture.parameters()), [2 * each for each in reference.parameters()])
    state = helpers.get_optimizer_state_dict(mixture, optimizer)
    helpers.set_optimizer_state_dict(mixture, optimizer, state)


FORMS = ({"foreach": True}, {"fused": True}, {"foreach": False})


def _wrapped(mixture: Any, mesh: Any, order: Sequence[int]) -> Any:
    for place in order:
        fully_shard(mixture[place], mesh=mesh)
    return fully_shard(mixture, mesh=mesh)


def _in_every_order(path: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    orders = list(itertools.permutations(range(3)))
    for order, how in zip(orders, FORMS * 2, strict=True):
        mixture = _wrapped(_with_sharded_experts(mesh), mesh["dp"], order)
        assert {type(each) for each in mixture.parameters()} == {DTensor}, order
        if order is orders[0]:
            dcp.save(mixture.state_dict(), checkpoint_id=path)
        _compare(mixture, mesh["dp"], **how)
        dcp.load(mixture.state_dict(), checkpoint_id=path)
        assert_close(list(mixture.parameters()), list(_mixture().parameters()))


def test_the_order_of_wrapping_changes_neither_class_nor_numbers(tmp_path: Path) -> None:
    run_processes(_in_every_order, 4, str(tmp_path))


def _beside_torchs_own(path: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": their_styles.RowwiseParallel(input_layouts=theirs.Replicate())}
    for order, how in zip(itertools.permutations(range(3)), FORMS * 2, strict=True):
        mixture: Any = _mixture()
        their_styles.parallelize_module(mixture, mesh["tp"], plan)
        mixture = _wrapped(mixture, mesh["dp"], order)
        kinds = [type(each) for each in mixture.parameters()]
        assert kinds[0] is theirs.DTensor
        assert kinds[1:] == [DTensor] * 4
        dcp.save(mixture.state_dict(), checkpoint_id=f"{path}/{order}")
        _compare(mixture, mesh["dp"], **how)
        dcp.load(mixture.state_dict(), checkpoint_id=f"{path}/{order}")
        assert_close(list(mixture.parameters()), list(_mixture().parameters()))


def test_a_module_sharded_by_torchs_styles_stays_torchs_and_trains_beside_ours(
    tmp_path: Path,
) -> None:
    run_processes(_beside_torchs_own, 4, str(tmp_path))


def _placed() -> None:
    mesh = init_device_mesh("cpu", (2,))
    for shard in (theirs.Shard(1), Shard(1), Shard(-1)):
        layer: Any = fully_shard(
            nn.Linear(4, 3),
            mesh=mesh,
            shard_placement_fn=lambda p, s=shard: s if p.ndim > 1 else None,
        )
        assert isinstance(layer.weight, DTensor)
        assert layer.weight.placements == (Shard(1),)


def test_placements_of_either_class_may_be_requested() -> None:
    run_processes(_placed, 2)


class Router(nn.Module):
    """A layer of experts: each token goes to the best two of four."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4, bias=False)
        self.experts = Chosen(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        return x + self.experts(x, chosen, best)


def _routed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(8, 6), Router(), nn.Linear(6, 7)).double()


def _expert_parallel() -> None:
    """Each of four ranks has its own tokens; two share the experts, which exist in two copies."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "ep"))
    data = mesh["copies", "ep"]._flatten("data")
    tokens = torch.arange(16) % 7
    reference = _routed()
    wanted = _trained(
        reference, tokens, torch.optim.AdamW(reference.parameters(), lr=0.1, eps=1e-4)
    )
    for order, how in zip(itertools.permutations(range(3)), FORMS * 2, strict=True):
        model: Any = _routed()
        parallelize_module(model, mesh["ep"], {"1.experts": ExpertParallel()})
        for place in order:
            part = model[1].experts if place == 1 else model[place]
            fully_shard(part, mesh=mesh["copies"] if place == 1 else data)
        model[1].experts.set_gradient_divide_factor(4)
        fully_shard(model, mesh=data)
        assert {type(each) for each in model.parameters()} == {DTensor}
        mine = tokens.chunk(4)[data.get_local_rank()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=1e-4, **how)
        assert_close(_trained(model, mine, optimizer), wanted)
        assert_close(list(model.parameters()), list(reference.parameters()))


def test_expert_parallel_experts_among_plain_modules_train_in_every_order() -> None:
    run_processes(_expert_parallel, 4)


LATE = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = dist.init_device_mesh("cpu", (1,))
early = fully_shard(nn.Linear(4, 3), mesh=mesh)
import dtensor_core
late = fully_shard(nn.Linear(3, 2), mesh=mesh)
both = nn.Sequential(early, late)
kinds = [type(each) is dtensor_core.DTensor for each in both.parameters()]
assert kinds == [False, False, True, True], kinds
for how in ({"foreach": True}, {"fused": True}, {"foreach": False}):
    optimizer = torch.optim.AdamW(both.parameters(), **how)
    both(torch.ones(2, 4)).sum().backward()
    nn.utils.clip_grad_norm_(both.parameters(), 0.1, foreach=how.get("foreach"))
    nn.utils.clip_grad_value_(both.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert not any(each.grad.full_tensor().any() for each in both.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scaler.scale(both(torch.ones(2, 4)).sum()).backward()
scaler.unscale_(optimizer)
assert late.bias.grad.full_tensor().tolist() == [2.0, 2.0]
assert early.weight.grad.full_tensor().any()
scaler.step(optimizer)
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("preloaded")
def test_modules_wrapped_before_the_import_train_beside_later_ones() -> None:
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=120)
