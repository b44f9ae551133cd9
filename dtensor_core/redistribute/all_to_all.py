"""All-to-all of rows along a mesh axis, with a row count per destination.

This is the token dispatch of expert parallelism. Row counts depend on the data, so ranks exchange
the counts first. Called by `parallel.experts`; differentiable, gradients travel back to the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core import collectives, observe
from dtensor_core.mesh import DeviceMesh, channel
from dtensor_core.redistribute.distribute import reason_of_transfer


def all_to_all_rows(
    rows: torch.Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    mesh: DeviceMesh,
    operator: str,
    expert_rows: Sequence[int] = (),
) -> torch.Tensor:
    """Exchange rows between all coordinates of a one-axis mesh.

    Args:
        rows: The local rows; the first `sent[0]` go to coordinate 0, and so on.
        sent: The number of rows for each coordinate.
        received: The number of rows that arrive from each coordinate.
        mesh: A mesh of one axis.
        operator: The name that the communication is announced under.
        expert_rows: The number of rows for each expert, if they are sent to experts, which is
            announced too.

    Returns:
        The received rows, in the order of their coordinates.
    """
    given = rows, tuple(sent), tuple(received), mesh, operator, tuple(expert_rows)
    return _AllToAll.apply(*given)  # pyright: ignore


def _exchanged(
    rows: torch.Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    mesh: DeviceMesh,
    operator: str,
    expert_rows: tuple[int, ...],
) -> torch.Tensor:
    """Exchange the rows, permuting them if group ranks and coordinates differ in order."""
    line = channel(mesh, (0,))
    order = [coord for (coord,) in line.coords]
    places = sorted(range(len(order)), key=order.__getitem__)
    in_order = order == sorted(order)
    pieces = rows.split(list(sent))
    given = rows if in_order else torch.cat([pieces[coord] for coord in order])
    sizes = [received[coord] for coord in order], [sent[coord] for coord in order]
    # Experts are numbered by coordinate, as their rows are.
    stated = expert_rows if in_order else ()
    with observe.announced(reason_of_transfer(operator, "all_to_all", mesh, 0, given, stated)):
        arrived = collectives.wait(collectives.all_to_all(given.contiguous(), *sizes, line.name))
    if in_order:
        return arrived
    pieces = arrived.split(sizes[0])
    return torch.cat([pieces[place] for place in places])


class _AllToAll(torch.autograd.Function):
    """Autograd function of the exchange: the gradient of a received row returns to its sender."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        rows: torch.Tensor,
        sent: tuple[int, ...],
        received: tuple[int, ...],
        mesh: DeviceMesh,
        operator: str,
        expert_rows: tuple[int, ...],
    ) -> torch.Tensor:
        ctx.counts, ctx.mesh, ctx.operator = (received, sent), mesh, operator
        return _exchanged(rows, sent, received, mesh, operator, expert_rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore
        sent, received = ctx.counts
        back = all_to_all_rows(grad, sent, received, ctx.mesh, f"{ctx.operator}.backward")
        return back, None, None, None, None, None
