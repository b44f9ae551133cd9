"""Synthetic Chrome traces in torch.profiler's format for NCCL programs, which need a GPU.

Field names and their peculiarities are taken from torch/csrc/profiler/util.cpp and from Kineto.
Real traces of gloo programs are recorded in `test_recorded_by_torch.py`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.commtrace.importers.kineto.layouts import (
    BASE_NS,
    GROUPS,
    GROUPS_AS_TEXT,
    KERNEL,
    LAYOUTS,
    RUNTIME,
    Layout,
)

US = 1000
PRESENT = replace(LAYOUTS["2026"], base_ns=BASE_NS, groups=GROUPS, categories={})
"""Layout of profiles that state none; their times count from the begin of the program."""


class Profile:
    """The trace of a rank; times are µs since `BASE_NS`."""

    def __init__(
        self,
        rank: int,
        *,
        groups: dict[str, list[int]] | None = None,
        host: str = "node0",
        layout: Layout = PRESENT,
        world: int = 0,
    ) -> None:
        self.rank = rank
        self.groups = groups or {"0": [0, 1]}
        self.events: list[dict[str, Any]] = []
        self.host = host
        self.layout = layout
        self.world = world or 1 + max(max(ranks) for ranks in self.groups.values())
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def span(self, name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        """Add a complete event, as the layout spells it."""
        layout = self.layout
        if "External id" in args and cat in (KERNEL, RUNTIME):
            args = {layout.external_id: args.pop("External id"), **args}
        text = f"stream {tid}" if cat == KERNEL else str(tid)
        self.events.append(
            {
                "ph": "X",
                "cat": layout.categories.get(cat, cat),
                "name": name,
                "pid": 100 + self.rank,
                "tid": text if layout.has_text_threads else tid,
                "ts": self._instant(ts),
                "dur": dur,
                "args": args,
            }
        )

    def _instant(self, ts: float) -> float:
        """Return an instant in µs as the file has it; exact if it has no more than 3 decimals."""
        passed_ns = BASE_NS - self.layout.base_ns + round(ts * US)
        return passed_ns // US if passed_ns % US == 0 else passed_ns / US

    def described(self, name: str, group: str, seq: int | None, **fields: Any) -> dict[str, Any]:
        """Arguments that describe a collective."""
        ranks = self.groups[group]
        args = {
            "Collective name": name,
            "dtype": "BFloat16",
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "Group size": len(ranks),
            "Process Group Name": group,
            "Process Group Description": "mesh_tp" if group != "0" else "default_pg",
            "Process Group Ranks": ranks_text(ranks),
            "Global rank start": ranks[0],
            "Global rank stride": ranks[1] - ranks[0] if len(ranks) > 1 else 1,
            "Rank": ranks.index(self.rank) if self.rank in ranks else 0,
            "Is asynchronized op": False,
        }
        return args | ({"Seq": seq} if seq is not None else {}) | fields

    def call(
        self,
        name: str,
        op: str,
        ts: float,
        *,
        group: str = "0",
        seq: int | None = None,
        kernel: tuple[float, float] | None = None,
        kernel_name: str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
        in_kernel: bool = True,
        **fields: Any,
    ) -> None:
        """Add a collective: its operator, the description, and the kernel `(begin, duration)`."""
        self._ids += 2
        args = self.described(name, group, seq, **fields)
        self.span(op, "cpu_op", ts, 20, **{"External id": self._ids})
        self.span(
            "record_param_comms", "cpu_op", ts + 5, 10, **{"External id": self._ids + 1}, **args
        )
        self.span("record_param_comms", "cpu_op", ts + 16, 1, **{"Collective name": "wait"})
        if kernel:
            copied = args if in_kernel else {}
            external = {"External id": self._ids + 1, "stream": 20}
            self.span(kernel_name, "kernel", *kernel, tid=20, **external, **copied)

    def undescribed(
        self,
        name: str,
        op: str,
        ts: float,
        *,
        shapes: list[list[int]],
        kernel: tuple[float, float],
        kernel_name: str = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
        stream: int = 84,
    ) -> None:
        """Add a collective as traces of 2022 and 2023 have it, without fields of the group.

        Only its launch ties the kernel to it: the kernel's external id is its correlation.
        """
        self._ids += 3
        external = {"External id": self._ids}
        lists = {"Input Dims": [[], [], []], "Input type": ["TensorList", "", "Scalar"]}
        noted = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        self.span(op, "cpu_op", ts, 20, **external, **lists)
        self.span("record_param_comms", "cpu_op", ts + 2, 16, **lists)
        self.span(f"nccl:{name}", "user_annotation", ts + 4, 12, **noted)
        self.launched(kernel_name, ts + 8, kernel, stream=stream)

    def launched(
        self,
        kernel_name: str,
        ts: float,
        *kernels: tuple[float, float],
        stream: int = 84,
        runtime: str = "cudaLaunchKernel",
        cat: str = "cuda_runtime",
        **fields: Any,
    ) -> None:
        """Add a launch on the host, and the kernels `(begin, duration)` that it starts."""
        self._ids += 1
        correlation = 40_000 + self._ids
        self.span(runtime, cat, ts, 2, correlation=correlation)
        for begin, length in kernels:
            ids = {"External id": correlation, "correlation": correlation, "stream": stream}
            self.span(kernel_name, "kernel", begin, length, tid=stream, **{**ids, **fields})

    def document(self, **changed: Any) -> dict[str, Any]:
        """The whole trace."""
        about: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
            "distributedInfo": {
                "backend": "nccl", "rank": self.rank, "world_size": self.world, **self._config(),
            },
            "host_name": self.host if self.layout.has_host else None,
            "baseTimeNanoseconds": self.layout.base_ns or None,
            "traceEvents": self.events,
            "traceName": "/tmp/trace.json",
        }  # fmt: skip
        about |= changed
        return {key: value for key, value in about.items() if value is not None}

    def _config(self) -> dict[str, Any]:
        if not self.layout.has_groups:
            return {}
        config = [
            {
                "pg_name": name,
                "pg_desc": "default_pg",
                "pg_size": len(ranks),
                "ranks": ranks_text(ranks) if self.layout.groups == GROUPS_AS_TEXT else ranks,
            }
            for name, ranks in self.groups.items()
        ]
        return {"pg_count": len(config), "pg_config": config}


def ranks_text(ranks: list[int]) -> str:
    """Ranks as texts have them: the first 30 and the last."""
    if len(ranks) <= 30:
        return str(ranks)
    return f"[{', '.join(map(str, ranks[:30]))}, ..., {ranks[-1]}]"


def write_profiles(folder: Path, profiles: list[Profile], *, zipped: bool = False,
                   **changed: Any) -> Path:  # fmt: skip
    """Write each profile to a file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for profile in profiles:
        text = json.dumps(profile.document(**changed), indent=2)
        path = folder / f"trace_rank{profile.rank}.json"
        if zipped:
            path.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
    return folder


