"""Cost model of a step in seconds: latency plus wire bytes over bandwidth (the α-β model).

Wire bytes assume ring algorithms. Every rank computes the cost of coordinate 0, which holds
the largest shards, so that all ranks decide alike. A `Topology` holds the link speeds of a mesh and
its flattened axes; `set_link` sets the speed of an axis. Read by `plan` and, through its plans, by
`propagate`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from dtensor_core import collectives, observe
from dtensor_core.errors import MeshError, four_parts
from dtensor_core.mesh import (
    DeviceMesh,
    Identity,
    axis_name,
    axis_number,
    channel,
    flattened,
    forget_decisions,
    identity,
    mesh_shape,
    num_flattened,
    on_change,
)
from dtensor_core.placement import Placement
from dtensor_core.redistribute.transitions import Step, step_between


@dataclass(frozen=True, slots=True)
class Link:
    """Speed of a mesh axis: start-up latency, and bytes per second that a rank sends."""

    latency_s: float
    bytes_per_s: float


DEFAULT_LINKS: dict[str, Link] = {
    "cuda": Link(latency_s=1e-5, bytes_per_s=1e11),
    "cpu": Link(latency_s=1e-4, bytes_per_s=5e9),
}
# For device types that are not in the table.
_UNKNOWN = DEFAULT_LINKS["cuda"]

# Per step kind: wire bytes per payload byte for n ranks, the number of latencies paid, and a
# tie-break weight: it prefers one all-reduce to reduce-scatter plus all-gather, and two
# reduce-scatters to one all-reduce. commtrace/collective_table.py has the same numbers; a
# test compares them, since neither package imports the other.
_RING = {
    "all_reduce": (2, 2, 2.0),
    "all_gather": (1, 1, 1.5),
    "reduce_scatter": (1, 1, 1.0),
    "all_to_all": (1, 1, 1.0),
}
# No step is free, not even a local copy: of equally fast plans, the one with less work wins.
_STEP_SECONDS = 1e-9
_LOCAL_SECONDS_PER_BYTE = 1e-12


@dataclass(frozen=True, eq=False)
class Topology:
    """Properties of a mesh that plans depend on: size and link of each axis, and of joined axes.

    Interned: equal means identical.

    Attributes:
        joined: The link of each tuple of axes that a group joins.
        num_flattened: The number of flattened meshes at the time; a change makes the topology
            stale.
    """

    shape: tuple[int, ...]
    links: tuple[Link, ...]
    joined: Mapping[tuple[int, ...], Link]
    num_flattened: int = 0

    def link(self, axes: tuple[int, ...]) -> Link:
        """Return the link along an axis, or along joined axes."""
        return self.links[axes[0]] if len(axes) == 1 else self.joined[axes]


_interned: dict[tuple[object, ...], Topology] = {}
_links: dict[tuple[DeviceMesh, int], Link] = {}


def topology(
    shape: Sequence[int],
    links: Sequence[Link],
    joined: Mapping[tuple[int, ...], Link] | None = None,
    num_flattened: int = 0,
) -> Topology:
    """Return the interned topology of these values."""
    joined = joined or {}
    key = (tuple(shape), tuple(links), tuple(joined.items()), num_flattened)
    made = Topology(key[0], key[1], joined, num_flattened)  # pyright: ignore[reportArgumentType]
    return _interned.setdefault(key, made)


# An entry is dropped once no spec on its mesh is left.
_known: weakref.WeakKeyDictionary[Identity, Topology] = weakref.WeakKeyDictionary()
on_change(_known.clear)


def topology_of(mesh: DeviceMesh) -> Topology:
    """Return the current topology of a mesh; the same on every rank, also outside of the mesh."""
    whose = identity(mesh)
    known = _known.get(whose)
    if known is None or known.num_flattened != num_flattened(mesh):
        known = _known[whose] = _topology_now(mesh)
    return known


def _topology_now(mesh: DeviceMesh) -> Topology:
    links = tuple(link_of(mesh, axis) for axis in range(mesh.ndim))
    joined = {
        axes: _links.get((full, 0)) or _slowest([links[axis] for axis in axes])
        for axes, full in flattened(mesh).items()
    }
    return topology(mesh_shape(mesh), links, joined, num_flattened(mesh))


def _slowest(links: Sequence[Link]) -> Link:
    """Return the highest latency and the lowest bandwidth of several links."""
    latency_s = max(link.latency_s for link in links)
    return Link(latency_s, min(link.bytes_per_s for link in links))


def link_of(mesh: DeviceMesh, axis: int | str) -> Link:
    """Return the link of a mesh axis: as set by `set_link`, or the default of its device type.

    Args:
        mesh: The mesh.
        axis: The name or the number of the axis.

    Raises:
        MeshError: The mesh does not have this axis.
    """
    number = axis_number(mesh, axis)
    default = DEFAULT_LINKS.get(mesh.device_type, _UNKNOWN)
    return _links.get((mesh, number), default)


def set_link(mesh: DeviceMesh, axis: int | str, *, latency_s: float, bytes_per_s: float) -> None:
    """Set the speed of an axis of a mesh, and discard the plans and decisions made so far.

    All ranks of the mesh must call it with the same values, since plans must not differ between
    ranks. They compare the values by a small all-reduce per axis. A mesh sliced from this mesh is
    separate; a flattened mesh stands for the group that joins its axes.

    Args:
        mesh: The mesh.
        axis: The name or the number of the axis.
        latency_s: The latency of a step of a collective in seconds.
        bytes_per_s: The bandwidth per rank in bytes per second.

    Raises:
        MeshError: On every rank: the mesh does not have this axis, the values differ between ranks,
            or no link can have them.
    """
    number = axis_number(mesh, axis)
    link = Link(float(latency_s), float(bytes_per_s))
    # Compared before they are validated: a rank that raised alone would leave the others waiting.
    _check_same_everywhere(mesh, number, link)
    if not (0 <= link.latency_s < math.inf and 0 < link.bytes_per_s < math.inf):
        raise MeshError(
            four_parts(
                summary=f"set_link of axis {axis_name(mesh, number)} of {mesh}",
                found=f"latency_s={latency_s}, bytes_per_s={bytes_per_s}",
                why="a latency is finite and not negative, a bandwidth finite and positive",
                hint="seconds and bytes per second, such as latency_s=2e-5, bytes_per_s=2.5e10",
            )
        )
    _links[mesh, number] = link
    forget_decisions()


def _check_same_everywhere(mesh: DeviceMesh, axis: int, link: Link) -> None:
    """Raise MeshError on every rank if the values of any two ranks differ."""
    if mesh.get_coordinate() is None:
        return
    # The maximum of a negated value is the minimum, so one all-reduce finds both.
    given = (link.latency_s, -link.latency_s, link.bytes_per_s, -link.bytes_per_s)
    numbers = torch.tensor(given, dtype=torch.float64, device=mesh.device_type)
    for other in range(mesh.ndim):
        if mesh.size(other) > 1:
            name = axis_name(mesh, other)
            reason = observe.Reason(
                "set_link", "", "as each rank has it", "the largest", "all_reduce", name, 32
            )
            with observe.announced(reason):
                raised = collectives.all_reduce(numbers, "max", channel(mesh, (other,)).name)
                numbers = collectives.wait(raised)
    latency, minus_latency, speed, minus_speed = numbers.tolist()
    if latency != -minus_latency or speed != -minus_speed:
        raise MeshError(
            four_parts(
                summary=f"set_link of axis {axis_name(mesh, axis)} of {mesh}",
                found=f"latency_s from {-minus_latency:g} to {latency:g}, "
                f"bytes_per_s from {-minus_speed:g} to {speed:g}",
                why="ranks with different plans deadlock",
                hint="pass the same values on every rank, such as those that rank 0 measured",
            )
        )


def message_seconds(num_bytes: float, link: Link) -> float:
    """Return the estimated time of a collective that puts `num_bytes` on a link."""
    return _STEP_SECONDS + link.latency_s + num_bytes / link.bytes_per_s


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step with the numbers that its time is made of, for sizes of the same class.

    Attributes:
        step: The step.
        fixed_s: The time that no byte takes.
        num_bytes: Bytes on the wire, times the number of ranks, per byte of scale; for a local step
            the tensor's bytes.
        ranks: The number of ranks of the group.
        bytes_per_s: The bandwidth; None for a local step.
    """

    step: Step
    fixed_s: float
    num_bytes: int
    ranks: int = 1
    bytes_per_s: float | None = None

    def seconds(self, scale: int) -> float:
        """Return the estimated time of the step on the rank that sends most."""
        if self.bytes_per_s is None:
            return self.fixed_s + self.num_bytes * scale * _LOCAL_SECONDS_PER_BYTE
        return self.fixed_s + self.num_bytes * scale / self.ranks / self.bytes_per_s


