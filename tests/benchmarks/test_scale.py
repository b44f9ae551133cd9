"""The dataset of the made-up run, and the benchmark of its tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.large_run import Plan, large_trace, write_dataset
from benchmarks.scale import Measured, _apart
from commtrace.tracefile.dataset import open_dataset

PLAN = Plan(num_ranks=16, num_calls=10_000, num_layers=2)


def test_the_dataset_is_that_of_the_run_in_memory(tmp_path: Path) -> None:
    write_dataset(PLAN, tmp_path)
    found, expected = open_dataset(tmp_path).trace(), large_trace(PLAN)
    assert found.run == expected.run
    for name, columns in expected.tables.items():
        for column, values in columns.items():
            assert list(found.tables[name][column]) == list(values), (name, column)


def test_the_passes_are_printed() -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--calls", "12000", "--ranks", "8"]
    command += ["--part", "3000", "--workers", "1", "--limit", "4", "--single", "stragglers"]
    command += ["--replay", "bandwidth *2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "pass for" in done.stdout
    assert "stragglers._of_part" in done.stdout
    assert "peak memory" in done.stdout
    assert "size of the page" in done.stdout
    assert "stragglers" in done.stdout
    assert "whatif --all-steps bandwidth *2" in done.stdout


def test_a_process_that_needs_more_memory_than_the_limit_fails() -> None:
    with pytest.raises(MemoryError):
        _apart(0.5, _allocate)


def _allocate() -> Measured:
    assert np.ones(10**8).sum() == 10**8
    return Measured([], 0.0, 0.0, 0.0, (0, 0))
