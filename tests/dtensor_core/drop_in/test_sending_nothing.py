"""Operators that programs expect not to communicate, and the placements of their results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from dtensor_core.debug import CommDebugMode
from dtensor_core.testing.threads import kept_mesh, on_threads

RANKS = 4
P, R, S = Partial(), Replicate(), Shard

# Call, shape and placement of the argument, placement of the result.
CALLS: dict[str, tuple[Any, tuple[int, ...], Placement, Placement]] = {
    "sum over the sharded dim": (lambda x: x.sum(0), (8, 12), S(0), P),
    "sum over another dim": (lambda x: x.sum(1), (8, 12), S(0), S(0)),
    "mean over another dim": (lambda x: x.mean(-1), (8, 12), S(0), S(0)),
    "maximum over the sharded dim": (lambda x: x.amax(0), (8, 12), S(0), Partial("max")),
    "softmax over another dim": (lambda x: F.softmax(x, -1), (8, 12), S(0), S(0)),
    "layer norm over another dim": (lambda x: F.layer_norm(x, (12,)), (8, 12), S(0), S(0)),
    "slice of another dim": (lambda x: x[:, 8:], (8, 12), S(0), S(0)),
    "transpose": (lambda x: x.t(), (8, 12), S(0), S(1)),
    "stack in front": (lambda x: torch.stack([x, x]), (8, 12), S(0), S(1)),
    "stack behind": (lambda x: torch.stack([x, x], -1), (8, 12), S(0), S(0)),
    "stack of partial sums": (lambda x: torch.stack([x, x]), (8, 12), P, P),
    "partial sums times a number": (lambda x: x * 2, (8, 12), P, P),
    "partial sums divided by a number": (lambda x: x / 4, (8, 12), P, P),
    "minus partial sums": (lambda x: -x, (8, 12), P, P),
    "sum of partial sums": (lambda x: x + x, (8, 12), P, P),
    "like in shape": (lambda x: torch.ones_like(x), (8, 12), S(0), S(0)),
    "dropout": (lambda x: F.dropout(x, 0.5), (8, 12), S(0), S(0)),
    "batched product": (lambda x: torch.bmm(x, x), (8, 4, 4), S(0), S(0)),
    "attention by heads": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        (2, 4, 8, 4),
        S(1),
        S(1),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@on_threads(RANKS)
def test_nothing_is_sent(name: str) -> None:
    call, shape, before, after = CALLS[name]
    mesh = kept_mesh((RANKS,))
    full = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    if before is P:
        x = DTensor.from_local(full / RANKS, mesh, [P])
    else:
        x = distribute_tensor(full, mesh, [before], src_data_rank=None)
    with CommDebugMode() as counter:
        result = call(x)
    assert counter.get_total_counts() == 0
    assert result.placements == (after,)
    if name != "dropout":
        torch.testing.assert_close(result.full_tensor(), call(full))


@pytest.mark.parametrize("sharded", [0, 1, 2])
@on_threads(RANKS)
def test_reading_by_a_sharded_index_sends_nothing(sharded: int) -> None:
    mesh, full = kept_mesh((RANKS,)), torch.arange(12.0 * 8 * 4).view(12, 8, 4)
    for dim in range(3):
        index = torch.arange(12 * 8 * 4).view(12, 8, 4) % full.shape[dim]
        with CommDebugMode() as counter:
            result = torch.gather(
                DTensor.from_local(full, mesh),
                dim,
                distribute_tensor(index, mesh, [Shard(sharded)], src_data_rank=None),
            )
        assert counter.get_total_counts() == 0
        assert result.placements == (Shard(sharded),)
        assert torch.equal(result.full_tensor(), torch.gather(full, dim, index))


@pytest.mark.parametrize("module", [nn.LayerNorm(12), nn.RMSNorm(12)], ids=["layer", "rms"])
@pytest.mark.parametrize("sharded", [0, 1])
@on_threads(RANKS)
def test_a_norm_over_the_last_dim_sends_nothing_forward(module: nn.Module, sharded: int) -> None:
    mesh = kept_mesh((RANKS,))
    full = torch.rand(8, 4, 12, generator=torch.Generator().manual_seed(0))
    plain, norm = copy.deepcopy(module), distribute_module(copy.deepcopy(module), mesh)
    x = distribute_tensor(full, mesh, [Shard(sharded)], src_data_rank=None).requires_grad_()
    with CommDebugMode() as counter:
        out = norm(x)
    assert counter.get_total_counts() == 0
    assert out.placements == (Shard(sharded),)
    out.square().sum().backward()
    plain(full).square().sum().backward()
    for mine, theirs in zip(norm.parameters(), plain.parameters(), strict=True):
        assert isinstance(mine.grad, DTensor)
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)
