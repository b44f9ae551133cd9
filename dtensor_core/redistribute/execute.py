"""The executor: carries out a plan's steps on a local tensor, announcing each one that sends.

What a plan means for this rank (sites, payloads, announcements) is worked out once and kept, so
that a redistribution seen before costs little more than its collectives. Called by `dispatch` and
by `DTensor.redistribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from dtensor_core import layout, observe
from dtensor_core.mesh import axis_name
from dtensor_core.placement import sharded_dim
from dtensor_core.redistribute.plan import Plan
from dtensor_core.redistribute.steps import STEPS, Site
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """Who asks for a redistribution: an operator and its argument, and what it chose among."""

    operator: str
    argument: str = ""
    candidates: tuple[tuple[str, float], ...] = ()


@lru_cache(maxsize=1024)
def cause_of(operator: str) -> Cause:
    """The cause that has only a name; the same object for the same name."""
    return Cause(operator)


@dataclass(frozen=True, slots=True)
class _Leg:
    """One step as this rank runs it; `news` is announced if it sends."""

    run: Callable[[torch.Tensor, Site], torch.Tensor]
    site: Site
    news: observe.Announcement | None


def execute(local: torch.Tensor, spec: Spec, plan: Plan, cause: Cause) -> torch.Tensor:
    """The local tensor after all steps of `plan`, starting from `spec`.

    Raises what a listener raises to refuse a communication, before it is issued.
    """
    if not plan.steps:
        return local
    for leg in _legs(spec, plan, cause):
        if leg.news is None:
            local = leg.run(local, leg.site)
        else:
            with observe.announced(leg.news):
                local = leg.run(local, leg.site)
    return local


@lru_cache(maxsize=16384)
def _legs(spec: Spec, plan: Plan, cause: Cause) -> tuple[_Leg, ...]:
    """What this rank does: nothing if it is not part of the mesh, or alone on an axis."""
    coords = spec.coords
    if coords is None:
        return ()
    return tuple(
        _Leg(STEPS[step.kind], _site(step, spec, coords), _news(step, spec, plan, cause, coords))
        for step in plan.steps
        if spec.mesh_shape[step.axis] > 1
    )


def _news(
    step: Step, spec: Spec, plan: Plan, cause: Cause, coords: Sequence[int]
) -> observe.Announcement | None:
    if not step.communicates:
        return None
    return observe.Announcement(
        operator=cause.operator,
        argument=cause.argument,
        source=spec.text,
        target=spec.with_placements(plan.steps[-1].target).text,
        step=step.kind,
        axis=axis_name(spec.mesh, step.axis),
        payload_bytes=step.payload_bytes(spec.shape, spec.dtype.itemsize, spec.mesh_shape, coords),
        candidates=cause.candidates,
    )


def _site(step: Step, spec: Spec, coords: Sequence[int]) -> Site:
    before, after = step.source[step.axis], step.target[step.axis]
    cut = after if sharded_dim(after) is not None else before
    dim = sharded_dim(before if step.kind == "all_to_all" else cut)
    size = 0
    if dim is not None:
        cuts = layout.cuts_of(step.source[: step.axis], spec.mesh_shape, coords, dim)
        size = layout.held_size(spec.shape[dim], cuts)
    ranks = spec.mesh_shape[step.axis]
    return Site(spec.mesh, step.axis, coords[step.axis], ranks, before, after, cut, size)
