"""Ranks that torchrun starts: on one node, on two with folders of their own, restarted, killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commtrace.tracefile import read_parts, read_trace
from tests.commtrace.launching.launched import descendants, free_ports
from tests.launchers.programs import (
    NUM_CALLS,
    TRAIN,
    Ended,
    finish,
    recorded,
    require_whole,
    run,
    start,
)

pytestmark = pytest.mark.usefixtures("preloaded")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def agent(node: int, port: int, *options: str, address: str = "127.0.0.1") -> list[str]:
    """The command of one of two agents, each with a single rank."""
    return [
        *TORCHRUN, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1",
        "--master-addr", address, "--master-port", str(port), *options,
    ]  # fmt: skip


@pytest.mark.cold_start
def test_ranks_record_themselves(folder: Path) -> None:
    ended = run(
        [
            *TORCHRUN,
            "--standalone",
            "--nproc-per-node",
            "2",
            "--no-python",
            *recorded(),
            "train.py",
        ],
        folder,
    )
    trace = require_whole(folder / "RUN.comm", 2, ended)
    assert trace.run["launcher"] == "torchrun"
    assert trace.run["command"].endswith("train.py")


@pytest.mark.cold_start
def test_a_variable_records_programs_whose_command_stays(folder: Path) -> None:
    ended = run(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "train.py"],
        folder,
        {"COMMTRACE": "RUN.comm", "COMMTRACE_DETAIL": "collective"},
    )
    trace = require_whole(folder / "RUN.comm", 2, ended)
    assert trace.run["detail"] == "collective"
    # The agent, which has no default group, leaves nothing.
    assert len(list((folder / "RUN.comm").glob("*.spool"))) == 2


def test_two_agents_with_folders_of_their_own_are_merged(folder: Path) -> None:
    port = free_ports(1)
    agents = []
    for node in range(2):
        (folder / f"node{node}").mkdir()
        command = [*agent(node, port), "--no-python", *recorded(), "../train.py"]
        agents.append(start(command, folder / f"node{node}"))
    ended = [finish(process) for process in agents]
    parts = [folder / f"node{node}" / "RUN.comm" for node in range(2)]
    assert [read_trace(part).run["missing_ranks"] for part in parts] == [[1], [0]]
    merge = [sys.executable, "-m", "commtrace_cli", "merge", *reversed(parts), "-o", "run.json"]
    joined = run(merge, folder)
    assert "note" not in joined.text
    require_whole(folder / "run.json", 2, Ended(ended[0].code or ended[1].code, ended[0].text))


def test_run_starts_the_agents_of_several_nodes(folder: Path) -> None:
    port = str(free_ports(1))
    commands = [
        [
            sys.executable, "-m", "commtrace_cli", "run", "--nproc", "1", "--nnodes", "2",
            "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port,
            "-o", "RUN.comm", "train.py",
        ]
        for node in range(2)
    ]  # fmt: skip
    ended = [finish(process) for process in [start(command, folder) for command in commands]]
    require_whole(folder / "RUN.comm", 2, ended[1])


def test_run_with_several_nodes_writes_no_run_file(folder: Path) -> None:
    command = [sys.executable, "-m", "commtrace_cli", "run", "-n", "1", "--nnodes", "2", "train.py"]
    ended = run(command, folder)
    assert ended.code == 2
    assert "each rank adds its part to a folder" in ended.text


def test_run_within_a_rank_says_so(folder: Path) -> None:
    own = [sys.executable, "-m", "commtrace_cli", "run", "-n", "2", "train.py"]
    ended = run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python", *own], folder)
    assert ended.code != 0
    assert re.search("this process is rank [01] of 2, started by torchrun", ended.text)
    assert "try: commtrace record -o RUN.comm train.py" in ended.text
    assert not list(folder.glob("run.json*"))


def test_a_run_file_of_one_node_is_joined_with_the_spools_of_the_other(folder: Path) -> None:
    (folder / "own.py").write_text(
        f"import commtrace\nwith commtrace.record('run.json', merge_timeout_s=1):\n"
        f"    exec({TRAIN!r})\n"
    )
    port = free_ports(1)
    agents = []
    for node in range(2):
        (folder / f"node{node}").mkdir()
        agents.append(start([*agent(node, port), "../own.py"], folder / f"node{node}"))
    ended = [finish(process) for process in agents]
    assert read_trace(folder / "node0" / "run.json").run["missing_ranks"] == [1]
    assert (folder / "node1" / "run.json.spools").is_dir()
    merge = [sys.executable, "-m", "commtrace_cli", "merge", "node1", "node0", "-o", "run.json"]
    assert run(merge, folder).code == 0
    require_whole(folder / "run.json", 2, ended[0])


# Not at the store of the agent, at which gloo's ranks of torch 2.13 find the addresses of the first
# attempt again.
FAIL_ONCE = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import torch.distributed as dist

    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=num_ranks
    )
    dist.barrier()
    # Several times as long as a recording buffers: the agent kills the rank that fails last.
    time.sleep(1.0)
    raise ValueError("at first")
"""


