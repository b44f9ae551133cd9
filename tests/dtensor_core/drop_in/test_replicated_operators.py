"""Operators on replicated DTensors match a single device, and agree on all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtensor_core import DeviceMesh, Replicate, distribute_tensor
from dtensor_core.testing.threads import on_threads

RANKS = 2
ROUNDS = 3


def data(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(ROUNDS, *shape, generator=torch.Generator().manual_seed(seed))


@on_threads(RANKS)
def test_a_slice_and_its_gradient() -> None:
    mesh = DeviceMesh("cpu", list(range(RANKS)))
    for full, grad in zip(data(64, 10, seed=0), data(64, 5, seed=1) * 1e-3, strict=True):
        plain = full.clone().requires_grad_()
        x = distribute_tensor(plain, mesh, [Replicate()])
        out = x[:, :5]
        out.backward(distribute_tensor(grad, mesh, [Replicate()]))
        plain[:, :5].backward(grad)
        assert torch.equal(out.to_local(), plain[:, :5])
        assert x.grad is not None
        assert torch.equal(x.grad.to_local(), plain.grad)


@on_threads(RANKS)
def test_bernoulli_draws_alike_on_every_rank() -> None:
    mesh, other = DeviceMesh("cpu", list(range(RANKS))), 1 - dist.get_rank()
    for full, grad in zip(data(64, 10, seed=0), data(64, 10, seed=1) * 1e-3, strict=True):
        x = distribute_tensor(full.clone().requires_grad_(), mesh, [Replicate()])
        out = torch.bernoulli(x)
        out.backward(distribute_tensor(grad, mesh, [Replicate()]))
        assert x.grad is not None
        mine = [out.to_local(), x.grad.to_local()]
        theirs = [torch.zeros_like(each) for each in mine]
        transfers = [dist.P2POp(dist.isend, each, other) for each in mine]
        transfers += [dist.P2POp(dist.irecv, each, other) for each in theirs]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert 0 < mine[0].mean() < 1


@on_threads(RANKS)
def test_cross_entropy_and_its_gradient() -> None:
    mesh, loss_of = DeviceMesh("cpu", list(range(RANKS))), nn.CrossEntropyLoss()
    classes = (data(64, seed=1) * 10).long()
    for scores, target in zip(data(64, 10, seed=0), classes, strict=True):
        plain = scores.clone().requires_grad_()
        x = distribute_tensor(plain, mesh, [Replicate()])
        loss = loss_of(x, distribute_tensor(target, mesh, [Replicate()]))
        loss.backward()
        expected = loss_of(plain, target)
        expected.backward()
        torch.testing.assert_close(loss.to_local(), expected)
        assert x.grad is not None
        torch.testing.assert_close(x.grad.to_local(), plain.grad)
