"""Layouts that the marker `same_values` runs a test in, and the runs themselves.

A layout is the sizes of mesh axes. Its ranks are processes with a gloo group, started with a
deadline, or ranks of a runner that the marker names; a layout without axes runs in the test's own
process. Each rank records the fingerprints of its tensors to a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from commtrace.analyze.run.frame import Frames, frames_of
from commtrace.errors import LaunchError
from commtrace.launching.launcher import LaunchResult, run_function
from commtrace.launching.pickling import pack
from commtrace.launching.temporary_folders import scratch_folder
from commtrace.process_options import ProcessOptions
from commtrace.pytest_plugin.float64_run import float64
from commtrace.pytest_plugin.parting import launch_error
from commtrace.session import Recording, record
from commtrace.tracefile import read_parts

Runner = Callable[..., Any]
"""A function of a function, a number of ranks, and `timeout_s`, such as `run_threads`."""


@dataclass(frozen=True, slots=True)
class GivenLayout:
    """The layout that a test of the marker `same_values` runs in; the fixture `layout`.

    Attributes:
        sizes: Sizes of the mesh axes by name; empty on a single device.
        mesh: The mesh of these axes; None on a single device.
    """

    sizes: Mapping[str, int]
    mesh: DeviceMesh | None = None
    _recording: Recording | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The sizes as text, or `one device`."""
        return name_of_layout(self.sizes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def recording(self) -> Recording:
        """Recording of the rank: `observe("loss", loss)`, `declare(...)`, and `step()`.

        Raises:
            RuntimeError: The test is not running.
        """
        if self._recording is None:
            raise RuntimeError("a layout has a recording while the test runs in it")
        return self._recording


def name_of_layout(sizes: Mapping[str, int]) -> str:
    """Return the name of a layout.

    >>> name_of_layout({"dp": 2, "tp": 4})
    'dp=2 tp=4'
    """
    return " ".join(f"{axis}={size}" for axis, size in sizes.items()) or "one device"


@dataclass(frozen=True, slots=True)
class LayoutRun:
    """A run of a test in a layout.

    Attributes:
        sizes: Sizes of the mesh axes.
        values: Level of the fingerprints.
        is_exact: The default dtype is float64.
        timeout_s: Deadline of the ranks.
        runner: Runner of the ranks; None for processes.
    """

    sizes: Mapping[str, int]
    values: str
    is_exact: bool
    timeout_s: float
    runner: Runner | None = None

    def record(self, body: Callable[..., Any], arguments: Mapping[str, Any]) -> Frames:
        """Run the test in the layout and return what its ranks recorded.

        Raises:
            LaunchError: A process of a rank failed, or did not end in time.
            UsageError: The test cannot be sent to the ranks' processes.
        """
        world_size = math.prod(self.sizes.values())
        state = torch.get_rng_state()
        with scratch_folder() as folder:
            rank = _RankBody(body, dict(arguments), self, folder, state)
            try:
                if not self.sizes:
                    rank()
                elif self.runner is not None:
                    self.runner(rank, world_size, timeout_s=self.timeout_s)
                else:
                    _run_processes(rank, world_size, self.timeout_s, folder)
            finally:
                torch.set_rng_state(state)
            trace = read_parts(sorted(folder.glob("rank*.json")))
        return frames_of(replace(trace, path=None))


@dataclass(frozen=True, slots=True)
class _RankBody:
    """Function of a rank: calls the test, recorded to a file of the rank."""

    body: Callable[..., Any]
    arguments: dict[str, Any]
    run: LayoutRun
    folder: Path
    state: torch.Tensor

    def __call__(self) -> None:
        # Every layout starts from the same random numbers. The caller restores them.
        torch.set_rng_state(self.state)
        sizes, mesh = self.run.sizes, None
        if sizes:
            mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        exact = float64() if self.run.is_exact else nullcontext()
        with exact, record(values=self.run.values) as recording:
            self.body(**self.arguments, layout=GivenLayout(sizes, mesh, recording))
        number = dist.get_rank() if sizes else 0
        recording.save(self.folder / f"rank{number:05d}.json")


def _run_processes(rank: _RankBody, world_size: int, timeout_s: float, folder: Path) -> None:
    name = getattr(rank.body, "__name__", "the test")
    # The runner is of the caller alone, and need not be picklable.
    parcel = pack(_call, (rank.body, rank.arguments, rank.run, rank.folder, rank.state), {})
    result = run_function(
        parcel,
        name,
        nproc=world_size,
        spool_folder=folder / "spools",
        options=ProcessOptions(detail="collective"),
        timeout_s=timeout_s,
    )
    if not result.ok:
        raise _failure(result, name, timeout_s, folder / "spools")


def _call(*parts: Any) -> None:
    _RankBody(*parts)()


def _failure(result: LaunchResult, name: str, timeout_s: float, spools: Path) -> LaunchError:
    if result.stuck:
        return launch_error(name, result.stuck, timeout_s, spools)
    return LaunchError(
        f"rank {result.failed_rank} failed with exit code {result.exit_code}",
        found=result.traceback.rstrip() or "no traceback",
    )
