"""The executor: runs a plan's steps on a local tensor and announces each step that communicates.

The rank-specific form of a plan (steps, payloads, reasons) is computed once and cached, so a
repeated redistribution costs little more than its collectives. Called by `dispatch` and by
`DTensor.redistribute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from dtensor_core import collectives, observe
from dtensor_core.compiled_agreement import note_layouts
from dtensor_core.mesh import axes_name, forget_decisions, num_flattened
from dtensor_core.redistribute.async_tensor import Arrival, Pending
from dtensor_core.redistribute.cost import step_seconds, topology_of
from dtensor_core.redistribute.plan import Plan, plan_placements
from dtensor_core.redistribute.rank_step import rank_step
from dtensor_core.redistribute.steps import STEPS, Act, RankStep, arrives_finished
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.groups import AsyncCollectiveTensor, is_tracing


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Origin of a redistribution: operator, argument, the candidates considered, and a note."""

    operator: str
    argument: str = ""
    candidates: tuple[tuple[str, float], ...] = ()
    note: str = ""


@lru_cache(maxsize=1024)
def origin_of(operator: str) -> Origin:
    """Return the origin that has only an operator's name; interned by name."""
    # `_legs` caches by the identity of an origin, so a new one per call would never be found again.
    return Origin(operator)


@dataclass(frozen=True, slots=True, eq=False)
class _Leg:
    """A step on this rank; `reason` is set if it communicates, `finish` if work follows."""

    begin: Act
    finish: Act | None
    step: RankStep
    reason: observe.Reason | None


def execute(
    local: torch.Tensor, spec: Spec, plan: Plan, origin: Origin, most: int | None = None
) -> torch.Tensor:
    """Run the steps of a plan, or the first `most` of them, and return the local tensor.

    Args:
        local: The local tensor, laid out as `spec`.
        spec: The layout to start from.
        plan: The steps to run.
        origin: The origin of the redistribution.
        most: The number of steps to run; all by default.

    Raises whatever a listener raises to refuse a communication, before it is issued.
    """
    if not plan.steps:
        return local
    if torch.compiler.is_compiling():
        note_layouts(spec, spec.with_placements(plan.target))
    for leg in _legs(spec, _in_force(plan, spec), origin)[:most]:
        if leg.reason is None:
            local = leg.begin(local, leg.step)
        else:
            with observe.announced(leg.reason):
                local = _arrived(collectives.wait(leg.begin(local, leg.step)), leg)
    return local


def execute_async(local: torch.Tensor, spec: Spec, plan: Plan, origin: Origin) -> torch.Tensor:
    """Run a plan like `execute`, but return without waiting for the last collective.

    The result is an AsyncCollectiveTensor; it is `Pending` if work remains on the arrived data. It
    is a plain tensor if nothing is sent, or while a compiler traces.
    """
    legs: Sequence[_Leg] = _legs(spec, _in_force(plan, spec), origin) if plan.steps else ()
    last = max((number for number, leg in enumerate(legs) if leg.reason is not None), default=None)
    if last is None or is_tracing():
        return execute(local, spec, plan, origin)
    local = execute(local, spec, plan, origin, last)
    leg, end = legs[last], legs[len(legs) - 1]
    assert leg.reason is not None
    # An AsyncCollectiveTensor waits by the functional operator, which knows no other collectives.
    with observe.announced(leg.reason), collectives.functional():
        issued = leg.begin(local, leg.step)
    if leg is end and leg.finish is None:
        return AsyncCollectiveTensor(issued)
    arrival = Arrival(issued, partial(_finish, legs[last:]))
    return Pending(arrival, end.step.after, local)


def _in_force(plan: Plan, spec: Spec) -> Plan:
    """Return the plan, replanned if axes of the mesh have been flattened since."""
    # A mesh of one axis has none to join, so its plans stay valid.
    if plan.num_flattened == num_flattened(spec.mesh) or len(spec.placements) == 1:
        return plan
    forget_decisions()
    return plan_placements(spec, plan.target)


def _arrived(arrived: torch.Tensor, leg: _Leg) -> torch.Tensor:
    return arrived if leg.finish is None else leg.finish(arrived, leg.step)


def _finish(legs: Sequence[_Leg], arrived: torch.Tensor) -> torch.Tensor:
    """Run the steps that remain after the last collective."""
    local = _arrived(arrived, legs[0])
    for leg in legs[1:]:
        local = leg.begin(local, leg.step)
    return local


@lru_cache(maxsize=16384)
def _legs(spec: Spec, plan: Plan, origin: Origin) -> tuple[_Leg, ...]:
    """Return the steps as this rank runs them: none if it is not part of the mesh."""
    if spec.coords is None:
        return ()
    return tuple(_leg(step, spec, plan, origin) for step in plan.steps)


def _leg(step: Step, spec: Spec, plan: Plan, origin: Origin) -> _Leg:
    begin, finish = STEPS[step.kind]
    here = rank_step(step, spec)
    if arrives_finished(step.kind, here):
        finish = None
    return _Leg(begin, finish, here, _reason(step, spec, plan, origin))


def _reason(step: Step, spec: Spec, plan: Plan, origin: Origin) -> observe.Reason | None:
    if not step.communicates:
        return None
    assert spec.coords is not None
    itemsize = step.sent_itemsize(spec.dtype)
    if len(plan.steps) == 1 and itemsize == spec.dtype.itemsize:
        seconds = plan.seconds
    else:
        seconds = step_seconds(step, spec.shape, itemsize, topology_of(spec.mesh))
    return observe.Reason(
        operator=origin.operator,
        argument=origin.argument,
        source=spec.text,
        target=spec.with_placements(plan.target).text,
        step=step.kind,
        axis=axes_name(spec.mesh, step.axes),
        payload_bytes=step.payload_bytes(spec.shape, itemsize, spec.mesh_shape, spec.coords),
        candidates=origin.candidates,
        seconds=seconds,
        note=origin.note,
    )
