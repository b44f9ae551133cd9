"""Programs with mixtures of experts on four ranks, whose router is given: `recorded(route)`.

A router returns the rows [ranks, experts] that each rank sends to each expert, in a layer, a step
and a pass. The ranks dispatch the rows and combine the results, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import Frames
from dtensor_core.testing import run_threads

RANKS = 4
NUM_STEPS = 12
NUM_LAYERS = 2
NUM_ROWS = 120
"""Rows of a rank in a step."""
WIDTH = 2

PASSES = ("forward", "combine", "backward")
Route = Callable[[int, int, str], np.ndarray]
"""Rows [ranks, experts] by layer, step and pass; `combine` is the way back of the forward pass."""


class Exchange(torch.autograd.Function):
    """All-to-all of rows, whose gradient sends and receives other numbers of rows: `back`."""

    @staticmethod
    def forward(ctx: Any, rows: Any, sent: Any, received: Any, back: Any) -> Any:  # type: ignore[override]
        ctx.back, ctx.shape = back, rows.shape
        return exchanged(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        sent, received = ctx.back
        exchanged(grad.new_ones(sum(sent), WIDTH), sent, received)
        return grad.new_zeros(ctx.shape), None, None, None


def exchanged(rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows.contiguous(), list(received), list(sent))
    return arrived


def splits(route: np.ndarray, rank: int) -> tuple[list[int], list[int]]:
    """Rows that a rank sends to each rank, and receives from each."""
    of_ranks = route.reshape(RANKS, RANKS, -1).sum(2)
    return of_ranks[rank].tolist(), of_ranks[:, rank].tolist()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(
        self, route: np.ndarray, combined: np.ndarray, of_gradient: np.ndarray, is_stated: bool
    ) -> torch.Tensor:
        rank = dist.get_rank()
        sent, received = splits(route, rank)
        to_get, to_return = splits(combined, rank)
        back = splits(of_gradient, rank)
        rows = self.scale * torch.ones(sum(sent), WIDTH)
        with commtrace.experts(route[rank].tolist()) if is_stated else nullcontext():
            arrived: Any = Exchange.apply(rows, sent, received, back[::-1])
        results = arrived.sum() * torch.ones(sum(to_return), WIDTH)
        results = Exchange.apply(results, to_return, to_get, back)
        return results.sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Experts() for _ in range(NUM_LAYERS)])

    def forward(self, route: Route, step: int, is_stated: bool) -> Any:
        return sum(
            layer(*(route(n, step, each) for each in PASSES), is_stated)
            for n, layer in enumerate(self.layers)
        )


def recorded(route: Route, *, is_stated: bool = False, num_steps: int = NUM_STEPS) -> Frames:
    """Record a training of two layers.

    Args:
        route: The router.
        is_stated: The program states the rows of its experts.
        num_steps: Number of steps.
    """

    def train(recording: Any) -> None:
        model = Model()
        for step in range(num_steps):
            model(route, step, is_stated).backward()
            dist.barrier()
            if dist.get_rank() == 0:
                recording.step()
            dist.barrier()

    with commtrace.record(detail="collective") as recording:
        run_threads(train, RANKS, recording)
    return recording.frames()


def drawn(seed: int, weights: np.ndarray, rows: Sequence[int] | None = None) -> np.ndarray:
    """Rows routed at random: [ranks, experts], the same on each call with the same seed."""
    chance = np.random.default_rng(seed)
    shares = np.broadcast_to(weights, (RANKS, weights.shape[-1]))
    return np.stack(
        [
            chance.multinomial(num, share / share.sum())
            for num, share in zip(rows or [NUM_ROWS] * RANKS, shares, strict=True)
        ]
    )


def seed_of(layer: int, step: int) -> int:
    return 1000 * layer + step
