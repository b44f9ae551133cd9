"""Description of each process group, determined once.

The recorder looks up the `Group` of every call. Groups are distinguished by identity, since a
process may have several with the same name: created in succession, or by threads that play
different ranks. They are not kept alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from commtrace.event import GroupRow
from commtrace.schema import FAKE
from commtrace.torch_internals.groups import resolve_group

_Box = torch.ScriptObject
_BACKENDS_IN_CPP = frozenset({FAKE, "gloo", "mpi"})
_MESH_PREFIX = "mesh_"


class Group:
    """A process group as seen by one of its ranks.

    Attributes:
        seq: number of calls of this rank.
        is_in_cpp: its operations on CPU tensors run no Python.
        requests: requests shared by calls of this rank that are alike, by `request.key_of`.
    """

    __slots__ = (
        "group_rank", "is_fake", "is_in_cpp", "process_group", "rank", "ranks", "requests", "row",
        "seq",
    )  # fmt: skip

    def __init__(
        self,
        process_group: weakref.ref[Any],
        row: Any,
        ranks: tuple[int, ...],
        group_rank: int,
        *,
        is_in_cpp: bool,
    ) -> None:
        self.process_group = process_group
        self.row = row
        self.ranks = ranks
        self.group_rank = group_rank
        self.rank = ranks[group_rank]
        self.is_fake = row.backend == FAKE
        self.is_in_cpp = is_in_cpp
        self.requests: dict[Any, Any] = {}
        self.seq = 0

    def global_rank(self, group_rank: int) -> int:
        """Return the global rank of a member; -1 if `group_rank` is not a member."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else -1

    def learn_axis(self, axis: str) -> None:
        """Set the mesh axis that the group belongs to, unless torch has named one."""
        if axis and not self.row.mesh_axis:
            self.row = self.row._replace(mesh_axis=axis)

    def distance(self, group_rank: int) -> int:
        """Return the number of positions by which this rank is behind `group_rank` in the ring."""
        return (self.group_rank - group_rank) % len(self.ranks)


class Groups:
    """All groups that this process communicates in, and the facts about the run they imply.

    Attributes:
        newest: the group that was seen last.
        num_ranks: number of ranks that the members of groups imply.
        world_size: size of the default group; 0 until a call is seen while it exists.
    """

    def __init__(self) -> None:
        self._known: dict[int, Group] = {}
        self.newest: Group | None = None
        self.num_ranks = 1
        self.world_size = 0

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._known.values()))

    def of(self, process_group: Any) -> Group:
        """Return the group of a `ProcessGroup`."""
        known = self._known.get(id(process_group))
        # The identity may have been that of a group that is gone.
        if known is not None and known.process_group() is process_group:
            return known
        key = id(process_group)
        group = _describe(process_group, lambda _: self._known.pop(key, None))
        self._known[key] = group
        self.newest = group
        self.num_ranks = max(self.num_ranks, 1 + max(group.ranks))
        if dist.is_initialized():
            self.world_size = dist.get_world_size()
        return group

    def learn_axes(self) -> None:
        """Name the mesh axes of groups that a DeviceMesh adopted rather than created.

        Such groups do not carry the axis, so the meshes of the process are searched.
        """
        unnamed: dict[str, list[Group]] = {}  # threads that play ranks have one each
        for group in self:
            if not group.row.mesh_axis:
                unnamed.setdefault(group.row.name, []).append(group)
        for mesh in _meshes() if unnamed else ():
            names = getattr(mesh, "_dim_group_names", ())
            axes = mesh.mesh_dim_names or [f"axis{number}" for number in range(len(names))]
            for name, axis in zip(names, axes, strict=False):
                for group in unnamed.get(name, ()):
                    group.learn_axis(axis)


def _meshes() -> list[DeviceMesh]:
    """Return the meshes of the process, newest first where the garbage collector keeps order.

    Some may be leftovers from a time when another group had the same name.
    """
    # An instance refers to its class, so that no registry of meshes is needed.
    found = [each for each in gc.get_referrers(DeviceMesh) if type(each) is DeviceMesh]
    young = [{id(each) for each in gc.get_objects(generation)} for generation in (0, 1)]

    def age(place: int) -> tuple[int, int]:
        mesh = found[place]
        generation = next((number for number, ids in enumerate(young) if id(mesh) in ids), 2)
        return generation, -place

    return [found[place] for place in sorted(range(len(found)), key=age)]


def _describe(process_group: Any, forget: Callable[[Any], object]) -> Group:
    try:
        ranks = tuple(dist.get_process_group_ranks(process_group))
    except (KeyError, ValueError, RuntimeError):  # a group unknown to torch.distributed
        ranks = tuple(range(process_group.size()))
    description = process_group.group_desc
    row = GroupRow(
        name=process_group.group_name,
        description=description,
        ranks=",".join(map(str, ranks)),
        size=len(ranks),
        mesh_axis=_mesh_axis(description),
        backend=_backend(process_group),
    )
    is_in_cpp = type(process_group) is dist.ProcessGroup and row.backend in _BACKENDS_IN_CPP
    reference = weakref.ref(process_group, forget)
    return Group(reference, row, ranks, process_group.rank(), is_in_cpp=is_in_cpp)


def _mesh_axis(description: str) -> str:
    """Return the axis that torch's DeviceMesh writes into the description of its groups."""
    if not description.startswith(_MESH_PREFIX) or description == "mesh_default":
        return ""
    axis = description.removeprefix(_MESH_PREFIX)
    number = axis.removeprefix("dim_")
    return f"axis{number}" if number != axis and number.isdigit() else axis


def _backend(process_group: Any) -> str:
    try:
        return dist.get_backend(process_group)
    except (KeyError, ValueError, RuntimeError):
        return process_group.name()


unbox = dist.ProcessGroup.unbox


def resolve(argument: Any) -> Any:
    """Return the `ProcessGroup` passed to an operator: boxed, by name, or as itself."""
    if isinstance(argument, _Box):
        return unbox(argument)
    if isinstance(argument, str):
        return resolve_group(argument)  # pyright: ignore[reportArgumentType]
    return argument
