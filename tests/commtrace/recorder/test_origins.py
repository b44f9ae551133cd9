"""Recording changes no result of any origin of calls, bit for bit, and agrees with the profiler.

Each origin is a function that trains a little and returns its results. It runs plainly, then
recorded, on two gloo processes. The profiler, which counts operators at torch's dispatcher,
confirms the counts independently, and that the backend does the same work while recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.tensor as theirs
import torch.distributed.tensor.parallel as their_parallel
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.checkpoint import checkpoint

import commtrace
import dtensor_core as ours
from dtensor_core import init_device_mesh
from dtensor_core import parallel as our_parallel
from dtensor_core.testing import run_processes

CPU = torch.device("cpu")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])


def batch(number: int = 0) -> torch.Tensor:
    torch.manual_seed(number + 10 * dist.get_rank())
    return torch.randn(4, 8)


def full(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.clone()


def steps(model: nn.Module, run: Callable[[Any], Any] | None = None) -> list[torch.Tensor]:
    """Losses and parameters of two steps, with the gradients in between."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for number in range(2):
        loss = (run or model)(batch(number)).square().mean()
        loss.backward()
        results += [full(loss), *(full(each.grad) for each in model.parameters())]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [*results, *(full(each) for each in model.parameters())]


def plain() -> list[torch.Tensor]:
    tensor, rank = batch(), dist.get_rank()
    parts = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    dist.all_gather(parts, tensor)
    dist.broadcast(tensor, src=1)
    dist.reduce(tensor, dst=0)
    half = torch.empty(2, 8)
    dist.reduce_scatter_tensor(half, tensor)
    dist.all_to_all_single(half, half.clone())
    dist.barrier()
    other = torch.empty(2, 8)
    transfers = [
        dist.P2POp(dist.isend, half, 1 - rank),
        dist.P2POp(dist.irecv, other, 1 - rank),
    ]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    return [tensor, *parts, half, other]


def functional() -> list[torch.Tensor]:
    tensor, group = batch().requires_grad_(), [0, 1]
    gathered = funcol.all_gather_tensor_autograd(tensor, 0, group)
    scattered = funcol.reduce_scatter_tensor(gathered.detach() * 2, "sum", 0, group)
    gathered.square().sum().backward()
    return [full(gathered), funcol.wait_tensor(scattered), full(tensor.grad)]


def tensor_parallel(api: Any, styles: Any) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    torch.manual_seed(0)
    for each in model.parameters():
        nn.init.normal_(each)
    plan = {"0": styles.ColwiseParallel(), "2": styles.RowwiseParallel()}
    styles.parallelize_module(model, mesh, plan)
    x = api.distribute_tensor(torch.ones(4, 8), mesh, [api.Shard(0)])
    moved = x.redistribute(placements=[api.Replicate()]).to_local()
    return [*steps(model), moved]


def of_dtensor_core() -> list[torch.Tensor]:
    return tensor_parallel(ours, our_parallel)


def of_torchs_dtensor() -> list[torch.Tensor]:
    return tensor_parallel(theirs, their_parallel)


def data_parallel() -> list[torch.Tensor]:
    return steps(nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=0.0001))


def fully_sharded() -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2,))
    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return steps(model)


def pipelined() -> list[torch.Tensor]:
    rank, losses = dist.get_rank(), []
    part = layers()[rank]
    stage = PipelineStage(part, rank, 2, CPU)
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
    if rank == 0:
        schedule.step(torch.ones(4, 8))
    else:
        schedule.step(target=torch.zeros(4, 8), losses=losses)
    return [full(each) for each in (*losses, *(p.grad for p in part.parameters()))]


def checkpointed(use_reentrant: bool) -> list[torch.Tensor]:
    model = layers()

    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in model:
            x = checkpoint(reduced, layer, x, use_reentrant=use_reentrant)
        return x

    def reduced(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = layer(x)
        dist.all_reduce(out.detach().clone())
        return out

    return steps(model, lambda x: run(x.requires_grad_()))


def checkpointed_plainly() -> list[torch.Tensor]:
    return checkpointed(use_reentrant=False)


def checkpointed_reentrantly() -> list[torch.Tensor]:
    return checkpointed(use_reentrant=True)


def on_another_thread() -> list[torch.Tensor]:
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(plain()))
    thread.start()
    thread.join()
    return results


def in_inference_mode() -> list[torch.Tensor]:
    with torch.inference_mode():
        return plain()


def compiled() -> list[torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x.sin(), "sum", [0, 1]).cos()

    return [torch.compile(run, backend="aot_eager", fullgraph=True)(batch()) for _ in range(2)]


ORIGINS = (
    plain, functional, of_dtensor_core, of_torchs_dtensor, data_parallel, fully_sharded, pipelined,
    checkpointed_plainly, checkpointed_reentrantly, on_another_thread, in_inference_mode, compiled,
)  # fmt: skip


def run_once(origin: Callable[[], Any], detail: str | None, *, profile: bool) -> tuple[Any, ...]:
    """Results, and the counts of the recorder and the profiler: calls, and the backend's work."""
    recording = commtrace.record(detail=detail) if detail else nullcontext()
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    profiler = torch.profiler.profile(experimental_config=everywhere) if profile else nullcontext()
    with recording, profiler:
        results = origin()
    events: Any = profiler.events() if profile else ()  # type: ignore[union-attr]
    seen = Counter(each.name for each in events if each.name.startswith("c10d::"))
    done = Counter(each.name for each in events if each.name.startswith("gloo:"))
    counts = recording.counts("native_op") if detail else Counter()  # type: ignore[union-attr]
    return [each.detach() for each in results], counts, seen, done


def compare(origin: Callable[[], Any]) -> dict[str, Any]:
    run_once(origin, None, profile=False)  # one-time work of the process is done here
    return {
        "plain": run_once(origin, None, profile=True),
        "collective": run_once(origin, "collective", profile=True),
        "op": run_once(origin, "op", profile=False),
    }


@pytest.mark.parametrize("origin", ORIGINS, ids=lambda origin: origin.__name__)
def test_results_are_the_same_and_so_are_the_counts_of_the_profiler(origin: Any) -> None:
    for runs in run_processes(compare, 2, origin, timeout_s=120):
        results, _, expected, done = runs["plain"]
        assert expected
        for detail in ("collective", "op"):
            recorded, counts, _, _ = runs[detail]
            assert all(a.equal(b) for a, b in zip(results, recorded, strict=True)), detail
            assert counts == expected, detail
        assert runs["collective"][3] == done
