"""Ranks of a single machine rendezvous where no other machine can reach them, however often."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from commtrace.launching.launcher import run_script
from commtrace.tracefile import read_trace
from tests.commtrace.launching.launched import (
    beyond_loopback,
    descendants,
    free_ports,
    launcher,
    listening,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("preloaded")

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the sockets from /proc")

MEETING = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def meet(rank, folder, way, num_ranks):
    where = {
        "env://": {},
        "tcp://": {"init_method": "tcp://localhost:%d" % (int(os.environ["TEST_PORT"]))},
        "on all": {"store": dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]),
                                          num_ranks, rank == 0) if way == "on all" else None},
    }[way]
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks, **where)
    dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4))
    open(os.path.join(folder, f"ready-{rank}"), "w").close()
    while not os.path.exists(os.path.join(folder, "go on")):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()

if __name__ == "__main__":
    folder, way, start = sys.argv[1:]
    if start == "launcher":
        meet(int(os.environ["RANK"]), folder, way, int(os.environ["WORLD_SIZE"]))
    else:
        mp.start_processes(meet, (folder, way, 2), nprocs=2, start_method=start)
"""


@pytest.fixture(autouse=True)
def port_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port for the scripts' own use, and two after it."""
    monkeypatch.setenv("TEST_PORT", str(free_ports(3)))


def is_met(folder: Path) -> bool:
    return len(list(folder.glob("ready-*"))) == 2


@linux
@pytest.mark.parametrize(
    ("way", "start"),
    [
        ("env://", "launcher"),
        ("tcp://", "launcher"),
        ("env://", "spawn"),
        ("tcp://", "fork"),
        ("env://", "forkserver"),
    ],
)
def test_no_socket_of_a_run_can_be_reached_from_elsewhere(
    way: str, start: str, tmp_path: Path
) -> None:
    script = tmp_path / "meet.py"
    script.write_text(MEETING)
    nproc = 2 if start == "launcher" else 1
    args = (str(tmp_path), way, start)
    with launcher(script, *args, nproc=nproc, spools=tmp_path / "spools") as process:
        wait_until(lambda: is_met(tmp_path), process)
        sockets = listening({process.pid} | descendants(process.pid))
        assert len(sockets) >= 3  # a store, and gloo on two ranks
        assert beyond_loopback(sockets) == set()
        (tmp_path / "go on").touch()
        assert process.communicate(timeout=60) == ("exit code 0\n", "")


LAUNCH = """
import os, sys, time
import commtrace
import torch, torch.distributed as dist

def meet(folder):
    dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4))
    open(os.path.join(folder, f"ready-{dist.get_rank()}"), "w").close()
    while not os.path.exists(os.path.join(folder, "go on")):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(4))

if __name__ == "__main__":
    run = commtrace.launch(meet, int(sys.argv[1]), args=(sys.argv[4],))
    print(len(run.comm), "calls")
"""


@linux
def test_no_socket_of_a_launched_function_can_be_reached_from_elsewhere(tmp_path: Path) -> None:
    nowhere = tmp_path / "spools"
    with launcher(
        tmp_path / "-", str(tmp_path), nproc=2, spools=nowhere, program=LAUNCH
    ) as process:
        wait_until(lambda: is_met(tmp_path), process)
        sockets = listening({process.pid} | descendants(process.pid))
        assert len(sockets) >= 3  # a store, and gloo on two ranks
        assert beyond_loopback(sockets) == set()
        (tmp_path / "go on").touch()
        assert process.communicate(timeout=60)[0] == "4 calls\n"


@linux
def test_a_store_that_the_script_makes_itself_is_left_as_it_is_and_is_seen(tmp_path: Path) -> None:
    """Control experiment: the test above would detect such a socket."""
    script = tmp_path / "meet.py"
    script.write_text(MEETING)
    args = (str(tmp_path), "on all", "launcher")
    with launcher(script, *args, nproc=2, spools=tmp_path / "spools") as process:
        wait_until(lambda: is_met(tmp_path), process)
        sockets = listening({process.pid} | descendants(process.pid))
        assert {address for address, _ in beyond_loopback(sockets)} == {"::"}


@linux
def test_an_interface_that_the_user_has_chosen_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    script = tmp_path / "show.py"
    script.write_text("import os\nprint(os.environ['GLOO_SOCKET_IFNAME'])\n")
    with launcher(script, nproc=1, spools=tmp_path / "spools") as process:
        assert process.communicate(timeout=60)[0] == "mine\nexit code 0\n"


