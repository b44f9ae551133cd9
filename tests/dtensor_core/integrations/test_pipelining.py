"""Pipeline stages that exchange DTensors: every schedule, layout and number of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    schedules,
)

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.errors import MeshError
from dtensor_core.integrations.pipelining import mesh_like
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing import run_threads

STAGES_OF = {
    ScheduleGPipe: [[0], [1]],
    Schedule1F1B: [[0], [1]],
    ScheduleInterleaved1F1B: [[0, 2], [1, 3]],
    ScheduleInterleavedZeroBubble: [[0, 2], [1, 3]],
    ScheduleZBVZeroBubble: [[0, 3], [1, 2]],
    schedules.ScheduleDualPipeV: [[0, 3], [1, 2]],
}
"""Stages of each rank of the pipeline; the last two are V-schedules."""
ROWS = Shard(0)


def block(number: int) -> nn.Sequential:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)).double()


def tensor_parallel(module: nn.Module, mesh: Any, between: Any = ROWS) -> nn.Module:
    plan = {
        "0": ColwiseParallel(input_layouts=between, use_local_output=False),
        "2": RowwiseParallel(output_layouts=between, use_local_output=False),
    }
    return parallelize_module(module, mesh, plan)


def numbers(*shape: int) -> torch.Tensor:
    torch.manual_seed(99)
    return torch.randn(shape, dtype=torch.float64)


def squared(y: Any, target: torch.Tensor) -> torch.Tensor:
    return (y.full_tensor() - target).pow(2).sum()


def run(
    make: Any, mesh: Any, modules: Sequence[nn.Module], x: Any, target: Any, loss_fn: Any = squared
) -> Any:
    """Run a step of a schedule; return the output of the last stage, if it is on this rank."""
    mine = STAGES_OF[make][mesh.get_local_rank("pp")]
    total = sum(map(len, STAGES_OF[make]))
    stages = [
        PipelineStage(module, number, total, torch.device("cpu"), group=mesh.get_group("pp"))
        for number, module in zip(mine, modules, strict=True)
    ]
    many = total > 2
    schedule = make(stages if many else stages[0], 4, loss_fn=loss_fn, scale_grads=False)
    has_last = total - 1 in mine
    return schedule.step(*([x] if 0 in mine else []), **({"target": target} if has_last else {}))


@pytest.mark.parametrize("make", STAGES_OF, ids=lambda make: make.__name__)
@pytest.mark.parametrize("between", [Shard(0), Shard(1), Replicate()], ids=str)
def test_stages_give_the_output_and_the_gradients_of_one_device(make: Any, between: Any) -> None:
    x, target = numbers(8, 8), numbers(8, 8).flip(0)
    total = sum(map(len, STAGES_OF[make]))
    plain = [block(number) for number in range(total)]
    wanted = nn.Sequential(*plain)(x)
    (wanted - target).pow(2).sum().backward()

    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        mine = STAGES_OF[make][mesh.get_local_rank("pp")]
        modules = [tensor_parallel(block(number), mesh["tp"], between) for number in mine]
        out = run(make, mesh, modules, distribute_tensor(x, mesh["tp"], [between]), target)
        if total - 1 in mine:
            torch.testing.assert_close(out.full_tensor(), wanted)
        for number, module in zip(mine, modules, strict=True):
            for (name, of), p in zip(
                plain[number].named_parameters(), module.parameters(), strict=True
            ):
                torch.testing.assert_close(p.grad.full_tensor(), of.grad, msg=f"{number}.{name}")

    run_threads(body, 4, timeout_s=120)


class Halves(nn.Module):
    """Makes three tensors: transposed, plain, and of integers, which have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = block(0)

    def forward(self, x: Any) -> tuple[Any, torch.Tensor, Any]:
        y = self.inner(x)
        return y.t(), y.to_local().sum(1), (y > 0).long()


class Joined(nn.Module):
    """Has no parameters, so no mesh of its own."""

    def forward(self, turned: Any, plain: torch.Tensor, signs: Any) -> Any:
        assert isinstance(turned, DTensor)
        assert not isinstance(plain, DTensor)
        y = turned.t()
        sums = DTensor.from_local(plain, y.device_mesh, [Shard(0)], shape=y.shape[:1], stride=(1,))
        return y * signs + sums[:, None]


