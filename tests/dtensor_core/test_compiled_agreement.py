"""Ranks compare the collectives that they have compiled, before these run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dtensor_core import (
    DeviceMesh,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.compiled_agreement import SECONDS
from dtensor_core.testing import run_processes
from dtensor_core.torch_internals import compilation
from dtensor_core.torch_internals.groups import default_store
from tests.dtensor_core.works_with.compiled import needs_cpp

LIMIT_S = 20.0


def begin(limit_s: object = LIMIT_S) -> DeviceMesh:
    """Forget earlier compilations; return a mesh of all ranks."""
    torch._dynamo.reset()
    os.environ[SECONDS] = str(limit_s)
    return init_device_mesh("cpu", (dist.get_world_size(),))


def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).softmax(0) @ y.redistribute(placements=[Replicate()]).t()  # pyright: ignore


def tensors(mesh: DeviceMesh) -> list[torch.Tensor]:
    full = [torch.rand(5, 6, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    return [distribute_tensor(each, mesh, [Shard(0)]).requires_grad_() for each in full]


def sending_twice_on_rank_1(part: str) -> Any:
    """Return a backend whose partitioner repeats an all-gather in a graph of rank 1."""

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        parts = min_cut_rematerialization_partition(joint, inputs, **options)
        graph = parts[part == "backward"].graph
        gather = next(n for n in graph.nodes if "all_gather" in str(n.target))
        if dist.get_rank() == 1:
            with graph.inserting_before(gather):
                graph.node_copy(gather)
        return parts

    def boxed(graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=boxed, bw_compiler=boxed, partition_fn=partition)


def messages(function: Callable[[], Any]) -> list[str]:
    """Return the error of a call and its warnings, without dynamo's additions."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            function()
        except Exception as error:
            return [str(error)[max(str(error).find("torch.compile of"), 0) :]]
    return [str(each.message) for each in warned if "not compared" in str(each.message)]


def differing(part: str) -> list[str]:
    x, y = tensors(begin())
    compiled = torch.compile(attend, backend=sending_twice_on_rank_1(part))
    return messages(lambda: compiled(x, y).sum().backward())


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_graph_that_differs_on_one_rank_raises_on_all(part: str) -> None:
    [[first], [second]] = run_processes(differing, 2, part, timeout_s=120)
    assert first.startswith("torch.compile of attend (test_compiled_agreement.py:")
    assert f"in the {part} graph, call " in first
    # The call of the rank that was first is named first.
    assert " of the group of ranks 0, 1 is " in first
    assert "all_gather_into_tensor float32[" in first
    # Dynamo adds to the error of a forward graph.
    assert first.partition("this check off")[0] == second.partition("this check off")[0]


def gathered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = (each.redistribute(placements=[Replicate()]) for each in (x, y))  # pyright: ignore
    return (x * y).to_local()  # pyright: ignore


def bucketed(on_ranks: int) -> list[str]:
    x, y = tensors(begin())
    passes = "all" if dist.get_rank() < on_ranks else "none"
    config = {"bucket_all_gathers_fx": passes, "compile_threads": 1, "fx_graph_cache": False}

    def run() -> None:
        with torch._inductor.config.patch(config):  # pyright: ignore
            torch.testing.assert_close(torch.compile(gathered)(x, y), gathered(x, y))

    return messages(run)


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_passes_of_inductor_that_one_rank_has_raise_on_all() -> None:
    assert run_processes(bucketed, 2, 2, timeout_s=240) == [[], []]
    [[first], [second]] = run_processes(bucketed, 2, 1, timeout_s=240)
    assert "in the forward graph, call 1 of the group of ranks 0, 1 is" in first
    assert first.partition("this check off")[0] == second.partition("this check off")[0]


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    q, k, v = (each[:, None].transpose(0, 1)[None] for each in (x, x * y, y))
    return F.scaled_dot_product_attention(q, k, v)


