"""Divergence of ranks, from dumps of the flight recorder alone, whatever their order and number."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.dumps import write_dumps
from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.analyze.divergence import divergences
from commtrace.importers import import_trace
from tests.launchers.programs import ROOT, environment


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Folder of dumps."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    return folder


def test_the_rank_that_skipped_a_call_both_lines_and_the_branch_are_named(dumps: Path) -> None:
    write_dumps(dumps, num_dumps=40, num_ranks=64, stuck=13)
    frames = load(import_trace([dumps]))
    (fault,) = consistency(frames).query("problem == 'deadlock'").to_dict("records")
    assert (fault["ranks"], fault["is_one_of_ranks"]) == ("13", False)
    assert "Rank 13 left out all_reduce at" in fault["explanation"]
    row = divergences(frames).query("ranks == '13'").to_dict("records")[0]
    assert (row["common"], row["own"]) == ("all_reduce 11 of tp", "all_reduce 1 of group 0")
    assert row["instead"] == "all_reduce 11 of dp"
    lines = [row[name] for name in ("common_source", "own_source", "instead_source")]
    assert lines == [f"{dumps.with_name('train.py')}:{line}" for line in (6, 14, 8)]
    assert row["branch"] == f"`if loss.isfinite():` ({dumps.with_name('train.py')}:7)"


def test_the_order_of_the_files_does_not_matter(dumps: Path) -> None:
    write_dumps(dumps, num_dumps=24, num_ranks=64, stuck=3)
    paths = sorted(dumps.iterdir())
    found = [divergences(load(import_trace(order))) for order in (paths, paths[::-1])]
    assert found[0].equals(found[1])


def test_what_a_dump_takes_does_not_grow_with_the_groups_that_all_state(dumps: Path) -> None:
    write_dumps(dumps, num_dumps=120, num_ranks=16_384, stuck=13)
    tracemalloc.start()
    try:
        import_trace([dumps])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One list of 16,384 ranks takes 0.6 MB as numbers, 1 MB with its text.
    assert peak < 120 * 150_000 + 20_000_000


def test_the_benchmark_prints_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.dumps", "--dumps", "16", "--ranks", "64"]
    ended = subprocess.run(
        [*command, "--stuck", "5"],
        check=True, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert "Rank 5 went on to" in ended.stdout
    assert "16 dumps of 64 ranks: " in ended.stdout