@lru_cache(maxsize=65536)
def priced_step(
    source: tuple[Placement, ...],
    target: tuple[Placement, ...],
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    mesh: Topology,
) -> PricedStep | None:
    """Return the single step between two layouts with its price, or None if there is none.

    This is the table of costs: a step between two layouts is priced once for all shapes that are
    `shape` times a scale.
    """
    step = step_between(source, target, axes, shape, mesh.shape)
    return None if step is None else _priced(step, shape, mesh)


def _priced(step: Step, shape: Sequence[int], mesh: Topology) -> PricedStep:
    if not step.communicates:
        return PricedStep(step, _STEP_SECONDS, math.prod(shape))
    ranks = math.prod([mesh.shape[axis] for axis in step.axes])
    payload = step.payload_bytes(shape, 1, mesh.shape, (0,) * len(mesh.shape))
    wire_factor, latencies, weight = _RING[step.kind]
    link = mesh.link(step.axes)
    fixed_s = _STEP_SECONDS * weight + link.latency_s * latencies
    return PricedStep(step, fixed_s, payload * wire_factor * (ranks - 1), ranks, link.bytes_per_s)


def step_seconds(step: Step, shape: Sequence[int], itemsize: int, mesh: Topology) -> float:
    """Return the estimated time of a step on the rank that sends most."""
    return _priced(step, shape, mesh).seconds(itemsize)