def test_ranks_that_are_restarted_are_added_and_the_latest_attempt_is_read(folder: Path) -> None:
    (folder / "again.py").write_text(FAIL_ONCE + TRAIN)
    ended = run(
        [
            *TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
            "--no-python", *recorded(), "again.py", folder / "meeting",
        ],
        folder,
    )  # fmt: skip
    trace = require_whole(folder / "RUN.comm", 2, ended)
    assert trace.run["attempt"] == 1
    assert trace.run["left_out_spools"] == ["rank-00000.spool", "rank-00001.spool"]
    assert "has an earlier recording of this rank" in ended.text
    first = read_parts([folder / "RUN.comm" / name for name in trace.run["left_out_spools"]])
    assert list(first.tables["comm"]["kind"]) == ["barrier", "barrier"]


WAIT = TRAIN + "\nprint('waits', flush=True)\nimport time; time.sleep(1000)\n"


@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_what_was_recorded_until_a_kill_is_readable(folder: Path, victim: str) -> None:
    (folder / "wait.py").write_text(WAIT)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--no-python"]
    process = start([*command, *recorded(), "wait.py"], folder)
    assert process.stdout is not None
    waiting = 0
    while waiting < 2:
        line = process.stdout.readline()
        assert line, "the agent has ended"
        waiting += line.count("waits")
    time.sleep(1.0)  # several times as long as a recording buffers
    below = descendants(process.pid)
    os.kill(max(below) if victim == "rank" else process.pid, signal.SIGKILL)
    if victim == "agent":
        for pid in below:  # ranks outlive a killed agent
            os.kill(pid, signal.SIGKILL)
    finish(process)
    trace = read_trace(folder / "RUN.comm")
    assert trace.run["missing_ranks"] == []
    assert trace.num_rows("comm") == 2 * NUM_CALLS
    assert list(trace.run["torn_ranks"]) == [0, 1]


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by a pair of virtual interfaces."""
    if not shutil.which("ip"):
        pytest.skip("network namespaces are made by `ip`, of package iproute2")
    names = (f"commtrace-{os.getpid()}-a", f"commtrace-{os.getpid()}-b")
    ends = (f"ct{os.getpid() % 100_000}a", f"ct{os.getpid() % 100_000}b")
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        for number, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", end, "name", "eth-test")
            _ip("-n", name, "link", "set", "eth-test", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


def test_two_agents_in_network_namespaces_of_their_own(
    folder: Path, namespaces: tuple[str, str]
) -> None:
    agents = []
    for node, namespace in enumerate(namespaces):
        (folder / f"node{node}").mkdir()
        command = agent(node, 29_511, address="10.77.0.1")
        within = ["ip", "netns", "exec", namespace, *command, "--no-python", *recorded()]
        variables = {"GLOO_SOCKET_IFNAME": "eth-test", "TP_SOCKET_IFNAME": "eth-test"}
        agents.append(start([*within, "../train.py"], folder / f"node{node}", variables))
    ended = [finish(process) for process in agents]
    merge = [sys.executable, "-m", "commtrace_cli", "merge", "node0", "node1", "-o", "run.json"]
    assert run(merge, folder).code == 0
    require_whole(folder / "run.json", 2, ended[0])
