"""Ranks that keep only the last part of their recording, until they end or are killed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.tracefile import Trace, read_trace
from tests.commtrace.launching.launched import descendants
from tests.launchers.programs import Ended, finish, recorded, run, run_ranks, start

pytestmark = pytest.mark.usefixtures("preloaded")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OWN = [sys.executable, "-m", "commtrace_cli", "run", "-n", "2"]

NUM = 6000
# Shapes that are hard to compress, and pauses in which a recording is written: each 1,500 calls
# are a segment, however fast the machine is.
TALK = """
import random, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
chance = random.Random(7)
for number in range(NUM):
    dist.all_reduce(torch.ones(0, *(chance.randrange(10**6) for _ in range(3))))
    if number % 1500 == 1499:
        time.sleep(0.5)
        print("rank", dist.get_rank(), "has made", number + 1, flush=True)
dist.destroy_process_group()
"""


def require_last(trace: Trace, num_calls: int, most_uncounted: int = 0) -> None:
    """Check that both ranks have their last calls of at least so many, and count the others."""
    comm, ranks = trace.tables["comm"], trace.tables["ranks"]
    assert list(ranks["rank"]) == [0, 1]
    for rank, num_dropped in zip(ranks["rank"], ranks["num_dropped"], strict=True):
        ids = [each for each, of in zip(comm["id"], comm["rank"], strict=True) if of == rank]
        assert num_dropped > 0
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert 0 <= ids[0] - num_dropped <= most_uncounted
        assert ids[-1] + 1 >= num_calls


@pytest.mark.parametrize(
    ("start", "command", "variables", "output"),
    [
        (run, [*OWN, "--ring", "64kB", "-o", "run.json", "train.py"], {}, "run.json"),
        (run, [*OWN, "--ring", "64kB", "-o", "RUN.comm", "train.py"], {}, "RUN.comm"),
        (run_ranks, [*recorded(), "--ring", "64kB", "train.py"], {}, "RUN.comm"),
        (
            run_ranks,
            [sys.executable, "train.py"],
            {"COMMTRACE": "RUN.comm", "COMMTRACE_RING": "64 kB"},
            "RUN.comm",
        ),
    ],
    ids=["run into a file", "run into a folder", "record", "variable"],
)
def test_the_last_calls_are_kept(
    tmp_path: Path,
    start: Callable[..., Ended],
    command: list[str],
    variables: dict[str, str],
    output: str,
) -> None:
    (tmp_path / "train.py").write_text(TALK.replace("NUM", str(NUM)))
    ended = start(command, tmp_path, variables)
    assert ended.code == 0, ended.text
    trace = read_trace(tmp_path / output)
    require_last(trace, NUM)
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    problems = consistency(load(tmp_path / output))
    assert not problems["is_fault"].any()


def test_a_killed_run_has_its_last_calls(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TALK.replace("NUM", "10**9"))
    process = start([*TORCHRUN, "--no-python", *recorded(), "--ring", "64kB", "train.py"], tmp_path)
    assert process.stdout is not None
    num_made = 0
    while num_made < NUM:
        line = process.stdout.readline()
        assert line, "the program has ended"
        num_made = max([num_made, *map(int, re.findall(r"has made (\d+)", line))])
    for pid in (process.pid, *descendants(process.pid)):
        os.kill(pid, signal.SIGKILL)
    finish(process)
    trace = read_trace(tmp_path / "RUN.comm")
    # A rank writes several times a second.
    # The call in flight at the end of a segment that is dropped may be missing in the count.
    require_last(trace, 1000, most_uncounted=1)
    assert trace.run["torn_ranks"] == [0, 1]
    size = sum(path.stat().st_size for path in (tmp_path / "RUN.comm").glob("*.spool"))
    assert size < 2 * 64_000 * 2
