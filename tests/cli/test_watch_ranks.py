"""`commtrace watch` and real ranks: a hang, a killed rank, a mismatch, a straggler, dumps.

Each test starts a program, has a deadline for every wait, and ends what it has started.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from commtrace.live import Observer, Snapshot, Watch
from commtrace.tracefile import read_trace
from tests.cli.conftest import ROOT, Commtrace, start

pytestmark = [pytest.mark.usefixtures("preloaded"), pytest.mark.timeout(240)]

DEADLINE_S = 150.0
_PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, tensor = dist.get_rank(), torch.ones(100)
def steps():
    for step in range(100000):
        yield step
        dist.all_reduce(tensor)
"""

HANG = """
def stuck_in_the_loader():
    time.sleep(1000)
for step in steps():
    if step == 20 and rank == 1:
        stuck_in_the_loader()
"""
KILLED = """
for step in steps():
    time.sleep(0.01)
    if step == 20 and rank == 1:
        # As the kernel kills a process: nothing is written, and the others are not told.
        os.kill(os.getpid(), 9)
"""
MISMATCH = """
for step in steps():
    time.sleep(0.05)
    if step == 20:
        dist.all_reduce(torch.ones(50, dtype=torch.float64 if rank == 1 else torch.int64))
"""
STRAGGLER = """
for step in steps():
    time.sleep(0.3 if rank == 1 else 0.001)
"""


