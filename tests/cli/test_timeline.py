"""`commtrace timeline`: each option, in the terminal and as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace.figures.timeline import MAX_MARKS
from commtrace.tracefile import write_trace
from commtrace_cli.timeline import EXAMPLE
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.training import training_trace


@pytest.fixture
def late_json(tmp_path: Path) -> Path:
    """A trace of 4 ranks and 3 steps in which the others wait for rank 2."""
    path = tmp_path / "late.json"
    write_trace(training_trace(), path)
    return path


def rank_rows(text: str) -> dict[str, str]:
    return {line[:6]: line[8:] for line in text.splitlines() if line.startswith("rank ")}


def test_it_draws_a_row_per_rank_in_the_terminal(commtrace: Commtrace, late_json: Path) -> None:
    ended = commtrace("timeline", late_json, columns=100)
    assert ended.code == 0
    rows = rank_rows(ended.out)
    assert list(rows) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "r" in rows["rank 0"]
    assert "r" not in rows["rank 2"]
    assert all(len(line) <= 100 for line in ended.out.splitlines())
    assert " R  all_reduce" in ended.out
    assert "phase of the first rank: f forward, b backward" in ended.out
    assert "Straggler: ranks wait longest for rank 2, " in ended.out
    assert ended.err.endswith(f"next  commtrace timeline {late_json} -o timeline.html\n")


def test_chosen_ranks_and_rows(commtrace: Commtrace, late_json: Path) -> None:
    chosen = commtrace("timeline", late_json, "--ranks", "1-2,3")
    assert list(rank_rows(chosen.out)) == ["rank 1", "rank 2", "rank 3"]
    few = commtrace("timeline", late_json, "--rows", "2")
    assert list(rank_rows(few.out)) == ["rank 0", "rank 1"]
    assert "2 more ranks: --rows 4" in few.out
    refused = commtrace("timeline", late_json, "--ranks", "9")
    assert (refused.code, refused.err) == (
        2,
        "error: no rank 9 in this trace\n  found: ranks 0, 1, 2, 3\n  try: one of them\n",
    )


def test_steps_and_windows_are_parts_of_the_time(commtrace: Commtrace, late_json: Path) -> None:
    one = commtrace("timeline", late_json, "--steps", "1").out
    steps = next(line for line in one.splitlines() if line.startswith("step"))
    assert steps.split() == ["step", "|1"]
    window = commtrace("timeline", late_json, "--window", "2ms:3ms").out
    assert "2 ms to 3 ms since the run began" in window
    late = commtrace("timeline", late_json, "--window", "9s:")
    assert late.code == 2
    assert late.err.startswith("error: nothing to show from 9 s on\n")
    apart = commtrace("timeline", late_json, "--steps", "1", "--window", "0s:10us")
    assert apart.code == 2
    assert apart.err.startswith("error: cannot show these steps in that window\n")


def test_it_writes_a_page_or_plotly_s_json(commtrace: Commtrace, late_json: Path) -> None:
    ended = commtrace("timeline", late_json, "--steps", "0:1", "--ranks", "0", "-o", "t.json")
    assert (ended.code, ended.out) == (0, "")
    figure = json.loads(Path("t.json").read_text())
    assert figure["layout"]["yaxis"]["ticktext"] == ["rank 0"]
    ended = commtrace("timeline", late_json, "-o", "t.html")
    assert ended.err.startswith("wrote t.html (")


def test_the_help_names_the_picture_s_limit() -> None:
    assert f"Above {MAX_MARKS:,} waits and transfers" in EXAMPLE


def test_colours_are_for_terminals_only(commtrace: Commtrace, late_json: Path) -> None:
    assert "\x1b[" not in commtrace("timeline", late_json).out
