"""A step as seen from this rank: the parts of its local tensor, their destinations and the group.

Computed once from a step and a spec, and cached by `execute`. This is the only place where the rank
matters: the choice of steps was made before, and by all ranks alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dtensor_core import layout
from dtensor_core.mesh import channel
from dtensor_core.placement import Partial, Placement, reduction
from dtensor_core.redistribute.reduction_values import encoding_of
from dtensor_core.redistribute.shard_overlap import Part, Runs, common, part
from dtensor_core.redistribute.steps import CARRIERS, RankStep
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec

# Step kinds that split the tensor before by rank, and that join the one after by rank.
_SPLITTING = ("slice", "reduce_scatter", "all_to_all")
_JOINING = ("all_gather", "all_to_all")
_REDUCING = ("all_reduce", "reduce_scatter")


def rank_step(step: Step, spec: Spec) -> RankStep:
    """Return a step as this rank runs it; the placements of `spec` are ignored."""
    me = spec.coords
    assert me is not None
    group, places = "", (tuple(me[axis] for axis in step.axes),)
    if step.communicates:
        joined = channel(spec.mesh, step.axes)
        group, places = joined.name, joined.coords
    before, after = (_shape(spec, placements, me) for placements in (step.source, step.target))
    sent: tuple[Part, ...] = ()
    received: tuple[Part, ...] = ()
    if step.kind in _SPLITTING:
        sent = _parts(step, spec, places, before, step.source, step.target)
    if step.kind in _JOINING:
        received = _parts(step, spec, places, after, step.target, step.source)
    parts = received or sent
    pieces = {each.shape for each in parts}
    carrier = CARRIERS.get(spec.dtype)
    width = spec.dtype.itemsize // carrier.itemsize if carrier is not None else 1
    reduce_op, factor = _reduction(step, spec.mesh_shape)
    return RankStep(
        group=group,
        ranks=len(places),
        number=places.index(tuple(me[axis] for axis in step.axes)),
        first=all(me[axis] == 0 for axis in step.axes),
        before=before,
        after=after,
        sent=sent,
        received=received,
        sent_sizes=_sizes(sent, width),
        received_sizes=_sizes(received, width),
        sent_dim=_sliced_dim(sent),
        received_dim=_sliced_dim(received),
        longest=max((math.prod(shape) for shape in pieces), default=0),
        even=len(pieces) == 1,
        reduce_op=reduce_op,
        factor=factor,
        encoding=encoding_of(reduce_op, factor, spec.dtype) if step.kind in _REDUCING else None,
        dtype=spec.dtype,
        carrier=carrier,
    )


def _parts(
    step: Step,
    spec: Spec,
    places: Sequence[tuple[int, ...]],
    shape: tuple[int, ...],
    own_layout: Sequence[Placement],
    other_layout: Sequence[Placement],
) -> tuple[Part, ...]:
    """Return this rank's part of the tensor in `own_layout` that each rank holds in `other_layout`.

    Parts are relative to the local tensor, of local `shape`. Ranks that differ only on axes that
    don't shard a dimension share the same part of it.
    """
    me = spec.coords
    assert me is not None
    # Even shards, the usual case, are located without a comparison of extents for every rank.
    dim = _evenly_sliced_dim(step, spec, shape, own_layout, other_layout)
    if dim is not None:
        size = shape[dim] // spec.mesh_shape[step.axis]
        piece = (*shape[:dim], size, *shape[dim + 1 :])
        return tuple([Part(piece, ((dim, ((place * size, size),)),)) for (place,) in places])
    runs: list[list[tuple[int, Runs]]] = [[] for _ in places]
    for dim in _touched(step):
        mine = _held(spec, own_layout, me, dim)
        sharding = [n for n, axis in enumerate(step.axes) if other_layout[axis].sharded_dim == dim]
        known: dict[tuple[int, ...], Runs] = {}
        for place, found in zip(places, runs, strict=True):
            which = tuple(place[n] for n in sharding)
            if which not in known:
                coords = list(me)
                for axis, coord in zip(step.axes, place, strict=True):
                    coords[axis] = coord
                known[which] = common(mine, _held(spec, other_layout, coords, dim))
            found.append((dim, known[which]))
    return tuple(part(shape, each) for each in runs)


def _sizes(parts: Sequence[Part], width: int) -> list[int]:
    """Return the numbers of elements of parts, each element counted as `width` units."""
    if len({each.shape for each in parts}) == 1:
        return [parts[0].numel * width] * len(parts)
    return [each.numel * width for each in parts]


def _evenly_sliced_dim(
    step: Step,
    spec: Spec,
    shape: tuple[int, ...],
    own_layout: Sequence[Placement],
    other_layout: Sequence[Placement],
) -> int | None:
    """Return the dimension sliced equally over the ranks in order; None unless that is plain."""
    (axis, *more), mesh_shape = step.axes, spec.mesh_shape
    before, after = own_layout[axis].sharded_dim, other_layout[axis].sharded_dim
    later = (*own_layout[axis + 1 :], *other_layout[axis + 1 :])
    inner = {each.sharded_dim for each in later} - {None}
    if more or after is None or after == before or after in inner or before in inner:
        return None
    if shape[after] % mesh_shape[axis] or 0 in shape:
        return None
    return after if all([each.num_blocks == 1 for each in (*own_layout, *other_layout)]) else None


def _shape(spec: Spec, placements: Sequence[Placement], coords: Sequence[int]) -> tuple[int, ...]:
    return layout.local_shape(spec.shape, placements, spec.mesh_shape, coords)


def _touched(step: Step) -> list[int]:
    """Return the dimensions whose sharding the step changes."""
    ends = (step.source, step.target)
    dims = {placements[axis].sharded_dim for placements in ends for axis in step.axes}
    return sorted(dim for dim in dims if dim is not None)


def _held(
    spec: Spec, placements: Sequence[Placement], coords: Sequence[int], dim: int
) -> tuple[layout.Extent, ...]:
    shardings = layout.shardings_of(placements, spec.mesh_shape, coords, dim)
    return layout.held_extents(spec.shape[dim], shardings)


def _sliced_dim(parts: Sequence[Part]) -> int | None:
    """Return the dimension that the parts slice equally and in order; None if there is none."""
    if not parts or len(parts[0].narrowed) != 1 or len(parts[0].narrowed[0][1]) != 1:
        return None
    dim, ((_, size),) = parts[0].narrowed[0]
    for number, each in enumerate(parts):
        if each.narrowed != ((dim, ((number * size, size),)),):
            return None
    return dim


def _reduction(step: Step, mesh_shape: Sequence[int]) -> tuple[str, int]:
    """Return the reduction of partial values, and the divisor that makes a sum an average."""
    ends = step.target if step.kind == "to_partial" else step.source
    found = [(mesh_shape[axis], ends[axis]) for axis in step.axes]
    awaited = [
        (ranks, reduction(each.reduce_op)) for ranks, each in found if isinstance(each, Partial)
    ]
    if not awaited or step.kind == "to_partial":
        return (awaited[0][1] if awaited else "", 1)
    if step.kind == "rescale":
        return awaited[0][1], awaited[0][0]
    # Sums and averages over joined axes are sent as one sum; only averaged axes divide it.
    averaged = [ranks for ranks, reduce_op in awaited if reduce_op == "avg"]
    return ("sum" if averaged else awaited[0][1], math.prod(averaged))