def recomputed(rows: int, saves: bool) -> list[str]:
    mesh = begin()
    x, y = (
        distribute_tensor(torch.ones(rows, 6), mesh, [Shard(0)]).requires_grad_() for _ in range(2)
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return checkpoint(attention, x, y, use_reentrant=False)  # pyright: ignore

    if not saves:
        compilation.save_in_checkpoints = lambda _: None
    return messages(lambda: torch.compile(step, backend="aot_eager")(x, y).sum().backward())


@pytest.mark.parametrize("rows", [7, 5, 1])
def test_a_checkpoint_with_an_empty_shard_has_the_same_collectives_on_all(rows: int) -> None:
    assert run_processes(recomputed, 4, rows, True, timeout_s=120) == [[]] * 4


def test_a_checkpoint_that_repeats_collectives_on_some_ranks_raises_on_all() -> None:
    found = run_processes(recomputed, 4, 5, False, timeout_s=120)
    assert found == [found[0]] * 4
    assert "in the backward graph, call " in found[0][0]


def alone() -> list[str]:
    mesh = begin(limit_s=0.3)
    x, y = tensors(mesh)
    step = attend if dist.get_rank() == 0 else torch.compile(attend, backend="aot_eager")
    found = messages(lambda: step(x, y).sum().backward())
    assert x.grad is not None
    assert x.grad.shape == x.shape
    return found


def test_a_rank_that_compiles_alone_goes_on_with_a_warning() -> None:
    found = run_processes(alone, 2, timeout_s=120)
    assert [len(each) for each in found] == [0, 2]
    assert "some of ranks 0, 1 have not compiled it within 0.3 s" in found[1][0]


def with_constants_of_ranks() -> tuple[list[str], float]:
    mesh = begin()
    x, y = tensors(mesh)
    factor = dist.get_rank() + 2

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return attend(x, y).to_local() * factor  # pyright: ignore

    started = time.monotonic()
    found = messages(lambda: torch.compile(step, backend="aot_eager")(x, y).sum().backward())
    return found, time.monotonic() - started


def recompiled_alone() -> tuple[list[str], float]:
    mesh = begin()
    x, y = tensors(mesh)

    def step(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return attend(x, y).to_local().sum() + z.sum()  # pyright: ignore

    compiled = torch.compile(step, backend="aot_eager")

    def run() -> None:
        for call in range(3):
            compiled(x, y, torch.ones(2 + call * dist.get_rank())).backward()

    started = time.monotonic()
    return messages(run), time.monotonic() - started


@pytest.mark.parametrize("body", [with_constants_of_ranks, recompiled_alone])
def test_ranks_do_not_wait_for_a_program_that_is_theirs_alone(body: Callable[..., Any]) -> None:
    for found, took_s in run_processes(body, 2, timeout_s=120):
        assert not found
        assert took_s < LIMIT_S


def keys_written() -> list[int]:
    counts: list[int] = []
    for limit_s in (0, LIMIT_S, LIMIT_S):
        x, y = tensors(begin(limit_s))
        dist.barrier()
        before = default_store().num_keys()  # pyright: ignore
        dist.barrier()
        torch.compile(attend, backend="aot_eager")(x, y).sum().backward()
        dist.barrier()
        counts.append(default_store().num_keys() - before)  # pyright: ignore
    return counts


def test_a_program_is_compared_once_and_not_at_all_if_the_limit_is_0() -> None:
    for off, first, again in run_processes(keys_written, 2, timeout_s=120):
        assert (off > 0, first > 0, again > 0) == (False, True, False)


def with_wrong_limit() -> list[str]:
    x, y = tensors(begin(limit_s="soon"))
    try:
        return messages(lambda: torch.compile(attend, backend="aot_eager")(x, y))
    finally:
        del os.environ[SECONDS]  # the process runs other tests, too


def test_a_limit_that_is_no_number_is_refused() -> None:
    [[text], _] = run_processes(with_wrong_limit, 2, timeout_s=120)
    assert text.startswith("torch.compile of a program with DTensors")
    assert f"Found: {SECONDS}='soon'" in text
