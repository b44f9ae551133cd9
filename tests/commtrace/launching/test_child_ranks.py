"""Ranks that scripts start: recorded if they form a single run, refused if they form several.

Where the way of starting them is not the claim, ranks are forked, since they need not load torch.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commtrace.atomic_write import atomic_write
from commtrace.errors import UsageError
from commtrace.launching.child_ranks import notes_of, num_with_group, programs, refusal
from commtrace.launching.launcher import LaunchResult, run_script
from commtrace.tracefile import read_trace
from tests.commtrace.launching.launched import (
    DEADLINE_S,
    descendants,
    free_ports,
    launcher,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("preloaded")

STARTING = """
import multiprocessing, os, subprocess, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def init(rank, num_ranks):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port = os.environ["TEST_PORT"]
    os.environ["TEST_PORT"] = str(int(port) + 1)  # for the next group, here or in a child
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks)

def work(rank, num_ranks):
    init(rank, num_ranks)
    dist.all_reduce(torch.ones(4) + rank)
    dist.destroy_process_group()

class Worker(multiprocessing.get_context("spawn").Process):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank
    def run(self):
        work(self.rank, 2)

def run_all(processes):
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * len(processes)

def processes(context, num_ranks, of=work):
    return [context.Process(target=of, args=(rank, num_ranks)) for rank in range(num_ranks)]

def fork(num_ranks, of=work):
    mp.start_processes(of, (num_ranks,), nprocs=num_ranks, start_method="fork")
"""


@pytest.fixture(autouse=True)
def port_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port for the scripts' own use, and two after it."""
    monkeypatch.setenv("TEST_PORT", str(free_ports(3)))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run the body of a script's `__main__`, after some definitions."""

    def start(body: str, nproc: int = 1, more: str = "") -> LaunchResult:
        script = tmp_path / "starting.py"
        main = textwrap.indent(textwrap.dedent(body), "    ")
        definitions = STARTING + textwrap.dedent(more)
        script.write_text(f'{definitions}\nif __name__ == "__main__":\n{main}\n')
        return run_script(script, [str(tmp_path)], nproc=nproc, spool_folder=tmp_path / "spools")

    return start


def calls(result: LaunchResult) -> Counter[int]:
    """Number of calls that each rank made."""
    assert (result.exit_code, result.traceback) == (0, "")
    trace = read_trace(result.spool_folder)
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    return Counter(trace.tables["comm"]["rank"])


