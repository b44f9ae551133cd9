"""Ranks that are processes: their results, their failures, and complete cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import pytest
import torch.distributed as dist

from dtensor_core.testing import Outcome, RankFailure, on_processes, pool, run_processes
from dtensor_core.testing.reference import Reference, reference_to
from tests.commtrace.launching.launched import beyond_loopback, listening
from tests.dtensor_core.testing import bodies

ROOT = Path(__file__).parents[3]


def fails(body, world_size=3, **options) -> RankFailure:
    """Return the failure of a run that must fail."""
    with pytest.raises(RankFailure) as caught:
        run_processes(body, world_size, **options)
    return caught.value


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().split()[2] != "Z"


def wait_until(condition, timeout_s=20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_results_come_in_rank_order_with_the_arguments_passed_on():
    assert run_processes(bodies.total, 3, 10) == [(0, 30.0), (1, 30.0), (2, 30.0)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the sockets from /proc")
def test_ranks_meet_where_no_other_machine_can_reach_them():
    of_ranks = run_processes(bodies.sockets, 2)
    assert all(of_ranks)  # gloo's
    assert not any(map(beyond_loopback, of_ranks))
    store = pool._pool._store
    assert store is not None
    assert ("127.0.0.1", store.port) in listening({os.getpid()})
    assert ("::", store.port) not in listening({os.getpid()})


def test_arguments_and_results_of_a_modules_own_classes():
    results = run_processes(bodies.echo, 2, bodies.Value(7))
    assert [value for value, _ in results] == [bodies.Value(7)] * 2
    assert len({os.getpid(), *(pid for _, pid in results)}) == 3


def test_processes_serve_one_run_after_the_other():
    two = run_processes(bodies.process_id, 2)
    three = run_processes(bodies.process_id, 3)
    assert three[:2] == two
    assert run_processes(bodies.process_id, 2) == two


def test_a_failing_rank_is_the_cause_and_what_it_printed_is_reported():
    failure = fails(bodies.rank_two_raises)
    assert failure.rank == 2
    cause, *others = failure.reports
    assert (cause.outcome, cause.summary) == (Outcome.FAILED, "KeyError: 'lost'")
    assert cause.output == "here is rank 2\n"
    assert 'raise KeyError("lost")' in cause.detail
    assert {report.rank for report in others} == {0, 1}
    assert all("barrier" in report.detail for report in others)
    text = str(failure)
    assert text.startswith("rank 2 failed: KeyError: 'lost' (world size 3)\n")
    assert text.index("cause: rank 2") < text.index("after that: rank")


def test_after_a_failure_other_processes_serve():
    before = run_processes(bodies.process_id, 2)
    fails(bodies.rank_two_raises)
    assert wait_until(lambda: not any(map(alive, before)))
    assert set(run_processes(bodies.process_id, 2)).isdisjoint(before)


def test_a_rank_that_exits_is_the_cause():
    failure = fails(bodies.rank_one_exits)
    assert str(failure).startswith("rank 1 died: exit code 3 (world size 3)\n")
    assert failure.reports[0].output == "a last word\n"


def test_a_rank_that_crashes_is_the_cause_with_where_it_was():
    failure = fails(bodies.rank_one_crashes)
    assert str(failure).startswith("rank 1 died: killed by SIGSEGV (world size 3)\n")
    assert "in rank_one_crashes" in failure.reports[0].detail


def test_a_rank_that_never_ends_is_found_by_the_deadline():
    start = time.monotonic()
    failure = fails(bodies.rank_one_spins, timeout_s=2.0)
    assert time.monotonic() - start < 15
    assert failure.rank == 1
    assert failure.reports[0].sentence == "rank 1 had not finished: after 2 s"
    assert failure.reports[0].detail.splitlines()[0].endswith("in rank_one_spins")
    assert "in barrier" in failure.reports[1].detail


def test_a_skip_on_a_rank_skips():
    with pytest.raises(unittest.SkipTest, match="not on this machine"):
        run_processes(bodies.rank_one_skips, 2)


def test_what_ranks_print_is_printed(capfd):
    for _ in range(2):
        run_processes(bodies.prints, 2)
        assert capfd.readouterr().out == "".join(
            f"[rank {rank}] {line}\n" for rank in range(2) for line in ("hello", "from below")
        )


def test_each_run_finds_the_state_of_a_fresh_process():
    first = run_processes(bodies.draws, 2)
    assert run_processes(bodies.default_dtype, 2) == ["torch.float32"] * 2
    assert run_processes(bodies.draws, 2) == first


def test_a_run_may_make_its_own_groups():
    assert run_processes(bodies.initialized, 2) == [True, True]
    assert run_processes(bodies.initialized, 2, with_group=False) == [False, False]


def test_dtensors_of_an_equal_mesh_made_later_use_the_later_groups():
    for others_first in (False, True, False):
        assert run_processes(bodies.placed, 4, others_first) == [True] * 4


def test_what_can_not_be_found_by_name_is_refused():
    with pytest.raises(TypeError, match="defined inside of a function; define it at the top"):
        run_processes(lambda: None, 2)


def test_what_can_not_be_sent_back_fails():
    assert "generator" in str(fails(bodies.returns_a_generator, 2))


def test_ranks_have_no_ranks():
    assert "ranks can't have ranks of their own" in str(fails(bodies.nested, 2))
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        run_processes(bodies.process_id, 0)


@on_processes(2)
def test_the_decorator_runs_a_test_on_ranks():
    assert dist.get_world_size() == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_the_decorator_fails_the_test(rank):
    with pytest.raises(RankFailure, match=f"rank {rank} failed: AssertionError"):
        only_on_rank(rank)


@on_processes(2)
def only_on_rank(rank: int):
    assert dist.get_rank() != rank


def test_a_reference_finds_a_module_that_is_on_no_path(tmp_path):
    file = tmp_path / "somewhere.py"
    file.write_text("def f():\n    return 5\n")
    assert Reference("not_on_any_path", "f", str(file)).resolve()() == 5
    del sys.modules["not_on_any_path"]
    assert reference_to(reference_to).resolve() is reference_to


SCRIPT = """
import os, sys, torch.distributed as dist
from dtensor_core.testing import run_processes
from tests.dtensor_core.testing import bodies

class Mine:
    pass

def rank(mine):
    return dist.get_rank() if isinstance(mine, Mine) else None

if __name__ == "__main__":
    if sys.argv[1:] == ["wait"]:
        run_processes(bodies.sleeps, 2)
    assert run_processes(rank, 2, Mine()) == [0, 1]
    print("done")
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PID_FILE": str(tmp_path / "pid")}
    return [sys.executable, str(file)], environment


def test_a_scripts_own_functions_run_on_ranks_and_it_ends_by_itself(script):
    command, environment = script
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr


def test_nothing_outlives_the_process_that_started_it(script, tmp_path):
    command, environment = script
    files = [tmp_path / f"pid{rank}" for rank in range(2)]
    parent = subprocess.Popen([*command, "wait"], env=environment)
    try:
        assert wait_until(lambda: all(f.exists() and f.read_text() for f in files), 60)
        pids = [int(file.read_text()) for file in files]
        assert all(map(alive, pids))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
    assert wait_until(lambda: not any(map(alive, pids)))