@contextmanager
def recorded(folder: Path, body: str, output: str = "RUN.comm") -> Iterator[Path]:
    """Three ranks of a program that is recorded; they are killed afterwards."""
    spools = folder / output if output.endswith(".comm") else folder / f"{output}.spools"
    script = folder / "train.py"
    script.write_text(_PROGRAM + body)
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "commtrace_cli",
            "run",
            "--nproc",
            "3",
            "-o",
            output,
            "train.py",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    try:
        yield folder / output
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if launcher.poll() is None:
                os.killpg(launcher.pid, number)
                try:
                    launcher.wait(10)
                except subprocess.TimeoutExpired:
                    continue
        for pid in pids_of(spools):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def pids_of(folder: Path) -> list[int]:
    snapshot = Observer(Watch(folder)).refresh(30.0)
    return [each.pid for each in snapshot.ranks if each.life == "running"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def awaited(folder: Path, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that satisfies a condition."""
    observer, deadline = Observer(Watch(folder), hang_s=3.0), time.monotonic() + DEADLINE_S
    while True:
        snapshot = observer.refresh()
        if condition(snapshot):
            return snapshot
        assert time.monotonic() < deadline, snapshot
        time.sleep(0.2)


def watched(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of `commtrace watch`."""
    process = start("watch", folder, *arguments)
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    return process.returncode, out.decode(), err.decode()


def test_a_hang_is_found_and_its_stacks_are_dumped(tmp_path: Path) -> None:
    with recorded(tmp_path, HANG) as folder:
        code, out, _ = watched(folder, "--on-hang", "4s", "--dump", "all")
        assert code == 4
        assert ": Rank 1 " in out
        assert "; others wait at train.py:" in out
        _, _, stacks = out.partition("\nRank 1 at ")
        assert "stuck_in_the_loader" in stacks
        # The others wait in C++, from the line of the all-reduce.
        assert "train.py:8 steps" in out
        assert "in flight for" in out

        # A watcher that is killed leaves the ranks and the recording as they are.
        before = pids_of(folder)
        for _ in range(3):
            watcher = start("watch", folder, "--json")
            assert watcher.stdout is not None
            assert json.loads(watcher.stdout.readline())["world_size"] in (0, 3)
            watcher.kill()
            watcher.communicate()
        assert pids_of(folder) == before
        assert len(before) == 3

        # A signal does the same as a request, without anything but its number.
        snapshot = awaited(folder, lambda each: len(each.ranks) == 3)
        os.kill(snapshot.ranks[1].pid, signal.SIGUSR2)
        dumped = awaited(folder, lambda each: any(not dump.request for dump in each.dumps))
        (dump,) = [each for each in dumped.dumps if not each.request]
        assert dump.rank == 1
        assert dump.threads[0].frames[-1][2] == "stuck_in_the_loader"
        assert read_trace(folder).num_rows("comm") >= 3 * 20 + 2


def test_metrics_of_a_run_that_hangs(tmp_path: Path) -> None:
    with recorded(tmp_path, HANG) as folder:
        watcher = start("watch", folder, "--metrics", "0", stdout=subprocess.DEVNULL)
        try:
            assert watcher.stderr is not None
            said = watcher.stderr.readline()
            if said.startswith(b"waiting for "):
                said = watcher.stderr.readline()
            found, deadline = {}, time.monotonic() + DEADLINE_S
            while ("commtrace_problem_ranks", "waiting", "1") not in found:
                assert time.monotonic() < deadline, found
                time.sleep(0.5)
                found = scraped(said.decode().split()[-1])
            columns = read_trace(folder).tables["comm"]
            calls = zip(
                *(columns[each] for each in ("rank", "wire_bytes", "complete_ns")), strict=True
            )
            sizes = [(rank, size) for rank, size, end in calls if end >= 0]
            for rank in range(3):
                sent = [size for each, size in sizes if each == rank]
                assert len(sent) >= 20
                # The last call of a rank may be written as ended later, together with the next.
                total = found["commtrace_rank_sent_bytes_total", str(rank)]
                assert total in (sum(sent), sum(sent[:-1]))
            total = found["commtrace_calls_total", "default_pg", "all_reduce"]
            assert len(sizes) - 3 <= total <= len(sizes)
            assert found["commtrace_rank_blocked_ratio", "0"] > 0.3
            assert found["commtrace_rank_blocked_ratio", "1"] < 0.2
        finally:
            watcher.kill()
            watcher.communicate()


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """Values of metrics by name and labels, as OpenMetrics."""
    asked = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (each.name, *each.labels.values()): each.value
        for family in families
        for each in family.samples
    }


def test_a_killed_rank_is_dead_and_named_as_missing(tmp_path: Path) -> None:
    with recorded(tmp_path, KILLED) as folder:
        snapshot = awaited(
            folder, lambda each: any(problem.problem == "died" for problem in each.problems)
        )
        (died,) = [each for each in snapshot.problems if each.problem == "died"]
        assert 1 in died.ranks
        assert "the process is gone" in died.text


@pytest.mark.parametrize("output", ["RUN.comm", "run.json"])
def test_a_killed_rank_ends_watching_alike_whatever_the_run_is_recorded_to(
    tmp_path: Path, output: str
) -> None:
    with recorded(tmp_path, KILLED, output) as path:
        code, out, err = watched(path)
    assert code == 1, err
    assert re.search(r"died: Ranks? \d.* (is|are) dead", out)
    assert "3 of 3 ranks running" not in out.splitlines()[-2]


def test_a_run_to_a_file_is_checked_while_it_goes_on_and_after_it_was_killed(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    with recorded(tmp_path, HANG, "run.json") as path:
        spools = path.with_name("run.json.spools")
        awaited(
            spools, lambda each: any(group.missing and group.for_s > 6 for group in each.groups)
        )
        files = sorted(spools.iterdir())
        ended = commtrace("check", path, columns=200)
        assert ended.code == 1
        assert "Rank 1 never arrived at all_reduce 20 of default_pg (group 0)" in ended.out
        assert "note: Ranks 0-2 were still running: this is what they had written" in ended.out
        assert "killed, crashed" not in ended.out
        assert ended.err.startswith(
            f"note: {path} is still being recorded: ranks 0-2 had written this so far\n"
        )
        for command in (["summary"], ["info"], ["dump", "ranks"], ["table", "consistency"]):
            word, *rest = command
            assert "still being recorded" in commtrace(word, path, *rest).err
        assert sorted(spools.iterdir()) == files
        pids = pids_of(spools)
        assert len(pids) == 3
        os.kill(int(parent_of(pids[0])), signal.SIGKILL)
        awaited(spools, lambda each: not any(rank.life == "running" for rank in each.ranks))
        ended = commtrace("check", path, columns=200)
    assert ended.code == 1
    assert "note: Ranks 0-2 did not close the recording" in ended.out
    assert ended.err.startswith(
        f"note: {path} was not merged when its recording ended: the spools in {spools} were read\n"
    )


def test_a_mismatch_is_found_while_the_program_goes_on(tmp_path: Path) -> None:
    with recorded(tmp_path, MISMATCH) as folder:
        code, out, _ = watched(folder, "--on-mismatch")
    assert code == 6
    assert "Rank 1 differs in the element type of its call" in out
    assert "rank 1: float64" in out


def test_a_straggler_is_found(tmp_path: Path) -> None:
    with recorded(tmp_path, STRAGGLER) as folder:
        code, out, _ = watched(folder, "--on-straggler", "30%")
    assert code == 5
    assert "All others waited for rank 1 in" in out


def test_a_slow_rank_of_a_run_that_goes_on_is_not_blamed(
    commtrace: Commtrace, tmp_path: Path
) -> None:
    with recorded(tmp_path, STRAGGLER.replace("0.3", "2.5"), "run.json") as path:
        spools = path.with_name("run.json.spools")
        awaited(spools, lambda each: any(group.missing == (1,) for group in each.groups))
        ended = commtrace("check", path, columns=200)
    assert ended.code == 0, ended.out
    assert "blamed" not in ended.out