WAYS = {
    "torch's spawn": "mp.spawn(work, (2,), nprocs=2)",
    "fork": 'run_all(processes(multiprocessing.get_context("fork"), 2))',
    "forkserver": 'run_all(processes(multiprocessing.get_context("forkserver"), 2))',
    "spawn, itself one of them": """
        _, other = processes(multiprocessing.get_context("spawn"), 2)
        other.start()
        work(0, 2)
        other.join()
        """,
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_a_script_starts_are_those_of_the_run(way: str, run: Any) -> None:
    result = run(WAYS[way])
    assert calls(result) == {0: 1, 1: 1}
    trace = read_trace(result.spool_folder)
    assert (trace.run["world_size"], trace.run["process_group"]) == (2, "gloo")
    assert Counter(trace.tables["ops"]["rank"]) == {0: 2, 1: 2}  # ones, add


def test_ranks_may_be_launched_and_started_in_equal_parts(run: Any) -> None:
    result = run(
        """
        rank = int(os.environ["RANK"])
        other = multiprocessing.get_context("fork").Process(target=work, args=(2 + rank, 4))
        other.start()
        work(rank, 4)
        other.join()
        """,
        nproc=2,
    )
    assert calls(result) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_process_of_a_class_with_a_run_of_its_own_is_a_rank(run: Any) -> None:
    result = run("other = Worker(1)\nother.start()\nwork(0, 2)\nother.join()")
    assert calls(result) == {0: 1, 1: 1}


def test_a_process_that_loads_torch_by_itself_is_a_rank(run: Any, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        textwrap.dedent(
            """
            def work(rank, num_ranks):
                import sys
                assert "torch" not in sys.modules
                import torch, torch.distributed as dist
                store = f"file://{sys.argv[1]}/store"
                dist.init_process_group("gloo", store, rank=rank, world_size=num_ranks)
                dist.all_reduce(torch.ones(4))
                dist.destroy_process_group()
            """
        )
    )
    script = tmp_path / "starting.py"
    script.write_text(
        "import multiprocessing\nimport late\n"
        'if __name__ == "__main__":\n'
        '    context = multiprocessing.get_context("spawn")\n'
        "    rank = context.Process(target=late.work, args=(0, 1))\n"
        "    rank.start()\n"
        "    rank.join()\n"
    )
    result = run_script(script, [str(tmp_path)], nproc=1, spool_folder=tmp_path / "spools")
    assert calls(result) == {0: 1}


def test_ranks_that_are_started_again_are_the_run_and_those_before_are_kept(run: Any) -> None:
    result = run("fork(3)\nfork(2)")
    assert calls(result) == {0: 1, 1: 1}
    trace = read_trace(result.spool_folder)
    left_out = trace.run["left_out_spools"]
    assert len(left_out) == 3
    assert all((result.spool_folder / name).exists() for name in left_out)


def test_ranks_may_be_started_by_a_process_that_the_script_starts(run: Any) -> None:
    result = run('run_all([multiprocessing.get_context("spawn").Process(target=fork, args=(2,))])')
    assert calls(result) == {0: 1, 1: 1}


def test_what_serves_a_rank_that_a_script_starts_is_left_alone(run: Any) -> None:
    result = run(
        "fork(2, served)",
        more="""
        def served(rank, n):
            init(rank, n)
            run_all([multiprocessing.get_context("spawn").Process(target=work, args=(rank, n))])
            dist.all_reduce(torch.ones(4))
        """,
    )
    assert calls(result) == {0: 1, 1: 1}


def test_ranks_that_make_their_group_again_are_recorded_on(run: Any) -> None:
    result = run(
        "fork(2, twice)",
        more="def twice(rank, n):\n    work(rank, n)\n    work(rank, n)\n",
    )
    assert calls(result) == {0: 2, 1: 2}


@pytest.mark.parametrize(("method", "nproc"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
def test_workers_that_load_data_are_left_alone(method: str, nproc: int, run: Any) -> None:
    """They have no spool, record no operator, and observe none."""
    result = run(
        f"""
        dist.init_process_group("gloo")
        loader = torch.utils.data.DataLoader(
            Numbers(), num_workers=1, multiprocessing_context="{method}"
        )
        total = sum(batch.sum() for batch in loader)
        assert total == 12, total  # no dispatch mode is in force in a worker
        dist.all_reduce(total)
        """,
        nproc=nproc,
        more="""
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                assert _get_current_dispatch_mode() is None
                return torch.full((2,), index)
        """,
    )
    assert calls(result) == dict.fromkeys(range(nproc), 1)
    assert len(list(result.spool_folder.glob("*.spool"))) == nproc
    assert num_with_group(result.spool_folder) == nproc


@pytest.mark.parametrize("start", ["mp.spawn(work, (2,), nprocs=2)", WAYS["fork"]])
def test_ranks_of_each_of_several_processes_are_refused(
    start: str, run: Any, tmp_path: Path
) -> None:
    begin = time.monotonic()
    with pytest.raises(UsageError) as error:
        run(start, nproc=2)
    assert time.monotonic() - begin < DEADLINE_S
    assert str(error.value) == (
        f"cannot run {tmp_path}/starting.py on 2 ranks\n"
        "  found: a process group of processes that the script starts itself\n"
        "  why: each of the 2 processes would start further ranks\n"
        "  try: --nproc 1, which records the ranks that the script starts"
    )


@pytest.mark.parametrize("suffix", ["alone", "rendezvous"])
def test_a_refusal_that_is_still_being_written_is_not_read(suffix: str, tmp_path: Path) -> None:
    notes_of(tmp_path).mkdir()
    with atomic_write(notes_of(tmp_path) / f"7.{suffix}") as unfinished:
        assert refusal(tmp_path, is_over=True) is None
        unfinished.write_text('{"summary": "cannot run it"}', encoding="utf-8")
    assert str(refusal(tmp_path, is_over=True)) == "cannot run it"


def test_a_group_of_processes_that_serve_ranks_is_left_alone(run: Any) -> None:
    """torch creates such a group for checkpoints, with a process per rank."""
    result = run(
        """
        dist.init_process_group("gloo")
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        helper = multiprocessing.get_context("spawn").Process(target=work, args=(rank, num_ranks))
        run_all([helper])
        dist.all_reduce(torch.ones(4))
        """,
        nproc=2,
    )
    assert calls(result) == {0: 1, 1: 1}


def test_a_rank_that_fails_in_a_process_of_its_own_is_reported(run: Any) -> None:
    result = run(
        "fork(2, fail)",
        more="""
        def fail(rank, n):
            init(rank, n)
            if rank == 1:
                raise ValueError("no such data")
            time.sleep(600)  # if it failed too, torch might report its error first
        """,
    )
    assert (result.exit_code, result.failed_rank) == (1, 0)
    assert "ValueError: no such data" in result.traceback
    assert len(read_trace(result.spool_folder).tables["ranks"]["rank"]) == 2


def test_programs_that_a_script_starts_are_noted_and_run(run: Any, tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text(
        "import torch, torch.distributed as dist\n"
        'dist.init_process_group("gloo")\n'
        "dist.all_reduce(torch.ones(4))\n"
        "dist.destroy_process_group()\n"
    )
    result = run(
        f"""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
        port = os.environ["TEST_PORT"]
        subprocess.run([*torchrun, "--master-port", port, {str(inner)!r}], check=True, timeout=90)
        subprocess.run(["true"], check=True)
        """
    )
    assert result.ok, result.traceback
    (noted,) = programs(result.spool_folder)
    assert noted.startswith(f"{sys.executable} -m torch.distributed.run"[:80])
    assert num_with_group(result.spool_folder) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_ranks_of_a_script_end_with_a_killed_launcher(tmp_path: Path) -> None:
    script = tmp_path / "starting.py"
    body = "    mp.start_processes(stay, (sys.argv[1],), 2, start_method=sys.argv[2])\n"
    stay = (
        "def stay(rank, folder):\n"
        "    init(rank, 2)\n"
        '    open(os.path.join(folder, f"ready-{rank}"), "w").close()\n'
        "    if rank == 1:\n"
        "        time.sleep(600)\n"
        "    dist.all_reduce(torch.ones(4))\n"  # waits in C++
    )
    script.write_text(f'{STARTING}\n{stay}\nif __name__ == "__main__":\n{body}')
    args = (str(tmp_path), "fork")
    with launcher(script, *args, nproc=1, spools=tmp_path / "spools") as process:
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, process)
        started = descendants(process.pid)
        assert len(started) >= 3
        process.kill()
        process.wait()
        until = time.monotonic() + 30
        while left := [pid for pid in started if _is_running(pid)]:
            assert time.monotonic() < until, subprocess.run(["ps", "-p", *map(str, left)])
            time.sleep(0.1)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
