"""What a step costs, in seconds: latency plus wire bytes over bandwidth (the α-β model).

The wire bytes are those of the ring algorithms. Every rank computes the cost of coordinate 0,
which holds the longest pieces, so that all ranks decide alike. Read by `plan` and `propagate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtensor_core.mesh import DeviceMesh
from dtensor_core.redistribute.transitions import Step


@dataclass(frozen=True, slots=True)
class Link:
    """How fast one mesh axis communicates: start-up latency and bytes per second."""

    latency_s: float
    bytes_per_s: float


DEFAULT_LINKS: dict[str, Link] = {
    "cuda": Link(latency_s=1e-5, bytes_per_s=1e11),
    "cpu": Link(latency_s=1e-4, bytes_per_s=5e9),
}

# Wire bytes per payload byte for n ranks, and the number of latencies paid, per step kind.
_RING = {
    "all_reduce": (2, 2),
    "all_gather": (1, 1),
    "reduce_scatter": (1, 1),
    "all_to_all": (1, 1),
}
# A local copy is not free: it breaks ties towards plans that do less.
_LOCAL_SECONDS_PER_BYTE = 1e-12
_LOCAL_SECONDS = 1e-9


def link_of(mesh: DeviceMesh) -> Link:
    """The default link of a mesh's device type."""
    return DEFAULT_LINKS.get(mesh.device_type, DEFAULT_LINKS["cuda"])


def step_seconds(
    step: Step, shape: Sequence[int], itemsize: int, mesh_shape: Sequence[int], link: Link
) -> float:
    """The estimated time of a step on the rank that moves most."""
    ranks = mesh_shape[step.axis]
    if not step.communicates:
        elements = 1
        for size in shape:
            elements *= size
        return _LOCAL_SECONDS + elements * itemsize * _LOCAL_SECONDS_PER_BYTE
    payload = step.payload_bytes(shape, itemsize, mesh_shape, (0,) * len(mesh_shape))
    wire_factor, latencies = _RING[step.kind]
    wire_bytes = payload * wire_factor * (ranks - 1) / ranks
    return link.latency_s * latencies + wire_bytes / link.bytes_per_s
