"""What a step means for this rank: which parts of its local tensor go where, through which group.

Worked out once from a step and a spec, and kept by `execute`. The only place where the rank
counts: that a step is taken at all, and which, was decided before and by all alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dtensor_core import layout
from dtensor_core.mesh import channel
from dtensor_core.placement import Partial, Placement, sharded_dim
from dtensor_core.redistribute.pieces import Part, Runs, common, part
from dtensor_core.redistribute.steps import Site
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec

# The kinds of which parts of the tensor before, or after, belong to single ranks.
_CUTTING = ("slice", "reduce_scatter", "all_to_all")
_JOINING = ("all_gather", "all_to_all")


def site_of(step: Step, spec: Spec) -> Site:
    """Where a step on a tensor of `spec` (but for the placements) runs, for this rank."""
    me = spec.coords
    assert me is not None
    group, places = "", (tuple(me[axis] for axis in step.axes),)
    if step.communicates:
        joined = channel(spec.mesh, step.axes)
        group, places = joined.name, joined.coords
    peers = [_moved(me, step.axes, place) for place in places]
    before, after = (_shape(spec, placements, me) for placements in (step.source, step.target))
    dims = _touched(step)
    sent: tuple[Part, ...] = ()
    received: tuple[Part, ...] = ()
    if step.kind in _CUTTING:
        mine = {dim: _held(spec, step.source, me, dim) for dim in dims}
        wanted = [{dim: _held(spec, step.target, peer, dim) for dim in dims} for peer in peers]
        sent = tuple(part(before, _common(mine, each)) for each in wanted)
    if step.kind in _JOINING:
        mine = {dim: _held(spec, step.target, me, dim) for dim in dims}
        coming = [{dim: _held(spec, step.source, peer, dim) for dim in dims} for peer in peers]
        received = tuple(part(after, _common(mine, each)) for each in coming)
    parts = received or sent
    pieces = {each.shape for each in parts}
    reduce_op, factor = _reduction(step, spec.mesh_shape)
    return Site(
        group=group,
        ranks=len(peers),
        number=peers.index(list(me)),
        first=all(me[axis] == 0 for axis in step.axes),
        before=before,
        after=after,
        sent=sent,
        received=received,
        longest=max((math.prod(shape) for shape in pieces), default=0),
        even=len(pieces) == 1,
        in_order=len(pieces) == 1 and _in_order(parts),
        reduce_op=reduce_op,
        factor=factor,
    )


def _moved(coords: Sequence[int], axes: Sequence[int], place: Sequence[int]) -> list[int]:
    moved = list(coords)
    for axis, coord in zip(axes, place, strict=True):
        moved[axis] = coord
    return moved


def _shape(spec: Spec, placements: Sequence[Placement], coords: Sequence[int]) -> tuple[int, ...]:
    return layout.local_shape(spec.shape, placements, spec.mesh_shape, coords)


def _touched(step: Step) -> list[int]:
    """The dimensions whose cuts the step changes."""
    ends = (step.source, step.target)
    dims = {sharded_dim(placements[axis]) for placements in ends for axis in step.axes}
    return sorted(dim for dim in dims if dim is not None)


def _held(
    spec: Spec, placements: Sequence[Placement], coords: Sequence[int], dim: int
) -> tuple[layout.Extent, ...]:
    cuts = layout.cuts_of(placements, spec.mesh_shape, coords, dim)
    return layout.held_extents(spec.shape[dim], cuts)


Held = Mapping[int, Sequence[layout.Extent]]


def _common(mine: Held, theirs: Held) -> list[tuple[int, Runs]]:
    """Where in a tensor that holds `mine` of each dimension lies what holds `theirs` too."""
    return [(dim, common(held, theirs[dim])) for dim, held in mine.items()]


def _in_order(parts: Sequence[Part]) -> bool:
    """True if pieces, which are equal, follow each other as they lie in memory."""
    if not parts[0].shape:
        return False
    size = parts[0].shape[0]
    return all(each.cuts == ((0, ((number * size, size),)),) for number, each in enumerate(parts))


def _reduction(step: Step, mesh_shape: Sequence[int]) -> tuple[str, int]:
    """The reduction of the addends, and by what their sum is divided to be an average."""
    ends = step.target if step.kind == "one_addend" else step.source
    found = [(mesh_shape[axis], ends[axis]) for axis in step.axes]
    awaited = [(ranks, each.reduce_op) for ranks, each in found if isinstance(each, Partial)]
    if not awaited or step.kind == "one_addend":
        return (awaited[0][1] if awaited else "", 1)
    if step.kind == "rescale":
        return awaited[0][1], awaited[0][0]
    averaged = [ranks for ranks, reduce_op in awaited if reduce_op == "avg"]
    return ("sum" if averaged else awaited[0][1], math.prod(averaged))