ATTACK = """
import os, signal, sys
from datetime import timedelta
import torch.distributed as dist
value = sys.stdin.buffer.read()
for port in map(int, sys.argv[2:]):
    if os.fork() == 0:
        signal.alarm(5)  # what listens there may not answer
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False,
                              timeout=timedelta(seconds=2))
        store.set(f"torch.rendezvous.commtrace-{sys.argv[1]}", value)
        os.write(1, b"set")
        os._exit(0)
for _ in sys.argv[2:]:
    os.wait()
"""


class Command:
    """A payload that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> object:
        return os.system, (self.command,)


@linux
def test_a_foreign_process_that_guesses_every_key_runs_nothing(tmp_path: Path) -> None:
    """It sets the keys that torch's elastic rendezvous would unpickle, at every port."""
    script = tmp_path / "meet.py"
    script.write_text(MEETING)
    value = base64.b64encode(pickle.dumps(Command(f"touch '{tmp_path}/ran'")))
    args = (str(tmp_path), "env://", "launcher")
    with launcher(script, *args, nproc=2, spools=tmp_path / "spools") as process:
        wait_until(lambda: is_met(tmp_path), process)
        sockets = listening({process.pid} | descendants(process.pid))
        command = [sys.executable, "-W", "ignore", "-c", ATTACK, str(process.pid)]
        ports = sorted({str(port) for _, port in sockets})
        attack = subprocess.run(
            [*command, *ports], input=value, capture_output=True, timeout=120, check=True
        )
        assert attack.stdout == b"set"  # the store accepted it
        (tmp_path / "go on").touch()
        assert process.communicate(timeout=60)[0] == "exit code 0\n"
    assert not (tmp_path / "ran").exists()


AGAIN = """
import os, sys, tempfile, time
import torch, torch.distributed as dist
"""

PROGRAMS = {
    "with rank 0 alone first": """
        if os.environ["RANK"] == "0":
            dist.init_process_group("gloo", rank=0, world_size=1)
            time.sleep(1.0)  # the others look for their group by now
            dist.destroy_process_group()
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(4))
            dist.destroy_process_group()
        """,
    "in a row": """
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(4))
            dist.destroy_process_group()
        """,
    "with rank 0 behind": """
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(4))
            if dist.get_rank() == 0:
                time.sleep(0.5)
            dist.destroy_process_group()
        """,
    "with rank 0 ahead": """
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(4))
            if dist.get_rank() == 1:
                time.sleep(0.5)
            dist.destroy_process_group()
        """,
    "with several groups": """
        for _ in range(3):
            dist.init_process_group("gloo")
            groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2]), dist.new_group([0, 1])]
            for group in groups:
                if dist.get_rank(group) >= 0:
                    dist.all_reduce(torch.ones(4), group=group)
            dist.destroy_process_group()
        """,
    "with the groups kept": """
        kept = []
        for _ in range(3):
            dist.init_process_group("gloo")
            kept.append(dist.new_group([0, 1, 2]))
            dist.all_reduce(torch.ones(4), group=kept[-1])
            dist.destroy_process_group()
        """,
    "by a file": """
        for number in range(3):
            path = f"file://{sys.argv[1]}/store-{number}"
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("gloo", path, rank=rank, world_size=size)
            dist.all_reduce(torch.ones(4))
            dist.destroy_process_group()
        """,
    "at a port of the script's": """
        os.environ["MASTER_ADDR"] = "localhost"
        for number in range(3):
            os.environ["MASTER_PORT"] = str(int(os.environ["TEST_PORT"]) + number)
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(4))
            dist.destroy_process_group()
        """,
}


def test_a_default_group_can_be_destroyed_and_made_again(tmp_path: Path) -> None:
    """All programs on the same ranks; that with rank 0 alone is the first, before any turns."""
    script = tmp_path / "again.py"
    script.write_text(AGAIN + "".join(map(textwrap.dedent, PROGRAMS.values())))
    result = run_script(script, [str(tmp_path)], nproc=3, spool_folder=tmp_path / "spools")
    assert (result.exit_code, result.traceback) == (0, "")
    comm = read_trace(result.spool_folder).tables["comm"]
    # In two of its three groups, of the program with several, and in one of each other program.
    assert list(comm["rank"]).count(0) == 3 * (len(PROGRAMS) + 1)
    assert set(comm["kind"]) == {"all_reduce"}


def test_programs_run_one_after_the_other_meet_afresh(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(AGAIN + textwrap.dedent(PROGRAMS["in a row"]))
    for number in range(2):
        result = run_script(script, nproc=2, spool_folder=tmp_path / f"spools-{number}")
        assert (result.exit_code, result.traceback) == (0, "")
