"""`commtrace diff`: changes between two runs, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Commtrace
from tests.commtrace.synthetic import write_synthetic_run


@pytest.fixture
def longer_json(tmp_path: Path) -> Path:
    """The same run with one layer more."""
    return write_synthetic_run(tmp_path / "longer.json", num_layers=3)


def test_equal_runs_have_no_difference(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("diff", run_json, run_json, "--fail-on-increase", "calls")
    assert (ended.code, ended.out) == (0, "no difference in 10 places that communicate\n")


@pytest.mark.parametrize("columns", [80, 140])
def test_what_was_added_is_listed_within_the_terminal(
    commtrace: Commtrace, run_json: Path, longer_json: Path, columns: int
) -> None:
    ended = commtrace("diff", run_json, longer_json, columns=columns)
    assert ended.code == 0
    assert ended.out.startswith("5 added, 10 the same\n")
    assert re.search(r"^added +layers\.2\.\S+ +all_reduce +\+1\b", ended.out, re.MULTILINE)
    assert "layers.2.attention.wo" in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= columns


def test_what_changed_in_all_comes_before_the_places(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    ended = commtrace("diff", run_json, longer_json, columns=160)
    first, total, title = ended.out.split("\n")[:3]
    assert first == "5 added, 10 the same"
    assert re.fullmatch(
        r"in a step: 10 -> 15 calls \(\+50%\), 6.14 kB -> 9.22 kB sent \(\+50%\), "
        r"\S+ .s -> \S+ .s blocked \(\+\d+%\)",
        total,
    )
    assert title == "Difference"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("calls", "calls grew per step: 10 -> 15 (+5)\n"),
        ("bytes", "wire_bytes grew per step: 6.14 kB -> 9.22 kB (+3.07 kB)\n"),
    ],
)
def test_an_increase_ends_with_code_1(
    commtrace: Commtrace, run_json: Path, longer_json: Path, metric: str, message: str
) -> None:
    ended = commtrace("diff", run_json, longer_json, "--fail-on-increase", metric)
    assert ended.code == 1
    assert ended.err.endswith(message)
    assert commtrace("diff", longer_json, run_json, "--fail-on-increase", metric).code == 0


def test_time_is_a_metric_and_a_tolerance_lets_it_grow(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    options = ("--fail-on-increase", "time")
    assert commtrace("diff", run_json, longer_json, *options).code == 1
    assert commtrace("diff", run_json, longer_json, *options, "--tolerance", "2").code == 0


def test_an_increase_in_something_else_is_refused(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("diff", run_json, run_json, "--fail-on-increase", "mood")
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_json_and_csv_hold_every_place(
    commtrace: Commtrace, run_json: Path, longer_json: Path
) -> None:
    document = json.loads(commtrace("diff", run_json, longer_json, "--json").out)
    assert len(document["diff"]["rows"]) == 15
    ended = commtrace("diff", run_json, longer_json, "--csv", "--fail-on-increase", "calls")
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert (ended.code, rows[0]["change"]) == (1, "added")
