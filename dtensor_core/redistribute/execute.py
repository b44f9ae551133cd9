"""The executor: carries out a plan's steps on a local tensor, announcing each one that sends.

What a plan means for this rank (sites, payloads, announcements) is worked out once and kept, so
that a redistribution seen before costs little more than its collectives. Called by `dispatch` and
by `DTensor.redistribute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor, _are_we_tracing

from dtensor_core import collectives, observe
from dtensor_core.mesh import axes_name, forget_decisions, num_flattened
from dtensor_core.redistribute.async_tensor import Arrival, Pending
from dtensor_core.redistribute.cost import step_seconds, topology_of
from dtensor_core.redistribute.plan import Plan, plan_placements
from dtensor_core.redistribute.rank_step import site_of
from dtensor_core.redistribute.steps import STEPS, Act, Site, arrives_finished
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """Who asks for a redistribution: an operator and its argument, what it chose among, a note."""

    operator: str
    argument: str = ""
    candidates: tuple[tuple[str, float], ...] = ()
    note: str = ""


@lru_cache(maxsize=1024)
def cause_of(operator: str) -> Cause:
    """The cause that has only a name; the same object for the same name."""
    return Cause(operator)


@dataclass(frozen=True, slots=True, eq=False)
class _Leg:
    """One step as this rank runs it: what sends has `news`, and may have to `finish`."""

    begin: Act
    finish: Act | None
    site: Site
    news: observe.Announcement | None


def execute(
    local: torch.Tensor, spec: Spec, plan: Plan, cause: Cause, most: int | None = None
) -> torch.Tensor:
    """The local tensor after all steps of `plan`, or that many at `most`, starting from `spec`.

    Raises what a listener raises to refuse a communication, before it is issued.
    """
    if not plan.steps:
        return local
    for leg in _legs(spec, _in_force(plan, spec), cause)[:most]:
        if leg.news is None:
            local = leg.begin(local, leg.site)
        else:
            with observe.announced(leg.news):
                local = _arrived(collectives.wait(leg.begin(local, leg.site)), leg)
    return local


def execute_async(local: torch.Tensor, spec: Spec, plan: Plan, cause: Cause) -> torch.Tensor:
    """Like `execute`, but nobody waits for the last collective: an AsyncCollectiveTensor.

    It is `Pending` if something is left to do with what arrives. Where nothing is sent the result
    is there at once; so it is while a compiler traces.
    """
    legs: Sequence[_Leg] = _legs(spec, _in_force(plan, spec), cause) if plan.steps else ()
    last = max((number for number, leg in enumerate(legs) if leg.news is not None), default=None)
    if last is None or _are_we_tracing():
        return execute(local, spec, plan, cause)
    local = execute(local, spec, plan, cause, last)
    leg, end = legs[last], legs[len(legs) - 1]
    assert leg.news is not None
    with observe.announced(leg.news), collectives.functional():
        issued = leg.begin(local, leg.site)
    if leg is end and leg.finish is None:
        return AsyncCollectiveTensor(issued)
    arrival = Arrival(issued, partial(_finish, legs[last:]))
    return Pending(arrival, end.site.after, local)


def _in_force(plan: Plan, spec: Spec) -> Plan:
    """The plan, or the one to take now that axes of the mesh have been flattened."""
    if plan.num_flattened == num_flattened(spec.mesh) or len(spec.placements) == 1:
        return plan
    forget_decisions()
    return plan_placements(spec, plan.target)


def _arrived(arrived: torch.Tensor, leg: _Leg) -> torch.Tensor:
    return arrived if leg.finish is None else leg.finish(arrived, leg.site)


def _finish(legs: Sequence[_Leg], arrived: torch.Tensor) -> torch.Tensor:
    """What is left of a journey after its last collective."""
    local = _arrived(arrived, legs[0])
    for leg in legs[1:]:
        local = leg.begin(local, leg.site)
    return local


@lru_cache(maxsize=16384)
def _legs(spec: Spec, plan: Plan, cause: Cause) -> tuple[_Leg, ...]:
    """What this rank does: nothing if it is not part of the mesh."""
    if spec.coords is None:
        return ()
    return tuple(_leg(step, spec, plan, cause) for step in plan.steps)


def _leg(step: Step, spec: Spec, plan: Plan, cause: Cause) -> _Leg:
    begin, finish = STEPS[step.kind]
    site = site_of(step, spec)
    if arrives_finished(step.kind, site):
        finish = None
    return _Leg(begin, finish, site, _news(step, spec, plan, cause))


def _news(step: Step, spec: Spec, plan: Plan, cause: Cause) -> observe.Announcement | None:
    if not step.communicates:
        return None
    assert spec.coords is not None
    itemsize = step.sent_itemsize(spec.dtype)
    return observe.Announcement(
        operator=cause.operator,
        argument=cause.argument,
        source=spec.text,
        target=spec.with_placements(plan.target).text,
        step=step.kind,
        axis=axes_name(spec.mesh, step.axes),
        payload_bytes=step.payload_bytes(spec.shape, itemsize, spec.mesh_shape, spec.coords),
        candidates=cause.candidates,
        seconds=step_seconds(step, spec.shape, itemsize, topology_of(spec.mesh)),
        note=cause.note,
    )
