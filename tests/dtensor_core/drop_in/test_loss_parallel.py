"""Cross entropy on logits sharded by class: three all-reduces forward, none backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.debug import CommDebugMode
from dtensor_core.parallel import loss_parallel
from dtensor_core.testing.pool import run_processes
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.drop_in.counted import RANKS, functional

CLASSES = 16
SHAPES = {1: (CLASSES,), 2: (8, CLASSES), 3: (8, CLASSES, 4)}


def data(ndim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Create logits and target classes."""
    generator = torch.Generator().manual_seed(ndim)
    shape = SHAPES[ndim]
    target_shape = [size for dim, size in enumerate(shape) if dim != min(ndim - 1, 1)]
    logits = torch.randn(shape, generator=generator)
    return logits, torch.randint(CLASSES, target_shape, generator=generator)


@pytest.mark.parametrize("ndim", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_and_values_are_those_that_programs_pin(ndim, reduction, weighted) -> None:
    logits, target = data(ndim)
    weight = torch.rand(CLASSES) if weighted else None
    plain = logits.clone().requires_grad_()
    expected = F.cross_entropy(plain, target, weight, reduction=reduction)
    expected.sum().backward()

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        dim = min(ndim - 1, 1)
        x = distribute_tensor(logits.clone().requires_grad_(), mesh, [Shard(dim)])
        y = distribute_tensor(target, mesh, [Replicate()])
        w = None if weight is None else distribute_tensor(weight, mesh, [Replicate()])
        with loss_parallel():
            with CommDebugMode() as counter:
                loss = F.cross_entropy(x, y, w, reduction=reduction)
            assert counter.get_comm_counts() == {functional.all_reduce: 3}
            assert loss.placements == (Replicate(),)
            torch.testing.assert_close(loss.to_local(), expected)
            with counter:
                loss.sum().backward()
            assert counter.get_total_counts() == 0
        assert isinstance(x.grad, DTensor)
        assert x.grad.placements == (Shard(dim),)
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)

    body()


@on_threads(RANKS)
def test_a_sum_over_a_batch_that_is_sharded_too_takes_no_further_reduction() -> None:
    mesh, (logits, target) = kept_mesh((2, 2)), data(2)
    x = distribute_tensor(logits, mesh, [Shard(0), Shard(1)])
    y = distribute_tensor(target, mesh, [Shard(0), Replicate()])
    with loss_parallel(), CommDebugMode() as counter:
        loss = F.cross_entropy(x, y, reduction="sum")
    assert counter.get_comm_counts() == {functional.all_reduce: 3}
    torch.testing.assert_close(loss.full_tensor(), F.cross_entropy(logits, target, reduction="sum"))


def _count_where_groups_are_called_directly() -> None:
    mesh = init_device_mesh("cpu", (2,))
    logits, target = data(2)
    x = distribute_tensor(logits, mesh, [Shard(1)])
    with loss_parallel(), CommDebugMode() as counter:
        F.cross_entropy(x, target)
    assert counter.get_comm_counts() == {functional.all_reduce: 3}
    full = distribute_tensor(logits, mesh, [Replicate()])
    with CommDebugMode() as counter:
        torch.add(x, x, out=full)
    assert counter.get_comm_counts() == {functional.all_gather_into_tensor: 1}


def test_counts_are_those_of_functional_collectives_on_processes_too() -> None:
    run_processes(_count_where_groups_are_called_directly, 2)


def smoothed(x: Any, y: Any) -> Any:
    return F.cross_entropy(x, y, label_smoothing=0.1)


def used_twice(x: Any, y: Any) -> Any:
    scores = F.log_softmax(x, 1)
    return F.nll_loss(scores, y) + (scores * scores).sum()


def changed_on_the_way(x: Any, y: Any) -> Any:
    scores = F.log_softmax(x, -1)
    scores.register_hook(lambda grad: grad.mul_(3))
    return F.nll_loss(scores, y, reduction="sum")


@pytest.mark.parametrize("loss_of", [smoothed, used_twice, changed_on_the_way])
def test_gradients_are_right_where_there_is_more_than_the_loss(loss_of) -> None:
    logits, target = data(2)
    plain = logits.clone().requires_grad_()
    loss_of(plain, target).backward()

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = distribute_tensor(logits.clone().requires_grad_(), mesh, [Shard(1)])
        with loss_parallel():
            loss_of(x, distribute_tensor(target, mesh, [Replicate()])).backward()
        assert isinstance(x.grad, DTensor)
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)

    body()
