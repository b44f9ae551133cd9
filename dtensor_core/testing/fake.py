"""A world of any size in which this process is one rank and nothing is sent.

For tests of decisions only: layouts, plans, costs and counts on meshes of hundreds of ranks.
Collectives return at once; their results have the right shapes and arbitrary contents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def fake_world(world_size: int, *, rank: int = 0) -> Iterator[None]:
    """Act as `rank` of `world_size` ranks while the body runs.

    Args:
        world_size: The number of ranks of the fake process group.
        rank: The rank that this process acts as.

    Raises:
        RuntimeError: A process group is initialized already.
        ValueError: The rank is outside of the world.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "fake_world needs a process without a process group, and this process has a group of "
            f"{dist.get_world_size()} ranks ({dist.get_backend()}); destroy it first"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks")
    # torch registers the "fake" backend when this module is imported.
    from dtensor_core.torch_internals.fake_store import FakeStore

    # init_process_group replaces it.
    excepthook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        sys.excepthook = excepthook
        if dist.is_initialized():
            dist.destroy_process_group()
