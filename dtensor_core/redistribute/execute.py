"""The executor: carries out a plan's steps on a local tensor, announcing each one that sends.

One function a step kind, in one table. Pieces that differ in length are padded to the longest
for all-gather and reduce-scatter, and cut back after; all-to-all exchanges exact sizes. Called by
`dispatch` and by `DTensor.redistribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dtensor_core import collectives, layout, observe
from dtensor_core.mesh import DeviceMesh, axis_name
from dtensor_core.placement import Partial, Placement, sharded_dim, split_factor
from dtensor_core.redistribute.plan import Plan
from dtensor_core.redistribute.transitions import Step, piece_sizes
from dtensor_core.spec import Spec

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
class Cause:
    """Who asks for a redistribution: an operator and its argument, and what it chose among."""

    operator: str
    argument: str = ""
    candidates: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Site:
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


def execute(local: torch.Tensor, spec: Spec, plan: Plan, cause: Cause) -> torch.Tensor:
    """The local tensor after all steps of `plan`, starting from `spec`.

    Raises what a listener raises to refuse a communication, before it is issued.
    """
    coords = spec.coords
    if coords is None or not plan.steps:
        return local
    source, target = spec.text, spec.with_placements(plan.steps[-1].target).text
    for step in plan.steps:
        site = _site(step, spec, coords)
        run = _STEPS[step.kind]
        if not step.communicates:
            local = run(local, site) if site.ranks > 1 else local
            continue
        announcement = observe.Announcement(
            operator=cause.operator,
            argument=cause.argument,
            source=source,
            target=target,
            step=step.kind,
            axis=axis_name(spec.mesh, step.axis),
            payload_bytes=step.payload_bytes(
                spec.shape, spec.dtype.itemsize, spec.mesh_shape, coords
            ),
            candidates=cause.candidates,
        )
        with observe.announced(announcement):
            local = run(local, site)
    return local


def _site(step: Step, spec: Spec, coords: Sequence[int]) -> _Site:
    before, after = step.source[step.axis], step.target[step.axis]
    cut = after if sharded_dim(after) is not None else before
    dim = sharded_dim(before if step.kind == "all_to_all" else cut)
    size = 0
    if dim is not None:
        cuts = layout.cuts_of(step.source[: step.axis], spec.mesh_shape, coords, dim)
        size = layout.held_size(spec.shape[dim], cuts)
    ranks = spec.mesh_shape[step.axis]
    return _Site(spec.mesh, step.axis, coords[step.axis], ranks, before, after, cut, size)


def split(tensor: torch.Tensor, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """The piece of every coordinate, along the dimension that `placement` cuts."""
    dim, factor = sharded_dim(placement), split_factor(placement)
    assert dim is not None
    pieces: list[torch.Tensor] = []
    for coord in range(ranks):
        cut = layout.Cut(ranks, coord, factor)
        held = layout.held_extents(tensor.shape[dim], (cut,))
        parts = [tensor.narrow(dim, part.offset, part.size) for part in held]
        pieces.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim))
    return pieces


def join(pieces: Sequence[torch.Tensor], placement: Placement, size: int) -> torch.Tensor:
    """The whole, from the pieces of every coordinate; pieces may be padded at their end."""
    dim, factor = sharded_dim(placement), split_factor(placement)
    assert dim is not None
    located: list[tuple[int, torch.Tensor]] = []
    for coord, piece in enumerate(pieces):
        start = 0
        for part in layout.held_extents(size, (layout.Cut(len(pieces), coord, factor),)):
            located.append((part.offset, piece.narrow(dim, start, part.size)))
            start += part.size
    located = [entry for entry in located if entry[1].shape[dim]] or located[:1]
    return torch.cat([part for _, part in sorted(located, key=lambda entry: entry[0])], dim)


def _pad(piece: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    missing = size - piece.shape[dim]
    if missing == 0:
        return piece.contiguous()
    shape = list(piece.shape)
    shape[dim] = missing
    return torch.cat([piece, piece.new_zeros(shape)], dim)


def _slice(local: torch.Tensor, site: _Site) -> torch.Tensor:
    piece = split(local, site.cut, site.ranks)[site.coord]
    return piece.clone(memory_format=torch.contiguous_format)


def _one_addend(local: torch.Tensor, site: _Site) -> torch.Tensor:
    """The value stays on coordinate 0; the others hold what changes nothing. Exact."""
    assert isinstance(site.after, Partial)
    neutral = _NEUTRAL[site.after.reduce_op]
    return local if neutral is None or site.coord == 0 else torch.full_like(local, neutral)


def _all_gather(local: torch.Tensor, site: _Site) -> torch.Tensor:
    dim = sharded_dim(site.cut)
    assert dim is not None
    sizes = piece_sizes(site.size, site.ranks, split_factor(site.cut))
    padded = _pad(local, dim, sizes[0])
    gathered = collectives.all_gather(padded, site.mesh, site.axis)
    if dim == 0 and split_factor(site.cut) == 1 and sizes[-1] == sizes[0]:
        return gathered
    return join(gathered.view(site.ranks, *padded.shape).unbind(0), site.cut, site.size)


def _all_reduce(local: torch.Tensor, site: _Site) -> torch.Tensor:
    return _reduced(
        site, lambda op: collectives.all_reduce(local.contiguous(), op, site.mesh, site.axis)
    )


def _reduce_scatter(local: torch.Tensor, site: _Site) -> torch.Tensor:
    dim = sharded_dim(site.cut)
    assert dim is not None
    pieces = split(local, site.cut, site.ranks)
    longest = pieces[0].shape[dim]
    if dim == 0 and longest * site.ranks == local.shape[0] and split_factor(site.cut) == 1:
        sent = local.contiguous()
    else:
        sent = torch.cat([_pad(piece, dim, longest) for piece in pieces], 0)
    scattered = _reduced(
        site, lambda op: collectives.reduce_scatter(sent, op, site.mesh, site.axis)
    )
    shape = list(pieces[0].shape)
    return scattered.view(shape).narrow(dim, 0, pieces[site.coord].shape[dim]).contiguous()


def _reduced(site: _Site, reduce: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """An average is sent as a sum and divided here: not every backend averages."""
    assert isinstance(site.before, Partial)
    if site.before.reduce_op == "avg":
        return reduce("sum") / site.ranks
    return reduce(site.before.reduce_op)


def _all_to_all(local: torch.Tensor, site: _Site) -> torch.Tensor:
    source, target = sharded_dim(site.before), sharded_dim(site.cut)
    assert source is not None
    assert target is not None
    pieces = split(local, site.cut, site.ranks)
    mine = list(pieces[site.coord].shape)
    shapes = []
    for size in piece_sizes(site.size, site.ranks):
        mine[source] = size
        shapes.append(torch.Size(mine))
    sent = torch.cat([piece.reshape(-1) for piece in pieces])
    received = collectives.all_to_all(
        sent,
        [shape.numel() for shape in shapes],
        [piece.numel() for piece in pieces],
        site.mesh,
        site.axis,
    )
    parts = received.split([shape.numel() for shape in shapes])
    return torch.cat([part.view(shape) for part, shape in zip(parts, shapes, strict=True)], source)


_STEPS: dict[str, Callable[[torch.Tensor, _Site], torch.Tensor]] = {
    "slice": _slice,
    "one_addend": _one_addend,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
