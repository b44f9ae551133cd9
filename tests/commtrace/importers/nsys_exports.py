"""SQLite exports of Nsight Systems, with the tables and columns of its schema reference."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, utcTime TEXT, localTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT NOT NULL, end INT NOT NULL, eventClass INT,
    globalTid INT, correlationId INT, nameId INT NOT NULL, returnValue INT, callchainId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL, deviceId INT,
    contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT NOT NULL,
    shortName INT NOT NULL, gridX INT NOT NULL, gridY INT NOT NULL, gridZ INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INT NOT NULL, end INT NOT NULL,
    deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT,
    syncType INT NOT NULL, eventId INT NOT NULL, eventSyncId INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId INT, contextId INT, streamId INT,
    correlationId INT, globalPid INT, eventId INT NOT NULL, eventSyncId INT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT NOT NULL, rangeId INT,
    category INT, color INT, text TEXT, globalTid INT, endGlobalTid INT, textId INT, domainId INT,
    uint64Value INT, jsonTextId INT, jsonText TEXT, binaryData TEXT);
"""
EPOCH_NS = 1_750_000_000_000_000_000
LAUNCH, GEMM = "cudaLaunchKernel_v7000", "gemm_kernel"
PUSHED = 59


@dataclass(frozen=True)
class Call:
    """A call of NCCL: its range begins at `ts`, in µs, and its kernel runs for `lasts`."""

    function: str = "AllReduce"
    ts: int = 0
    lasts: int = 100
    size: int = 4096
    communicator: int = 0x9C1E


@dataclass(frozen=True)
class Process:
    """A process of a rank, `mpi_rank` -1 if the export states none."""

    pid: int
    device: int
    calls: Sequence[Call]
    mpi_rank: int = -1


def write_export(path: Path, *processes: Process, payload: bool = True) -> Path:
    """Write an export of the calls, each after a kernel that computes for 50 µs."""
    names: dict[str, int] = {}

    def string(text: str) -> int:
        return names.setdefault(text, len(names) + 1)

    with closing(sqlite3.connect(path)) as base, base:
        base.executescript(SCHEMA)
        base.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.17.0')")
        base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", [EPOCH_NS])
        if any(process.mpi_rank >= 0 for process in processes):
            base.execute("CREATE TABLE MPI_RANKS (globalPid INT, rank INT)")
        correlation = 0
        for process in processes:
            global_pid = 1 << 56 | process.pid << 24
            thread = global_pid | process.pid
            if process.mpi_rank >= 0:
                base.execute("INSERT INTO MPI_RANKS VALUES (?, ?)", [global_pid, process.mpi_rank])
            for call in process.calls:
                at = call.ts * 1000
                kernel = f"ncclDevKernel_{call.function}_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
                about = {"NCCL communicator ID": call.communicator,
                         "Message size [bytes]": call.size}  # fmt: skip
                base.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId, "
                    "jsonText) VALUES (?, ?, ?, ?, ?, 1, ?)",
                    [at + 20_000, at + 40_000, PUSHED, thread, string(f"nccl{call.function}"),
                     json.dumps(about) if payload else None],
                )  # fmt: skip
                works = (
                    (GEMM, 5_000, 30_001, 50_000, 7),
                    (kernel, 30_000, 90_003, call.lasts * 1000, 20),
                )
                for name, launch, start, lasts, stream in works:
                    correlation += 1
                    base.execute(
                        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES "
                        "(?, ?, 0, ?, ?, ?, 0, NULL)",
                        [at + launch, at + launch + 4000, thread, correlation, string(LAUNCH)],
                    )
                    base.execute(
                        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES "
                        "(?, ?, ?, 1, ?, ?, ?, ?, ?, 8, 1, 1)",
                        [at + start, at + start + lasts, process.device, stream, correlation,
                         global_pid, string(name), string(name)],
                    )  # fmt: skip
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, t) for t, n in names.items()])
    return path


def add_waits(path: Path, process: Process, *, are_recorded: bool = True) -> None:
    """Let stream 20 wait twice for an event of stream 7, behind each kernel there, then the host.

    The calls begin at 200, 600 and 900 µs. `are_recorded` adds the records of CUPTI.
    """
    global_pid = 1 << 56 | process.pid << 24
    thread, names = global_pid | process.pid, {}
    calls = [
        ("cudaEventRecord_v3020", 200_000, 9001), ("cudaStreamWaitEvent_v3020", 210_000, 9002),
        ("cudaEventRecord_v3020", 600_000, 9003), ("cudaStreamWaitEvent_v3020", 610_000, 9004),
        ("cudaStreamSynchronize_v3020", 900_000, 9005),
        ("cudaDeviceSynchronize_v3020", 950_000, 9006),
    ]  # fmt: skip
    waits = [(9002, 20, 2), (9004, 20, 2), (9005, 20, 3), (9006, (1 << 32) - 1, 4)]
    starts = {correlation: start for _, start, correlation in calls}
    with closing(sqlite3.connect(path)) as base, base:
        for name, start, correlation in calls:
            number = names.setdefault(name, 500 + len(names))
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
                [start, start + 2000, thread, correlation, number],
            )
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, t) for t, n in names.items()])
        if not are_recorded:
            return
        for correlation in (9003, 9001):
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (?, 1, 7, ?, ?, 4, 0)",
                [process.device, correlation, global_pid],
            )
        for correlation, stream, kind in waits:
            start = starts[correlation]
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES "
                "(?, ?, ?, 1, ?, ?, ?, ?, ?, 0)",
                [start + 500, start + 1500, process.device, stream, correlation, global_pid, kind,
                 4 if kind == 2 else 0],
            )  # fmt: skip
