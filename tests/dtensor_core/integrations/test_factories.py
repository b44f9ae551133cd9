"""torch functions that create tensors in addition to their arguments accept DTensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Shard, distribute_tensor
from dtensor_core.testing import kept_mesh, on_threads

X = (torch.arange(48.0) ** 2 * 0.37).reshape(6, 8).sin()


def _low_rank(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    u, s, v = torch.svd_lowrank(x, q=6)
    return u @ s.diag() @ v.T


def _principal(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    u, s, v = torch.pca_lowrank(x, q=5)
    return u @ s.diag() @ v.T


FUNCTIONS: dict[str, Any] = {
    "svd_lowrank": _low_rank,
    "pca_lowrank": _principal,
    "masked.mean": lambda x: torch.masked.mean(x, 1),
    "masked.var": lambda x: torch.masked.var(x, 1, unbiased=True),
    "masked.std": lambda x: torch.masked.std(x, 0, unbiased=False),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
@on_threads(4)
def test_result_and_gradient_are_those_of_the_full_tensor(name: str, dim: int) -> None:
    full = X.clone().requires_grad_()
    sharded: Any = distribute_tensor(X.clone(), kept_mesh((4,)), [Shard(dim)], src_data_rank=None)
    sharded.requires_grad_()
    expected, result = FUNCTIONS[name](full), FUNCTIONS[name](sharded)
    assert isinstance(result, DTensor)
    torch.testing.assert_close(result.full_tensor(), expected)
    expected.cos().sum().backward()
    result.cos().sum().backward()
    torch.testing.assert_close(sharded.grad.full_tensor(), full.grad, atol=1e-4, rtol=1e-4)


def test_a_plain_tensor_is_given_plain_ones() -> None:
    assert type(torch.masked.mean(X, 1)) is torch.Tensor
    assert type(torch.svd_lowrank(X, q=4)[0]) is torch.Tensor
