"""Ranks are started, recorded and joined, and failures are reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.errors import UsageError
from commtrace.event import CommEvent
from commtrace.launching.launcher import LaunchResult, has_failed, run_script
from commtrace.tracefile import read_trace

pytestmark = pytest.mark.usefixtures("preloaded")

ROOT = Path(__file__).parents[3]

PREAMBLE = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
"""


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Write a script with the common preamble, and return its path."""

    def write(body: str) -> Path:
        path = tmp_path / "folder of script" / "train.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(PREAMBLE + textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, script: Any) -> Any:
    """Run a body on two ranks."""

    def start(body: str, *args: str, nproc: int = 2) -> LaunchResult:
        return run_script(script(body), args, nproc=nproc, spool_folder=tmp_path / "spools")

    return start


def test_an_ordinary_script_is_recorded_on_every_rank(
    run: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = run(
        """
        print(rank, __name__, sys.argv[1:], os.path.basename(sys.path[0]))
        print(rank, os.environ["OMP_NUM_THREADS"], "COMMTRACE_SPOOLS" in os.environ)
        dist.barrier()
        dist.destroy_process_group()
        """,
        "--lr",
        "0.1",
        nproc=3,
    )
    assert (result.ok, result.exit_code, result.failed_rank, result.traceback) == (
        True,
        0,
        None,
        "",
    )
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(
        line
        for rank in range(3)
        for line in (f"{rank} __main__ ['--lr', '0.1'] folder of script", f"{rank} 1 False")
    )
    assert err == ""
    trace = read_trace(result.spool_folder)
    assert list(trace.tables["ranks"]["rank"]) == [0, 1, 2]
    assert list(trace.tables["comm"]["kind"]) == ["all_reduce", "barrier"] * 3
    assert trace.run["world_size"] == 3
    assert trace.run["command"].endswith("train.py' --lr 0.1")
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    assert set(trace.tables["comm"]["source_file"]) == {
        str(result.spool_folder.parent / "folder of script" / "train.py")
    }
    assert {CommEvent(*row).step for row in trace.rows("comm")} == {-1}
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_rank_that_raises_is_named_with_its_own_traceback_once(
    run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(
        """
        def fail():
            raise ValueError("no such data")
        if rank == 1:
            fail()
        dist.all_reduce(torch.ones(4))  # the other rank is left alone here
        """
    )
    assert (result.ok, result.exit_code, result.failed_rank) == (False, 1, 1)
    lines = result.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('train.py", line 11, in <module>')
    assert lines[-1] == "ValueError: no such data"
    assert "runpy" not in result.traceback
    assert "commtrace" not in result.traceback.replace(str(ROOT), "")
    _, err = capfd.readouterr()
    assert "Traceback" not in err
    kinds = read_trace(result.spool_folder).tables["comm"]
    assert [(rank, kind) for rank, kind in zip(kinds["rank"], kinds["kind"], strict=True)][-1] == (
        1, "all_reduce",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("way", "exit_code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('a message')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("os._exit(5)", 5),
    ],
)
def test_a_rank_that_ends_otherwise_is_named_with_its_exit_code(
    way: str, exit_code: int, run: Any
) -> None:
    result = run(
        f"""
        if rank == 1:
            {way}
        dist.all_reduce(torch.ones(4))
        """
    )
    assert (result.exit_code, result.failed_rank, result.traceback) == (exit_code, 1, "")


def test_a_rank_whose_threads_outlive_its_failure_is_ended(tmp_path: Path) -> None:
    assert not has_failed(tmp_path)
    for rank, age_s in enumerate((5, 16)):
        failure = {"time_ns": time.time_ns() - age_s * 10**9, "rank": rank}
        path = tmp_path / f"rank-0000{rank}.failure.json"
        path.write_text(json.dumps({**failure, "exit_code": 1, "traceback": ""}))
        assert has_failed(tmp_path) == (age_s > 15)


def test_the_trace_of_a_rank_that_died_is_kept(run: Any) -> None:
    result = run(
        """
        time.sleep(1.5)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))
        """
    )
    trace = read_trace(result.spool_folder)
    assert list(trace.tables["ranks"]["rank"]) == [0, 1]
    assert 1 in trace.run["torn_ranks"]
    assert list(trace.tables["comm"]["rank"]).count(1) == 1


def test_what_ranks_called_right_before_one_was_aborted_is_kept(run: Any) -> None:
    result = run("dist.all_reduce(torch.ones(64 if rank == 2 else 4))", nproc=3)
    assert (result.exit_code, result.traceback) == (
        128 + signal.SIGABRT,
        "",
    )  # not a peer that raised
    problems = CATALOG["consistency"].function(load(result.spool_folder))
    expected = problems[["problem", "number", "ranks"]].values.tolist()
    assert expected[0] == ["size", 1, "2"]


def test_a_script_that_does_not_compile_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nif x\n")
    result = run_script(path, nproc=1, spool_folder=tmp_path / "spools")
    assert result.exit_code == 1
    assert 'broken.py", line 2' in result.traceback
    assert result.traceback.rstrip().endswith("SyntaxError: expected ':'")


@pytest.mark.parametrize("nproc", [0, -1])
def test_no_ranks_are_refused(nproc: int, script: Any, tmp_path: Path) -> None:
    path = script("")
    with pytest.raises(UsageError) as error:
        run_script(path, nproc=nproc, spool_folder=tmp_path / "spools")
    assert str(error.value) == (
        f"cannot run {path} on {nproc} ranks\n"
        "  why: a run needs at least one rank\n"
        "  try: --nproc 1 or more"
    )
    assert not (tmp_path / "spools").exists()


@pytest.mark.parametrize(("name", "found"), [("no.py", "no such file"), (".", "a folder")])
def test_a_missing_script_is_refused(name: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"found: {found}"):
        run_script(tmp_path / name, nproc=1, spool_folder=tmp_path / "spools")


LAUNCHER = """
import sys
from commtrace.launching.launcher import run_script
result = run_script(sys.argv[1], nproc=2, spool_folder=sys.argv[2])
print("exit code", result.exit_code)
"""


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGKILL, ""), (signal.SIGTERM, f"exit code {128 + 15}\n")]
)
def test_ranks_and_what_they_have_started_end_with_the_launcher(
    number: signal.Signals, expected: str, script: Any, tmp_path: Path
) -> None:
    path = script(
        f"""
        import subprocess
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        for pid in (os.getpid(), worker.pid):
            open(os.path.join({str(tmp_path)!r}, str(pid) + ".pid"), "w").close()
        time.sleep(600)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(path), str(tmp_path / "spools")],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    pids: list[int] = []
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 4, 60)
        pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
        process.send_signal(number)
        assert process.communicate(timeout=120)[0] == expected
        wait_until(lambda: not any(map(is_running, pids)), 60)
    finally:
        for pid in [process.pid, *pids]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def wait_until(condition: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
