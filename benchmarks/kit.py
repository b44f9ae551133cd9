"""The two DTensor packages under their common names, and the fake ranks they run on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtensor_core.testing import fake_world

RANKS = 4
OURS, TORCHS = "dtensor_core", "torch"


@dataclass(frozen=True, slots=True)
class Kit:
    """One DTensor package: its tensor API and its tensor-parallel styles."""

    tensor: Any
    parallel: Any


def kits() -> dict[str, Kit]:
    """Import the DTensor packages to compare, by name."""
    homes = {OURS: "dtensor_core", TORCHS: "torch.distributed.tensor"}
    return {
        name: Kit(importlib.import_module(home), importlib.import_module(f"{home}.parallel"))
        for name, home in homes.items()
    }


@contextmanager
def fake_ranks() -> Iterator[None]:
    """Run the body as rank 0 of `RANKS` in a fake world that sends nothing."""
    with fake_world(RANKS):
        yield


def mesh_of(shape: Sequence[int]) -> DeviceMesh:
    """Create a mesh of all ranks."""
    names = ("tp",) if len(shape) == 1 else ("dp", "tp")
    return init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
