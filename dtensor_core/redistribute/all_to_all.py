"""Rows of local tensors sent to the coordinates of a mesh axis, as many to each as it is told.

Token dispatch of expert parallelism: how many rows go where is data, so that ranks tell each other
the counts first. Called by `parallel.experts`; differentiable, the gradients travel back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core import collectives, observe
from dtensor_core.mesh import DeviceMesh, channel
from dtensor_core.redistribute.distribute import announcement


def all_to_all_rows(
    rows: torch.Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    mesh: DeviceMesh,
    operator: str,
) -> torch.Tensor:
    """The rows that all coordinates of a mesh of one axis have for this one, in their order.

    Of `rows`, the first `sent[0]` go to coordinate 0, and so on; `received` are the counts of what
    arrives from each.
    """
    return _AllToAll.apply(rows, tuple(sent), tuple(received), mesh, operator)  # pyright: ignore


def _exchanged(
    rows: torch.Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    mesh: DeviceMesh,
    operator: str,
) -> torch.Tensor:
    """Groups number their ranks in an order of their own, which need not be that of coordinates."""
    line = channel(mesh, (0,))
    order = [coord for (coord,) in line.coords]
    places = sorted(range(len(order)), key=order.__getitem__)
    in_order = order == sorted(order)
    pieces = rows.split(list(sent))
    given = rows if in_order else torch.cat([pieces[coord] for coord in order])
    sizes = [received[coord] for coord in order], [sent[coord] for coord in order]
    with observe.announced(announcement(operator, "all_to_all", mesh, 0, given)):
        arrived = collectives.wait(collectives.all_to_all(given.contiguous(), *sizes, line.name))
    if in_order:
        return arrived
    pieces = arrived.split(sizes[0])
    return torch.cat([pieces[place] for place in places])


class _AllToAll(torch.autograd.Function):
    """Rows sent -> rows received; the gradient of what was received goes back to its sender."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        rows: torch.Tensor,
        sent: tuple[int, ...],
        received: tuple[int, ...],
        mesh: DeviceMesh,
        operator: str,
    ) -> torch.Tensor:
        ctx.counts, ctx.mesh, ctx.operator = (received, sent), mesh, operator
        return _exchanged(rows, sent, received, mesh, operator)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore
        sent, received = ctx.counts
        back = all_to_all_rows(grad, sent, received, ctx.mesh, f"{ctx.operator}.backward")
        return back, None, None, None, None
