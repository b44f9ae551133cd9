"""One function a step kind: what a rank does to its local tensor on one mesh axis.

Pieces that differ in length are padded to the longest for all-gather and reduce-scatter, and cut
back after; all-to-all exchanges exact sizes. Called by `execute` through the table `STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dtensor_core import collectives
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Partial, Placement, norm_exponent, sharded_dim, split_factor
from dtensor_core.redistribute.pieces import join, pad, part_of, piece_sizes, pieces_of, split

# An addend that changes nothing, per reduction; None keeps the value on every rank.
_NEUTRAL: dict[str, int | None] = {
    "sum": 0,
    "bor": 0,
    "bxor": 0,
    "product": 1,
    "avg": None,
    "min": None,
    "max": None,
    "band": None,
}


@dataclass(frozen=True, slots=True)
class Site:
    """Where a step runs, for this rank.

    `cut` is the sharded one of the two placements (of all-to-all the one that it arrives at), and
    `size` the extent of the sharded dimension (of all-to-all the one that it leaves) before this
    axis cuts it.
    """

    mesh: DeviceMesh
    axis: int
    coord: int
    ranks: int
    before: Placement
    after: Placement
    cut: Placement
    size: int

    @property
    def dim(self) -> int:
        """The dimension that `cut` cuts."""
        dim = sharded_dim(self.cut)
        assert dim is not None
        return dim

    @property
    def factor(self) -> int:
        """The number of blocks that `cut` sees its dimension as."""
        return split_factor(self.cut)


def _slice(local: torch.Tensor, site: Site) -> torch.Tensor:
    extents = pieces_of(site.size, site.ranks, site.factor)[site.coord]
    return part_of(local, site.dim, extents).clone(memory_format=torch.contiguous_format)


def _one_addend(local: torch.Tensor, site: Site) -> torch.Tensor:
    """The value stays on coordinate 0; the others hold what changes nothing. Exact."""
    assert isinstance(site.after, Partial)
    neutral = _NEUTRAL.get(site.after.reduce_op, 0)  # of norms, 0
    return local if neutral is None or site.coord == 0 else torch.full_like(local, neutral)


def _all_gather(local: torch.Tensor, site: Site) -> torch.Tensor:
    dim = site.dim
    sizes = piece_sizes(site.size, site.ranks, site.factor)
    padded = pad(local, dim, sizes[0])
    gathered = collectives.all_gather(padded, site.mesh, site.axis)
    if dim == 0 and site.factor == 1 and sizes[-1] == sizes[0]:
        return gathered
    return join(gathered.view(site.ranks, *padded.shape).unbind(0), site.cut, site.size)


def _all_reduce(local: torch.Tensor, site: Site) -> torch.Tensor:
    return _reduced(
        site,
        local.contiguous(),
        lambda sent, op: collectives.all_reduce(sent, op, site.mesh, site.axis),
    )


def _reduce_scatter(local: torch.Tensor, site: Site) -> torch.Tensor:
    dim = site.dim
    sizes = piece_sizes(site.size, site.ranks, site.factor)
    if dim == 0 and site.factor == 1 and sizes[-1] == sizes[0]:
        sent = local.contiguous()
    else:
        pieces = split(local, site.cut, site.ranks)
        sent = torch.cat([pad(piece, dim, sizes[0]) for piece in pieces], 0)
    scattered = _reduced(
        site,
        sent,
        lambda sent, op: collectives.reduce_scatter(sent, op, site.mesh, site.axis),
    )
    shape = list(local.shape)
    shape[dim] = sizes[0]
    return scattered.view(shape).narrow(dim, 0, sizes[site.coord]).contiguous()


def _reduced(
    site: Site, sent: torch.Tensor, reduce: Callable[[torch.Tensor, str], torch.Tensor]
) -> torch.Tensor:
    """An average is sent as a sum and divided here: not every backend averages.

    Norms are sent as the sums of powers that they are made of.
    """
    assert isinstance(site.before, Partial)
    reduce_op = site.before.reduce_op
    if reduce_op == "avg":
        return reduce(sent, "sum") / site.ranks
    exponent = norm_exponent(reduce_op)
    if exponent is not None:
        return reduce(sent.pow(exponent), "sum").pow_(1 / exponent)
    return reduce(sent, reduce_op)


def _all_to_all(local: torch.Tensor, site: Site) -> torch.Tensor:
    source = sharded_dim(site.before)
    assert source is not None
    pieces = split(local, site.cut, site.ranks)
    mine = list(pieces[site.coord].shape)
    shapes = []
    for size in piece_sizes(site.size, site.ranks):
        mine[source] = size
        shapes.append(torch.Size(mine))
    received = collectives.all_to_all(
        torch.cat([piece.reshape(-1) for piece in pieces]),
        [shape.numel() for shape in shapes],
        [piece.numel() for piece in pieces],
        site.mesh,
        site.axis,
    )
    parts = received.split([shape.numel() for shape in shapes])
    return torch.cat([part.view(shape) for part, shape in zip(parts, shapes, strict=True)], source)


STEPS: dict[str, Callable[[torch.Tensor, Site], torch.Tensor]] = {
    "slice": _slice,
    "one_addend": _one_addend,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
