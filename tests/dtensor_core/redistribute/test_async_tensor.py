"""An asynchronous redistribution returns before its last collective completes."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed._functional_collectives as functional_collectives
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import DTensor, Partial, Replicate, Shard, collectives, distribute_tensor
from dtensor_core.testing import on_processes
from dtensor_core.testing.threads import kept_mesh, on_threads


class Waits(TorchDispatchMode):
    """Counts the collectives that this rank issues, and its waits, also inside of other modes."""

    counts: ClassVar[Counter[int]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.issued = 0
        self._before = self.counts[threading.get_ident()]

    @property
    def waited(self) -> int:
        return self.counts[threading.get_ident()] - self._before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.issued += name.startswith("_c10d_functional::") and not name.endswith("wait_tensor")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _waits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for home, name in ((collectives, "wait"), (functional_collectives, "wait_tensor")):
        monkeypatch.setattr(home, name, _counted(getattr(home, name)))


def _counted(wait: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def counted(issued: torch.Tensor) -> torch.Tensor:
        Waits.counts[threading.get_ident()] += 1
        return wait(issued)

    return counted


JOURNEYS = [
    ((7, 3), [Shard(0)], [Replicate()]),
    ((8, 4), [Shard(0)], [Replicate()]),
    ((8, 6), [Shard(1)], [Replicate()]),
    ((5, 6), [Shard(0)], [Shard(1)]),
]


@pytest.mark.parametrize(("shape", "source", "target"), JOURNEYS)
def test_nothing_waits_before_the_first_use(shape: Any, source: Any, target: Any) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        full = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        tensor = distribute_tensor(full, mesh, source)
        with Waits() as seen:
            moved = tensor.redistribute(mesh, target, async_op=True)
            local = moved.to_local()
            assert (seen.issued, seen.waited) == (1, 0)
            assert isinstance(local, AsyncCollectiveTensor)
            assert local.shape == moved.redistribute(mesh, target).to_local().shape
            assert seen.waited == 0
            used = local + 1
            assert seen.waited == 1
            again = local * 2
            assert seen.waited == 1, "what is there is not waited for again"
        expected = tensor.redistribute(mesh, target).to_local()
        assert torch.equal(used, expected + 1)
        assert torch.equal(again, expected * 2)
        left = moved.to_local()
        assert not isinstance(left, AsyncCollectiveTensor) or left.completed, "it is there by now"

    body()


@on_threads(4)
def test_what_arrives_as_it_should_be_is_torchs_own_tensor_and_its_views_do_not_wait() -> None:
    mesh = kept_mesh((4,))
    tensor = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    moved = tensor.redistribute(mesh, [Replicate()], async_op=True)
    local: Any = moved.view(moved.shape).to_local()
    assert type(local) is AsyncCollectiveTensor
    flat = local.view(-1)
    assert type(flat) is AsyncCollectiveTensor
    assert not local.completed
    assert not flat.completed
    assert (flat + 1).tolist() == [2.0] * 8


@on_threads(4)
def test_partial_values_of_all_kinds_are_finished_when_they_are_used() -> None:
    mesh = kept_mesh((4,))
    for reduce_op, expected in (("sum", 10.0), ("avg", 2.5), ("max", 4.0)):
        local = torch.full((3, 4), 1.0 + mesh.get_local_rank())
        tensor = DTensor.from_local(local, mesh, [Partial(reduce_op)])
        for target in (Replicate(), Shard(0), Shard(1)):
            moved: Any = tensor.redistribute(mesh, [target], async_op=True)
            assert (moved + 0).to_local().unique().tolist() in ([expected], [])
            assert (moved.full_tensor() == expected).all()


@on_threads(4)
def test_all_but_the_last_collective_are_waited_for() -> None:
    mesh = kept_mesh((2, 2))
    full = torch.arange(21.0).reshape(7, 3)
    tensor = distribute_tensor(full, mesh, [Shard(0), Shard(0)])
    with Waits() as seen:
        moved = tensor.redistribute(mesh, [Replicate(), Shard(0)], async_op=True)
        assert (seen.issued, seen.waited) == (2, 1)
    assert torch.equal(moved.full_tensor(), full)


@on_threads(4)
def test_gradients_go_back_asynchronously_too_and_arrive() -> None:
    mesh = kept_mesh((4,))
    full = torch.arange(20.0).reshape(5, 4)
    grads = []
    for async_op in (False, True):
        x: Any = distribute_tensor(full, mesh, [Shard(0)]).requires_grad_()
        y = x.redistribute(mesh, [Replicate()], async_op=async_op)
        z = (y * y).redistribute(mesh, [Shard(1)], async_op=async_op)
        (z.sin() * z).sum().backward()
        assert x.grad is not None
        assert x.grad.placements == (Shard(0),)
        grads.append(x.grad.full_tensor())
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)


@on_threads(4)
def test_the_gradient_of_a_gradient_survives_asynchrony() -> None:
    mesh = kept_mesh((4,))
    x: Any = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]).requires_grad_()
    y = x.redistribute(mesh, [Replicate()], async_op=True)
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    second: Any = torch.autograd.grad(first.sum(), x)[0]
    torch.testing.assert_close(second.full_tensor(), 6 * torch.arange(8.0))


@on_threads(2)
def test_a_local_gradient_is_the_same_with_asynchrony() -> None:
    mesh = kept_mesh((2,))
    local = torch.arange(4.0, requires_grad=True)
    tensor = DTensor.from_local(local, mesh, [Shard(0)])
    out = tensor.redistribute(mesh, [Replicate()], async_op=True).to_local()
    assert isinstance(out, AsyncCollectiveTensor)
    (out * torch.arange(8.0)).sum().backward()
    rank = mesh.get_local_rank()
    assert local.grad is not None
    assert local.grad.tolist() == list(range(4 * rank, 4 * rank + 4))


@on_threads(2)
def test_the_gradient_that_a_local_leaf_keeps_is_a_plain_tensor() -> None:
    mesh = kept_mesh((2,))
    leaf = torch.arange(4.0, requires_grad=True)
    tensor = DTensor.from_local(leaf, mesh, [Partial()])
    tensor.redistribute(mesh, [Shard(0)], async_op=True).square().sum().backward()
    assert type(leaf.grad) is torch.Tensor
    assert leaf.grad.tolist() == [0.0, 4.0, 8.0, 12.0]


@on_threads(2)
def test_what_is_pending_can_be_read_in_every_way() -> None:
    mesh = kept_mesh((2,))
    tensor = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])

    def pending() -> Any:
        return tensor.redistribute(mesh, [Replicate()], async_op=True).to_local()

    values = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert pending().tolist() == values
    assert pending().numpy().tolist() == values
    assert pending().wait().tolist() == values
    assert pending().trigger_wait().tolist() == values
    assert pending().view(5, 1).squeeze(1).tolist() == values
    assert pending().view(5).tolist() == values
    assert pending().detach().clone().tolist() == values
    assert copy.deepcopy(pending()).tolist() == values
    assert pickle.loads(pickle.dumps(pending())).tolist() == values
    assert torch.cat([pending(), pending()]).tolist() == values * 2
    assert pending()[2].item() == 2.0
    assert "3." in repr(pending())
    written = pending()
    written.add_(1)
    assert written.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@on_threads(2)
def test_a_dtensor_that_is_pending_works_like_any_other() -> None:
    mesh = kept_mesh((2,))
    tensor = distribute_tensor(torch.arange(6.0).reshape(3, 2), mesh, [Shard(0)])
    moved = tensor.redistribute(mesh, [Replicate()], async_op=True)
    assert "DTensor" in repr(moved)
    for use in (lambda t: t + t, lambda t: t.detach(), lambda t: t.t() @ t, copy.deepcopy):
        moved = tensor.redistribute(mesh, [Replicate()], async_op=True)
        expected: Any = use(tensor.redistribute(mesh, [Replicate()]))
        assert torch.equal(use(moved).full_tensor(), expected.full_tensor())
    moved = tensor.redistribute(mesh, [Replicate()], async_op=True)
    shared: Any = torch._foreach_add([moved, moved], 1.0)
    assert torch.equal(shared[1].to_local(), torch.arange(6.0).reshape(3, 2) + 1)


def on_gloo() -> None:
    """Run two concurrent redistributions and wait for them in reverse order."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    one = distribute_tensor(torch.arange(1000.0), mesh, [Shard(0)])
    other = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    first = one.redistribute(mesh, [Replicate()], async_op=True)
    second = other.redistribute(mesh, [Replicate()], async_op=True)
    assert isinstance(first.to_local(), AsyncCollectiveTensor)
    assert torch.equal(second.to_local() + 0, torch.arange(7.0))
    assert torch.equal(first.to_local() + 0, torch.arange(1000.0))


test_two_may_be_in_flight_on_gloo = on_processes(2)(on_gloo)
