"""What a step costs, in seconds: latency plus wire bytes over bandwidth (the α-β model).

The wire bytes are those of the ring algorithms. Every rank computes the cost of coordinate 0,
which holds the longest pieces, so that all ranks decide alike. How fast a mesh is, and which of
its axes were flattened into one, is its `Topology`; `set_link` says how fast one axis is. Read by
`plan` and, through its plans, by `propagate`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from dtensor_core.redistribute.transitions import Step


@dataclass(frozen=True, slots=True)
class Link:
    """How fast ranks communicate: start-up latency, and bytes per second that one rank sends."""

    latency_s: float
    bytes_per_s: float


DEFAULT_LINKS: dict[str, Link] = {
    "cuda": Link(latency_s=1e-5, bytes_per_s=1e11),
    "cpu": Link(latency_s=1e-4, bytes_per_s=5e9),
}
# Where nothing is known of a device type.
_UNKNOWN = DEFAULT_LINKS["cuda"]

# Per step kind: wire bytes per payload byte for n ranks, the number of latencies paid, and a
# weight that breaks ties: one all-reduce rather than reduce-scatter and all-gather, two
# reduce-scatters rather than one all-reduce.
_RING = {
    "all_reduce": (2, 2, 2.0),
    "all_gather": (1, 1, 1.5),
    "reduce_scatter": (1, 1, 1.0),
    "all_to_all": (1, 1, 1.0),
}
# No step is free, and no local copy: of equal plans the one that does less is taken.
_STEP_SECONDS = 1e-9
_LOCAL_SECONDS_PER_BYTE = 1e-12


@dataclass(frozen=True, eq=False)
class Topology:
    """What plans depend on of a mesh: ranks and link of each axis, and of joined axes.

    Interned: equal means identical. `joined` has axes that one group joins, with its link;
    `num_flattened` tells whether the mesh has been flattened further since.
    """

    shape: tuple[int, ...]
    links: tuple[Link, ...]
    joined: Mapping[tuple[int, ...], Link]
    num_flattened: int = 0

    def link(self, axes: tuple[int, ...]) -> Link:
        """The link along one axis, or along joined axes."""
        return self.links[axes[0]] if len(axes) == 1 else self.joined[axes]


_interned: dict[tuple[object, ...], Topology] = {}
_links: dict[tuple[DeviceMesh, int], Link] = {}


def topology(
    shape: Sequence[int],
    links: Sequence[Link],
    joined: Mapping[tuple[int, ...], Link] | None = None,
    num_flattened: int = 0,
) -> Topology:
    """The one topology of this value."""
    joined = joined or {}
    key = (tuple(shape), tuple(links), tuple(joined.items()), num_flattened)
    made = Topology(key[0], key[1], joined, num_flattened)  # pyright: ignore[reportArgumentType]
    return _interned.setdefault(key, made)


# Forgets a mesh once no spec is left on it.
_known: weakref.WeakKeyDictionary[Identity, Topology] = weakref.WeakKeyDictionary()
on_change(_known.clear)


def topology_of(mesh: DeviceMesh) -> Topology:
    """The topology of a mesh as it is now; the same on every rank, also outside of the mesh."""
    whose = identity(mesh)
    known = _known.get(whose)
    if known is None or known.num_flattened != num_flattened(mesh):
        known = _known[whose] = _topology_now(mesh)
    return known


def _topology_now(mesh: DeviceMesh) -> Topology:
    links = tuple(link_of(mesh, axis) for axis in range(mesh.ndim))
    joined = {
        axes: _links.get((whole, 0)) or _slowest([links[axis] for axis in axes])
        for axes, whole in flattened(mesh).items()
    }
    return topology(mesh_shape(mesh), links, joined, num_flattened(mesh))


def _slowest(links: Sequence[Link]) -> Link:
    """What a group over several axes can count on."""
    latency_s = max(link.latency_s for link in links)
    return Link(latency_s, min(link.bytes_per_s for link in links))


def link_of(mesh: DeviceMesh, axis: int | str) -> Link:
    """How fast a mesh axis is taken to be: as `set_link` said, or what its device type has.

    Raises MeshError for an axis that the mesh does not have.
    """
    number = axis_number(mesh, axis)
    default = DEFAULT_LINKS.get(mesh.device_type, _UNKNOWN)
    return _links.get((mesh, number), default)


def set_link(mesh: DeviceMesh, axis: int | str, *, latency_s: float, bytes_per_s: float) -> None:
    """Say how fast one axis of a mesh is; plans and decisions of it are made anew.

    All ranks of the mesh must call it alike: plans must not differ between ranks, so they compare
    what they were given, by one small all-reduce an axis. A mesh sliced from this one is a mesh
    of its own; a flattened one stands for the group that joins its axes.

    Raises MeshError, on every rank, for an axis that the mesh does not have, for values that
    differ between ranks, and for values that no link has.
    """
    number = axis_number(mesh, axis)
    link = Link(float(latency_s), float(bytes_per_s))
    _check_same_everywhere(mesh, number, link)
    if not (0 <= link.latency_s < math.inf and 0 < link.bytes_per_s < math.inf):
        raise MeshError(
            four_parts(
                asked=f"set_link of axis {axis_name(mesh, number)} of {mesh}",
                found=f"latency_s={latency_s}, bytes_per_s={bytes_per_s}",
                why="a latency is finite and not negative, a bandwidth finite and positive",
                hint="seconds and bytes per second, such as latency_s=2e-5, bytes_per_s=2.5e10",
            )
        )
    _links[mesh, number] = link
    forget_decisions()


def _check_same_everywhere(mesh: DeviceMesh, axis: int, link: Link) -> None:
    """Raise on every rank if any of them was given another link."""
    if mesh.get_coordinate() is None:
        return
    given = (link.latency_s, -link.latency_s, link.bytes_per_s, -link.bytes_per_s)
    numbers = torch.tensor(given, dtype=torch.float64, device=mesh.device_type)
    for other in range(mesh.ndim):
        if mesh.size(other) > 1:
            name = axis_name(mesh, other)
            news = observe.Announcement(
                "set_link", "", "as each rank has it", "the largest", "all_reduce", name, 32
            )
            with observe.announced(news):
                raised = collectives.all_reduce(numbers, "max", channel(mesh, (other,)).name)
                numbers = collectives.wait(raised)
    latency, minus_latency, speed, minus_speed = numbers.tolist()
    if latency != -minus_latency or speed != -minus_speed:
        raise MeshError(
            four_parts(
                asked=f"set_link of axis {axis_name(mesh, axis)} of {mesh}",
                found=f"latency_s from {-minus_latency:g} to {latency:g}, "
                f"bytes_per_s from {-minus_speed:g} to {speed:g}",
                why="ranks that plan differently wait for each other for ever",
                hint="pass the same values on every rank, such as those that rank 0 measured",
            )
        )


def message_seconds(num_bytes: float, link: Link) -> float:
    """The estimated time of a collective that puts so many bytes on a link."""
    return _STEP_SECONDS + link.latency_s + num_bytes / link.bytes_per_s


def step_seconds(step: Step, shape: Sequence[int], itemsize: int, mesh: Topology) -> float:
    """The estimated time of a step on the rank that moves most."""
    if not step.communicates:
        return _STEP_SECONDS + math.prod(shape) * itemsize * _LOCAL_SECONDS_PER_BYTE
    ranks = math.prod(mesh.shape[axis] for axis in step.axes)
    payload = step.payload_bytes(shape, itemsize, mesh.shape, (0,) * len(mesh.shape))
    wire_factor, latencies, weight = _RING[step.kind]
    wire_bytes = payload * wire_factor * (ranks - 1) / ranks
    link = mesh.link(step.axes)
    return _STEP_SECONDS * weight + link.latency_s * latencies + wire_bytes / link.bytes_per_s
