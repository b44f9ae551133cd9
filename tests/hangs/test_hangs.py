"""Causes of hangs on real gloo ranks: each is named with its rank, its line and its cause.

Each program makes the ranks part on a line; `check` must find that line, whatever call the ranks
hang in, from the recording, and as far as they show it from the dumps of gloo's flight recorder. A
program has a deadline and kills its ranks itself (see `programs`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.consistency.check import consistency
from commtrace.analyze.divergence import divergences
from commtrace.importers import import_trace
from commtrace.tracefile import read_trace
from tests.hangs.programs import CAUSES
from tests.launchers.programs import environment

pytestmark = [pytest.mark.usefixtures("preloaded"), pytest.mark.timeout(240)]

PROGRAM = Path(__file__).with_name("programs.py")
SOURCE = PROGRAM.read_text().splitlines()
DEADLINE_S = 120.0


def line_of(text: str, nth: int = 0) -> int:
    """Number of the nth line of the programs that has a text."""
    return [number for number, line in enumerate(SOURCE, 1) if text in line][nth]


@dataclass(frozen=True)
class Expected:
    """The rank that does something else; texts of its next line, the others', branch and event."""

    rank: int
    own: str
    others: str
    branch: str = ""
    event: str = ""
    hangs_for_s: float = 2


ALL_REDUCE = "dist.all_reduce("
EXPECTED = {
    "rank_only_if": Expected(
        *(1, "dist.broadcast(norm, 0)  # only here", "dist.all_gather([torch.empty(1)"),
        branch="`if rank == 1 and step == 3:`",
    ),
    "swallowed_exception": Expected(
        *(2, "dist.barrier()  # after a skipped batch", "dist.all_reduce(gradient)  # of a batch"),
        branch="`except ValueError:`",
        event="raised ValueError: the batch is not finite",
    ),
    "recompile_on_one_rank": Expected(
        *(1, "", "dist.all_reduce(output)"),
        event="compiles again since guards had failed (<lambda>: 0/0: tensor 'x' size mismatch",
        hangs_for_s=5,
    ),
    "uneven_loader": Expected(
        *(0, "dist.broadcast(torch.ones(3), 0)", "dist.all_reduce(batch)  # of the loader"),
        branch="`for batch in loader:`",
        event="ran out of data (the data loader had no batch after 4)",
    ),
    "early_stop": Expected(
        *(2, "dist.barrier()  # after the early stop", "dist.all_reduce(torch.ones(8))  # no stop"),
        branch="`break`",
    ),
    "wrong_splits": Expected(1, "", ""),
    "inverted_order": Expected(
        *(1, "group=two)  # first", "group=one)  # first"),
        branch="`if rank == 1 and step == 3:`",
    ),
    "missing_barrier": Expected(
        *(2, "dist.all_reduce(torch.ones(4))  # at the end", "dist.barrier()  # not on rank 2"),
        branch="`if rank != 2:`",
    ),
    "lone_checkpoint": Expected(
        *(0, "dist.all_gather_object(gathered", "dist.all_reduce(torch.ones(4))  # goes on"),
        branch="`if rank == 0 and step == 3:`",
    ),
    "returned_early": Expected(
        *(1, "dist.all_reduce(torch.ones(4))  # after saving", "dist.barrier()  # of those"),
        branch="`if rank == 1:`",
    ),
    "conditional_module": Expected(
        *(1, "dist.all_reduce(x)  # of a layer", "dist.all_reduce(x)  # of a layer"),
        branch="`if with_adapter:`",
    ),
    "skipped_backward": Expected(
        *(1, "dist.barrier()  # after a skipped backward", "loss.backward()"),
        branch="`continue`",
        hangs_for_s=7,
    ),
    "dead_data_worker": Expected(
        *(1, "", "dist.all_reduce(batch)  # of the worker"),
        event="waits for a batch of its data loader",
        hangs_for_s=4,
    ),
    "paused_rank": Expected(
        *(2, "", "dist.all_reduce(torch.ones(8))  # pauses"),
        event="has been in `_ = os.kill(os.getpid(), signal.SIGSTOP), time.sleep(60)`",
        hangs_for_s=8,
    ),
}


def recorded(cause: str, folder: Path, *options: str) -> Frames:
    """The run of a program, which has hung and was killed."""
    path = folder / "run.json"
    command = [sys.executable, "-m", "commtrace_cli", "run", "--nproc", "3", *options]
    subprocess.run(
        [*command, "-o", str(path), str(PROGRAM), cause],
        check=False,
        timeout=DEADLINE_S,
        capture_output=True,
        env=environment(
            HANGS_FOR_S=str(EXPECTED[cause].hangs_for_s),
            OMP_NUM_THREADS="1",
            DUMPS=str(folder),
            TORCH_FR_BUFFER_SIZE="2000",
        ),
    )
    return load(read_trace(path))


def source(text: str) -> str:
    return f"{os.path.relpath(PROGRAM)}:{line_of(text)}" if text else ""


def test_every_program_has_an_answer() -> None:
    assert set(EXPECTED) == {cause.__name__ for cause in CAUSES}


@pytest.mark.parametrize("cause", EXPECTED)
def test_the_rank_the_line_and_the_cause_are_named(cause: str, tmp_path: Path) -> None:
    expected = EXPECTED[cause]
    rows = divergences(recorded(cause, tmp_path, "--detail", "collective")).to_dict("records")
    assert rows
    row: dict[Any, Any] = rows[0]
    assert int(row["ranks"].split(",")[0]) == expected.rank, row["explanation"]
    assert Path(row["own_source"]).name == Path(source(expected.own)).name
    assert Path(row["instead_source"]).name == Path(source(expected.others)).name
    assert expected.branch in row["branch"]
    assert expected.event in row["event"]
    assert bool(row["event"]) == bool(expected.event)
    expect_in_dumps(cause, expected, sorted(tmp_path.glob("rank[0-9]")))


def expect_in_dumps(cause: str, expected: Expected, dumps: list[Path]) -> None:
    """Compare with what the dumps of the flight recorder show by themselves.

    They have branches as far as lines show them, and no events but that a rank made no later call.
    """
    if cause == "wrong_splits":  # an error of gloo, which ends the ranks
        assert dumps == []
        return
    frames = load(import_trace(dumps))
    if cause == "paused_rank":  # which writes no dump
        (problem,) = consistency(frames).to_dict("records")
        assert (problem["problem"], problem["ranks"]) == ("missing rank", "")
        assert f"ank {expected.rank} " in problem["explanation"]
        assert Path(problem["source"]).name == Path(source(expected.others)).name
        return
    row = divergences(frames).to_dict("records")[0]
    assert int(row["ranks"].split(",")[0]) == expected.rank, row["explanation"]
    assert Path(row["own_source"]).name == Path(source(expected.own)).name
    assert Path(row["instead_source"]).name == Path(source(expected.others)).name
    if row["branch"]:
        assert expected.branch in row["branch"]
    assert row["event"] == ("" if expected.own else "has no later call in its dump")