@pytest.mark.parametrize("make", [ScheduleGPipe, Schedule1F1B], ids=lambda make: make.__name__)
@pytest.mark.parametrize("rows", [8, 12])
def test_a_stage_sends_several_tensors_in_any_memory_order(make: Any, rows: int) -> None:
    x = numbers(rows, 8)
    plain = block(0)
    made = plain(x)
    wanted = made.clamp(min=0) + made.sum(1, keepdim=True)
    (wanted - 1).pow(2).sum().backward()

    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        module = Joined()
        if mesh.get_local_rank("pp") == 0:
            module = Halves()
            tensor_parallel(module.inner, mesh["tp"])
        x0 = distribute_tensor(x, mesh["tp"], [Shard(0)])
        out = run(make, mesh, [module], x0, torch.ones(rows, 8, dtype=torch.float64))
        if out is not None:
            torch.testing.assert_close(out.full_tensor(), wanted)
        for p, of in zip(module.parameters(), plain.parameters(), strict=False):
            torch.testing.assert_close(p.grad.full_tensor(), of.grad)

    run_threads(body, 4, timeout_s=120)


def test_a_gradient_may_have_another_layout_than_its_tensor() -> None:
    x, target = numbers(8, 8), numbers(8, 8).flip(0)
    plain = [block(0), block(1)]
    (plain[1](plain[0](x)) - target).pow(2).sum().backward()
    seen = []

    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        number = mesh.get_local_rank("pp")
        module = block(number)
        for name, p in module.named_parameters():
            sharded = Shard(0) if name[0] == "0" else Shard(1) if p.ndim == 2 else Replicate()
            made = nn.Parameter(distribute_tensor(p, mesh["tp"], [sharded]))
            module[int(name[0])].register_parameter(name[2:], made)
        stage = PipelineStage(module, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=squared, scale_grads=False)
        schedule.step(
            *([] if number else [distribute_tensor(x, mesh["tp"])]),
            **({"target": target} if number else {}),
        )
        if number == 0:
            seen.append(stage._stage_meta.output_grads[0].placements)
        for p, of in zip(module.parameters(), plain[number].parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), of.grad)

    run_threads(body, 4, timeout_s=120)
    assert seen == [(Partial(),)] * 2


def test_a_declared_layout_is_kept() -> None:
    """Stages with static metadata send what they declared, whatever layout the module makes."""
    x, target = numbers(8, 8), numbers(8, 8).flip(0)
    plain = [block(0), block(1)]
    (plain[1](plain[0](x)) - target).pow(2).sum().backward()

    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        tp, number = mesh["tp"], mesh.get_local_rank("pp")
        module = tensor_parallel(block(number), tp, Shard(1))
        like = distribute_tensor(numbers(4, 8), tp, [Shard(0)])
        needed = like.detach().requires_grad_()
        stage = PipelineStage(
            module, number, 2, torch.device("cpu"), group=mesh.get_group("pp"),
            input_args=needed if number else like, output_args=needed,
            input_grads=like if number else (None,), output_grads=like,
        )  # fmt: skip
        schedule = ScheduleGPipe(stage, 2, loss_fn=squared, scale_grads=False)
        if number:
            schedule.step(target=target)
        else:
            schedule.step(distribute_tensor(x, tp, [Shard(0)]))
        for p, of in zip(module.parameters(), plain[number].parameters(), strict=True):
            torch.testing.assert_close(p.grad.full_tensor(), of.grad)

    run_threads(body, 4, timeout_s=120)


def test_an_evaluation_and_a_mesh_without_names() -> None:
    x = numbers(8, 8)
    wanted = block(1)(block(0)(x)).detach()

    def body() -> None:
        rank = dist.get_rank()
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]][rank // 2])
        module = tensor_parallel(block(rank // 2), mesh)
        stage = PipelineStage(module, rank // 2, 2, torch.device("cpu"), group=pairs[rank % 2])
        schedule = ScheduleGPipe(stage, 2)
        for _ in range(2):
            out = schedule.eval(*([] if rank // 2 else [distribute_tensor(x, mesh, [Shard(0)])]))
            if rank // 2:
                torch.testing.assert_close(out.full_tensor(), wanted)

    run_threads(body, 4, timeout_s=120)


def test_a_mesh_that_the_rank_does_not_have_is_named() -> None:
    def body() -> None:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        assert mesh_like(nn.Linear(2, 2), ("tp",), mesh._layout) == mesh
        with pytest.raises(MeshError, match="pass get_mesh"):
            mesh_like(nn.Linear(2, 2), ("cp",), mesh._layout)

    run_threads(body, 2)
