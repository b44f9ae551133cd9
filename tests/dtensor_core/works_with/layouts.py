"""Helpers of this folder's tests: tensors, a tensor-parallel model, comparison of full tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dtensor_core import DeviceMesh, Placement, Replicate, Shard, distribute_tensor
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing.threads import kept_mesh, on_threads

LAYOUTS: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate())


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)).to(dtype)


def parallel(mesh: DeviceMesh, plain: nn.Module | None = None) -> Any:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(plain or model(), mesh, plan)  # pyright: ignore


def full(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def assert_close(found: Any, wanted: Any, **tolerance: Any) -> None:
    """Compare full tensors, through lists and tuples."""
    for got, want in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(full(got), want.detach(), **tolerance)
        else:
            assert got == want


def assert_same_run(
    fn: Callable[..., Any],
    *full_tensors: torch.Tensor,
    layouts: Sequence[Placement] = LAYOUTS,
    ranks: int = 3,
) -> None:
    """Compare `fn` on leaf DTensors of every layout with `fn` on the full leaf tensors."""
    wanted = fn(*(each.clone().requires_grad_() for each in full_tensors))

    @on_threads(ranks)
    def body() -> None:
        mesh = kept_mesh((ranks,))
        for layout in layouts:
            mine = [
                distribute_tensor(each, mesh, [layout]).requires_grad_() for each in full_tensors
            ]
            assert_close(fn(*mine), wanted)

    body()
