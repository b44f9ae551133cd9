"""Programs that real launchers start, the commands for it, and what must have been recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from commtrace.tracefile import Trace, read_trace
from tests.commtrace.launching.launched import free_ports

ROOT = Path(__file__).parents[2]
DEADLINE_S = 150.0
NUM_CALLS = 3

# Takes its rank from whichever launcher has started it, as programs for several of them do.
TRAIN = f"""
import os, sys
import torch, torch.distributed as dist

def first(*names):
    return next(os.environ[name] for name in names if name in os.environ)

rank = int(first("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
num_ranks = int(first("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"))
meeting = "env://" if "RANK" in os.environ else f"file://{{sys.argv[1]}}"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
for _ in range({NUM_CALLS}):
    dist.all_reduce(torch.ones(8))
print("rank", rank, "has finished", flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    text: str


def environment(**variables: str) -> dict[str, str]:
    """The environment of a launcher: this Python's commands, and the packages under test."""
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    commands = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join(commands),
        "GLOO_SOCKET_IFNAME": "lo",
        **variables,
    }


def start(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command as the leader of a process group of its own."""
    return subprocess.Popen(
        list(map(str, command)), cwd=folder, env=environment(**variables or {}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait until a command ends; kill what it started if that takes too long."""
    try:
        text, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Ended(process.returncode, text)


def run(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to its end."""
    return finish(start(command, folder, variables))


def run_ranks(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None
) -> Ended:
    """Run a command as each of two ranks, as torchrun does, but without its agent.

    The code comes from a rank that failed, or is 0.
    """
    port = str(free_ports(1))
    ranks = [
        start(
            command,
            folder,
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **(variables or {}),
            },
        )
        for rank in range(2)
    ]
    ended = [finish(process) for process in ranks]
    code = next((each.code for each in ended if each.code), 0)
    return Ended(code, "".join(each.text for each in ended))


def recorded(output: str | Path = "RUN.comm") -> list[str]:
    """The words that record a Python program in its own process."""
    return [sys.executable, "-m", "commtrace_cli", "record", "-o", str(output)]


def require_whole(path: Path, num_ranks: int, ended: Ended) -> Trace:
    """Check that a run has every call of TRAIN on each rank."""
    assert ended.code == 0, ended.text
    trace = read_trace(path)
    assert trace.run["world_size"] == num_ranks
    assert trace.run["missing_ranks"] == trace.run["torn_ranks"] == []
    comm = trace.tables["comm"]
    calls = Counter(zip(comm["rank"], comm["kind"], strict=True))
    assert calls == {(rank, "all_reduce"): NUM_CALLS for rank in range(num_ranks)}
    return trace
