"""Ranks that Slurm starts: a cluster of this machine alone, where its packages are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commtrace.tracefile import read_trace
from tests.commtrace.launching.launched import free_ports
from tests.launchers.programs import TRAIN, recorded, require_whole, run

pytestmark = pytest.mark.usefixtures("preloaded")

PROGRAMS = ("srun", "sbatch", "slurmctld", "slurmd", "munged", "mungekey")
START_S = 30.0

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdPort={next_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with which Slurm's commands find a cluster of a single node."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        pytest.skip(f"there is no {missing[0]}; Debian's packages slurm-wlm and munge have it")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start the processes of users, and so need root")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    configuration = folder / "slurm.conf"
    port = free_ports(2)
    names = {"host": socket.gethostname(), "port": port, "next_port": port + 1, "folder": folder}
    configuration.write_text(CONFIGURATION.format(**names))
    variables = {"SLURM_CONF": str(configuration)}
    try:
        daemons = _start(folder, variables)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"munge makes no key on this machine: {error.stderr}")
    try:
        _wait_for_node(variables, folder)
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.kill()
            daemon.communicate()


def _start(folder: Path, variables: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    key = folder / "munge.key"
    subprocess.run(["mungekey", "-c", "-k", key], check=True, timeout=20, capture_output=True)
    munged = [
        "munged", "--foreground", "--force", "--key-file", key, "--socket",
        folder / "munge.socket", "--pid-file", folder / "munge.pid", "--log-file",
        folder / "munge.log", "--seed-file", folder / "munge.seed",
    ]  # fmt: skip
    daemons = []
    for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
        daemons.append(
            subprocess.Popen(
                list(map(str, command)), env=os.environ | variables,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        time.sleep(0.5)
    return daemons


def _wait_for_node(variables: dict[str, str], folder: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        state = subprocess.run(
            ["sinfo", "--noheader", "--format", "%T"], env=os.environ | variables,
            capture_output=True, text=True, timeout=60,
        ).stdout.strip()  # fmt: skip
        if state in ("idle", "mixed"):
            return
        time.sleep(0.3)
    logs = [log.read_text()[-500:] for log in sorted(folder.glob("*.log")) if log.exists()]
    pytest.skip(f"Slurm does not start on this machine: {' '.join(logs)[-500:]}")


def test_tasks_of_a_step_record_themselves(tmp_path: Path, slurm: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["srun", "--ntasks", "2", "--overcommit", *recorded(), "train.py"]
    ended = run([*command, tmp_path / "meeting"], tmp_path, slurm)
    trace = require_whole(tmp_path / "RUN.comm", 2, ended)
    assert trace.run["launcher"] == "Slurm"
    assert trace.run["run_id"].endswith(".0")


def test_a_batch_script_is_no_rank(tmp_path: Path, slurm: dict[str, str]) -> None:
    (tmp_path / "one.py").write_text("import torch\n(torch.ones(2) + 1).sum()\n")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{' '.join(recorded())} one.py\n")
    run(["sbatch", "--wait", "--ntasks", "2", "job.sh"], tmp_path, slurm)
    trace = read_trace(tmp_path / "RUN.comm")
    assert (trace.run["world_size"], trace.run["missing_ranks"]) == (1, [])
    assert "launcher" not in trace.run
