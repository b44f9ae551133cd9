"""Recent steps have all of their calls, and each step is returned once, however ranks write."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.excerpts.time_window import part_in_time
from commtrace.live.recent import RecentSteps
from commtrace.selection import Selection
from commtrace.tracefile.spool_reading import GrowingSpool
from tests.commtrace.live.growing import Run

NUM_STEPS = 60


def run_steps(run: Run, read: RecentSteps, chance: random.Random, source: str) -> list[range]:
    """Steps that are read, from a run of two ranks that write at times of their own."""
    ranks, found = [run.start(rank, 2) for rank in range(2)], []
    for step in range(NUM_STEPS):
        begin = run.time.seconds
        for _ in range(chance.randrange(1, 4)):
            calls = [rank.issue(step=-1 if source else step) for rank in ranks]
            run.pass_(chance.random())
            for rank, call in zip(ranks, calls, strict=True):
                rank.end(call, blocked_s=chance.random() / 10)
        for rank in ranks:
            rank.step(step, begin, run.time.seconds, source)
            if chance.random() < 0.6:
                rank.flush()
        if step % 10 == 9 and (part := read.read()) is not None:
            steps = part.steps["step"]
            found.append(range(int(steps.min()), int(steps.max()) + 1))
            whole = load(run.folder)
            same = part_in_time(whole, Selection(steps=(int(steps.min()), int(steps.max()))))
            for name in ("by_step", "wait_states"):
                expected = CATALOG[name].function(same)
                assert CATALOG[name].function(part).equals(expected), (name, step)
    return found


@pytest.mark.parametrize("source", ["", "optimizer"])
@pytest.mark.parametrize("seed", range(2))
def test_recent_steps_are_those_of_the_whole_run(tmp_path: Path, seed: int, source: str) -> None:
    with Run(tmp_path / "RUN.comm") as run:
        read = run_steps(run, RecentSteps(run.folder), random.Random(seed), source)
    steps = [step for each in read for step in each]
    assert steps == sorted(set(steps))
    assert len(steps) > NUM_STEPS * 3 // 4
    assert steps[:5] == [0, 1, 2, 3, 4]


def test_a_rank_without_steps_is_waited_for(tmp_path: Path) -> None:
    with Run(tmp_path / "RUN.comm") as run:
        recent, ranks = RecentSteps(run.folder), [run.start(rank, 2) for rank in range(2)]
        for rank in ranks:
            call = rank.issue(step=0)
            run.pass_(1)
            rank.end(call)
        ranks[0].step(0, 0, 2)
        ranks[0].flush()
        assert recent.read() is None
        ranks[1].step(0, 0, 2)
        ranks[1].flush()
        part = recent.read()
    assert part is not None
    assert len(part.comm) == 2


def test_an_earlier_run_in_the_folder_is_left_out(tmp_path: Path) -> None:
    with Run(tmp_path / "RUN.comm") as run:
        earlier = run.start(0, 1)
        earlier.step(0, 0, 1)
        earlier.close()
        del run.ranks[0]
        run.pass_(10)
        again = run.start(0, 1, name="rank-00000.1.spool", pid=7)
        recent = RecentSteps(run.folder)
        call = again.issue(step=0)
        run.pass_(1)
        again.end(call)
        again.step(0, 10, 11)
        again.flush()
        part = recent.read()
    assert part is not None
    assert len(part.steps) == 1
    assert part.steps["start_ns"].tolist() == [run.time.ns - 1_000_000_000]


def test_rows_of_earlier_readings_take_no_memory(tmp_path: Path) -> None:
    with Run(tmp_path / "RUN.comm") as run:
        rank, num_rows = run.start(0, 1), []
        spool = GrowingSpool(tmp_path / "RUN.comm" / "rank-00000.spool")
        for _ in range(5):
            for _ in range(10):
                call = rank.issue()
                run.pass_(0.1)
                rank.end(call)
            rank.flush()
            found = spool.read()
            assert found is not None
            num_rows.append(found.num_calls)
            spool.age()
    assert num_rows == [10, 20, 20, 20, 20]