def training(
    num_steps: int = 2, ranks: int = 2, late_us: float = 30, **fields: Any
) -> list[Profile]:
    """Rank 0 is late by `late_us` at every all-reduce; half of it is hidden behind a kernel."""
    profiles = [Profile(rank, groups={"0": list(range(ranks))}, **fields) for rank in range(ranks)]
    for profile in profiles:
        for step in range(num_steps):
            at = 1000.0 * step
            profile.span(f"ProfilerStep#{step + 5}", "user_annotation", at, 1000)
            profile.span("train.py(12): step", "python_function", at + 1, 900)
            profile.span("torch/nn/functional.py(3): f", "python_function", at + 2, 890)
            profile.span("nn.Module: Block_0", "python_function", at + 3, 400)
            profile.span("nn.Module: Linear_1", "python_function", at + 4, 390)
            profile.span("aten::mm", "cpu_op", at + 10, 100)
            begin = at + 200 + (late_us if profile.rank == 0 else 0)
            end = at + 200 + late_us + 100
            profile.call("allreduce", "c10d::allreduce_", at + 20, seq=40 + step,
                         kernel=(begin, end - begin))  # fmt: skip
            profile.span("ampere_gemm", "kernel", end - 50, 80, tid=7)
            profile.span("autograd::engine::evaluate_function: MmBackward0", "cpu_op", at + 500, 90,
                         tid=2)  # fmt: skip
            profile.span("MmBackward0", "cpu_op", at + 501, 80, tid=2)
    return profiles
