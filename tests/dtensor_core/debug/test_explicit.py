"""Implicit redistributions are refused or reported."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.debug import (
    CommDebugMode,
    ExplicitRedistributionContext,
    ImplicitRedistributionError,
)
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def pair(mesh, right=None) -> tuple[DTensor, DTensor]:
    """Create x and A; their product redistributes A, or nothing if `right` is another placement."""
    x = distribute_tensor(torch.ones(8, 16, requires_grad=True), mesh, [Shard(0)])
    a = distribute_tensor(torch.ones(16, 16, requires_grad=True), mesh, [right or Shard(0)])
    return x, a


def test_what_an_operator_needs_raises_before_anything_is_sent(mesh) -> None:
    x, a = pair(mesh)
    with CommDebugMode() as counted, ExplicitRedistributionContext():
        with pytest.raises(RuntimeError, match="Implicit redistribution") as failure:
            torch.matmul(x, a)
        assert counted.get_total_counts() == 0
        torch.matmul(x, a.redistribute(mesh, [Replicate()]))
    assert counted.get_total_counts() == 1
    asked, found, why, attempt = str(failure.value).split("\n")
    assert asked == (
        "Implicit redistribution of mat2 for aten.mm.default, while "
        "ExplicitRedistributionContext was active"
    )
    assert found == (
        "  Found: mat2 is f32[16,16] tp:S(0) and is needed as tp:R (all_gather on tp, 1024 bytes)"
    )
    assert why.startswith(
        "  Why: cheapest candidate (arguments -> results) of: S(0), R -> S(0) in "
    )
    assert attempt == (
        "  Try: mat2.redistribute(placements=[Replicate()]) before, or "
        "ExplicitRedistributionContext(enable=False) around the operator"
    )
    torch.matmul(x, a)


def test_strictly_also_what_sends_nothing_raises(mesh) -> None:
    x = distribute_tensor(torch.ones(8, 16), mesh, [Shard(0)])
    full = distribute_tensor(torch.ones(8, 16), mesh, [Replicate()])
    with ExplicitRedistributionContext():
        x + full
        with ExplicitRedistributionContext(strict=True), pytest.raises(ImplicitRedistributionError):
            x + full
        x + full


def test_copying_a_written_result_back_is_implicit_too(mesh, caplog) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    with ExplicitRedistributionContext(mode="warn"), caplog.at_level(logging.WARNING):
        x.renorm_(2, 1, 1.0)
    there, back = [record.message for record in caplog.records]
    assert there.startswith("Implicit redistribution of self for aten.renorm_.default")
    assert back.startswith("Implicit redistribution of written for aten.renorm_.default")
    assert "Try: the operator's out-of-place form" in back


def test_the_backward_pass_is_covered_and_contexts_nest(mesh) -> None:
    x, a = pair(mesh, Replicate())
    with ExplicitRedistributionContext(strict=True):
        loss = torch.matmul(x, a).sum()
        with pytest.raises(RuntimeError, match="Implicit redistribution"):
            loss.backward(retain_graph=True)
        with ExplicitRedistributionContext(strict=False):
            loss.backward(retain_graph=True)
        with ExplicitRedistributionContext(enable=False):
            loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="Implicit redistribution"):
            loss.backward()


def test_a_warning_is_logged_and_the_program_goes_on(mesh, caplog) -> None:
    x, a = pair(mesh)
    with ExplicitRedistributionContext(mode="warn"), caplog.at_level(logging.WARNING):
        assert torch.matmul(x, a).shape == (8, 16)
    (record,) = caplog.records
    assert "Implicit redistribution of mat2 for aten.mm.default" in record.message
    with pytest.raises(RuntimeError, match="Invalid mode 'whisper'"):
        ExplicitRedistributionContext(mode="whisper")


def test_parallel_styles_are_explicit(mesh) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with ExplicitRedistributionContext():
        model(torch.ones(4, 8, requires_grad=True)).sum().backward()


def test_other_threads_are_left_alone(mesh) -> None:
    x, a = pair(mesh)
    done: list[torch.Size] = []
    with ExplicitRedistributionContext():
        thread = threading.Thread(target=lambda: done.append((x @ a).shape))
        thread.start()
        thread.join()
    assert done == [(8, 16)]


@on_threads(4)
def test_every_rank_raises_alike_also_one_with_nothing() -> None:
    mesh = kept_mesh((4,))
    x = distribute_tensor(torch.ones(3, 5), mesh, [Shard(0)])
    with (
        ExplicitRedistributionContext(),
        pytest.raises(RuntimeError, match=r"Implicit .* of self for aten\._softmax"),
    ):
        x.softmax(0)
