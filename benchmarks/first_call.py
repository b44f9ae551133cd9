"""Length of the path that the first call of an operator takes through a DTensor package.

Counted is the first `mm` of a fresh process, since later ones find caches filled: function calls in
the package's own files, and the file switches between them, which a reader who follows the call has
to make. Timed is the first call of a new shape in a process that has run other shapes. Run as
`python -m benchmarks.first_call`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.cases import FLAT, SQUARE
from benchmarks.kit import OURS, TORCHS, Kit, fake_ranks, kits, mesh_of
from benchmarks.measure import Contender, first_calls

NUM_SHAPES = 100


@dataclass(frozen=True, slots=True)
class FirstCall:
    """An `mm` of arguments that are sharded by rows, or replicated, along every mesh axis."""

    name: str
    mesh_shape: tuple[int, ...]
    is_sharded: tuple[bool, bool]

    def at(self, kit: Kit, mesh: DeviceMesh, number: int) -> Contender:
        """Return the call at sizes that no other number has."""
        rows, inner, columns = 4 + 4 * (number % 13), 64 + 4 * number, 4 + 4 * (number % 17)
        x = self._argument(kit, mesh, 0, (rows, inner))
        y = self._argument(kit, mesh, 1, (inner, columns))
        return lambda: torch.mm(x, y)

    def _argument(self, kit: Kit, mesh: DeviceMesh, index: int, shape: tuple[int, int]) -> Any:
        api = kit.tensor
        placement = api.Shard(0) if self.is_sharded[index] else api.Replicate()
        return api.distribute_tensor(torch.ones(shape), mesh, [placement] * mesh.ndim)


CALLS = (
    FirstCall("S(0) x S(0), one axis", FLAT, (True, True)),
    FirstCall("S(0) x S(0), two axes", SQUARE, (True, True)),
    FirstCall("S(0) x R, one axis", FLAT, (True, False)),
)


@dataclass(frozen=True, slots=True)
class Route:
    """Function calls in the files of a package, and switches between files."""

    num_calls: int
    num_switches: int


def followed(call: Callable[[], object], folder: Path) -> Route:
    """Run a call and return its path through the files of a folder."""
    files: list[str] = []
    inside = f"{folder}/"

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    switches = sum(one != other for one, other in itertools.pairwise(files))
    return Route(len(files), switches)


def counted(case: FirstCall) -> dict[str, Route]:
    """Return the paths of a case by package; for processes that have run no operator."""
    with fake_ranks():
        mesh = mesh_of(case.mesh_shape)
        return {
            name: followed(case.at(kit, mesh, 1), Path(kit.tensor.__file__).parent)
            for name, kit in kits().items()
        }


def paths() -> dict[str, dict[str, Route]]:
    """Return the paths of all cases, each counted in a process of its own."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.map(counted, CALLS, chunksize=1)
    return {case.name: each for case, each in zip(CALLS, found, strict=True)}


def main() -> None:
    """Print the paths and times of all cases with both packages."""
    torch.set_num_threads(1)
    table = Table(caption=f"times are medians of {NUM_SHAPES} new shapes")
    for heading in ("mm of", "package", "file switches", "calls", "new shape"):
        table.add_column(heading, justify="left" if heading in ("mm of", "package") else "right")
    every = paths()
    with fake_ranks():
        for case in CALLS:
            mesh = mesh_of(case.mesh_shape)
            makers = {name: partial(case.at, kit, mesh) for name, kit in kits().items()}
            figures = first_calls(makers, num_rounds=NUM_SHAPES)
            for name in (OURS, TORCHS):
                path = every[case.name][name]
                counts = str(path.num_switches), str(path.num_calls)
                table.add_row(case.name, name, *counts, f"{figures[name].median * 1e6:.0f} µs")
    Console().print(table)


if __name__ == "__main__":
    main()
