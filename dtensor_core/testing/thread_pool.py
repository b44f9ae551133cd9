"""Threads, process groups and meshes for a world size, reused across runs.

A pool seats each of its threads as a rank: the thread has its own c10d world, whose groups are
`ThreadGroup`s that find each other by name. `threads` owns the pools and installs the worlds; no
other module uses them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtensor_core.testing.in_flight import SharedGroup
from dtensor_core.testing.scheduler import Run, Scheduler
from dtensor_core.testing.thread_group import ThreadGroup
from dtensor_core.torch_internals.dispatcher import excluded_keys, included_keys, with_keys
from dtensor_core.torch_internals.groups import World as C10dWorld

T = TypeVar("T")

# For a backend of this name, DeviceMesh keeps the meshes of different threads apart.
BACKEND = "threaded"


class World(threading.local, C10dWorld):
    """c10d's record of process groups, per thread; replaces its global record.

    What c10d keeps in the record itself, each thread has from the base class. What it keeps in
    variables of its module, all threads would share, so this class has attributes of these names.
    """

    default_pg: Any = None
    group_count = 0
    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    pg_to_tag: Any = None
    tags_to_pg: Any = None

    def __init__(self) -> None:
        C10dWorld.__init__(self)
        self.pg_map = {}
        self.pg_names = {}
        self.pg_group_ranks = {}
        self.pg_backend_config = {}
        self.pg_to_tag = {}
        self.tags_to_pg = {}


class Seat(threading.local):
    """The pool and rank of the calling thread; `pool` is None on a thread that is not a rank."""

    pool: ThreadPool | None = None
    rank: int = -1


world = World()
seat = Seat()


class ThreadPool:
    """The ranks for a given world size."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.scheduler = Scheduler(world_size)
        self._store = dist.HashStore()
        self._shared: dict[tuple[str, tuple[int, ...]], SharedGroup] = {}
        self._dropped: set[SharedGroup] = set()
        self._kept: list[set[Any]] = [set() for _ in range(world_size)]
        self._meshes: list[dict[Any, DeviceMesh]] = [{} for _ in range(world_size)]
        self._stale: set[int] = set()
        self._first_number = 1  # of the next run's first group: c10d names groups by number

    def run(self, fn: Callable[..., T], args: tuple[Any, ...], timeout_s: float) -> Run:
        """Call `fn(*args)` as each rank."""

        def as_rank(rank: int) -> T:
            self._take_seat(rank)
            try:
                # Both are the thread's. An earlier run may have left the grad mode off, and an
                # error within a transform of torch.func leaves keys excluded.
                with torch.enable_grad(), with_keys(included_keys(), excluded_keys()):
                    return fn(*args)
            finally:
                self._drop_groups(rank)

        return self.scheduler.run(as_rank, timeout_s)

    def unfinished(self) -> list[tuple[int, str]]:
        """Return the collectives that not all ranks joined: a rank that did, and a description."""
        return [begun for shared in self._shared.values() for begun in shared.unfinished]

    def tidy(self) -> None:
        """Drop the state of the groups that a successful run made."""
        for shared in self._dropped:
            self._shared.pop((shared.name, shared.ranks), None)
        for shared in self._shared.values():
            shared.count_anew()
            if shared.name.isdecimal():
                self._first_number = max(self._first_number, int(shared.name) + 1)
        self._dropped = set()

    def start_afresh(self) -> None:
        """Discard all groups and meshes after a failed run, since their state is unknown."""
        self._store = dist.HashStore()
        self._shared = {}
        self._dropped = set()
        self._stale = set(range(self.world_size))
        self._first_number = 1

    def group(self, name: str, rank: int, ranks: tuple[int, ...]) -> ThreadGroup:
        """Return the calling rank's view of the group that c10d requests."""
        shared = self._shared.get((name, ranks))
        if shared is None:
            shared = self._shared[name, ranks] = SharedGroup(name, ranks)
        return ThreadGroup(rank, ranks[rank], shared, self.scheduler)

    def mesh(
        self, shape: tuple[int, ...], names: tuple[str, ...] | None, device_type: str
    ) -> DeviceMesh:
        """Return the calling rank's mesh of that shape, made at the first call."""
        meshes = self._meshes[seat.rank]
        key = (shape, names, device_type)
        if key not in meshes:
            before = set(world.pg_map)
            meshes[key] = init_device_mesh(device_type, shape, mesh_dim_names=names)
            self._kept[seat.rank] |= set(world.pg_map) - before
        return meshes[key]

    def _take_seat(self, rank: int) -> None:
        seat.pool, seat.rank = self, rank
        if rank in self._stale:
            self._stale.remove(rank)
            if world.default_pg is not None:
                dist.destroy_process_group()
        if world.default_pg is None:
            dist.init_process_group(
                BACKEND, store=self._store, rank=rank, world_size=self.world_size
            )
            self._kept[rank] = {world.default_pg}
            self._meshes[rank] = {}
        # Ranks find a group by its name, which c10d makes from this count; it must be equal on all.
        world.group_count = self._first_number

    def _drop_groups(self, rank: int) -> None:
        """Destroy the groups that this run made, so that the next run names its groups alike."""
        for group in set(world.pg_map) - self._kept[rank]:
            self._dropped.add(group.shared)
            dist.destroy_process_group(group)


def create_group(options: Any, _backend_options: Any) -> ThreadGroup:
    """Make a group of backend `BACKEND`; called by c10d."""
    if seat.pool is None:
        raise RuntimeError("only ranks can create process groups of threads; use run_threads")
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return seat.pool.group(options.group_id, options.group_rank, ranks)
