"""Divergence of ranks, from dumps of the flight recorder alone, whatever their order and number."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

from benchmarks.dumps import write_dumps
from commtrace.analyze import load
from commtrace.analyze.divergence import divergences
from commtrace.importers import import_trace
from tests.launchers.programs import ROOT, environment


def test_the_rank_that_stopped_and_both_lines_are_named(tmp_path: Path) -> None:
    write_dumps(tmp_path, num_dumps=40, num_ranks=64, stuck=13)
    rows = divergences(load(import_trace([tmp_path]))).to_dict("records")
    (row,) = [row for row in rows if row["ranks"] == "13"]
    assert row["common"] == "all_reduce 10 of tp"
    assert row["common_source"] == "/job/train_0.py:18"
    assert (row["own"], row["own_source"]) == ("", "")
    assert row["instead"] == "all_reduce 10 of dp"
    assert row["instead_source"] == "/job/train_0.py:19"
    assert row["event"] == "has no later call in its dump"


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    write_dumps(tmp_path, num_dumps=24, num_ranks=64, stuck=3)
    paths = sorted(tmp_path.iterdir())
    found = [divergences(load(import_trace(order))) for order in (paths, paths[::-1])]
    assert found[0].equals(found[1])


def test_what_a_dump_takes_does_not_grow_with_the_groups_that_all_state(tmp_path: Path) -> None:
    write_dumps(tmp_path, num_dumps=120, num_ranks=16_384, stuck=13)
    tracemalloc.start()
    try:
        import_trace([tmp_path])
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
    assert "rank 5" in ended.stdout
    assert "16 dumps of 64 ranks: " in ended.stdout
