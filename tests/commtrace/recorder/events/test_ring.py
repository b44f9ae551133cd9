"""A recording with `ring` keeps the last calls, in files or in memory, and counts the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.analyze import load
from commtrace.analyze.notices import notices_of
from commtrace.errors import UsageError
from commtrace.session import Recording
from commtrace.tracefile import Trace, read_trace
from dtensor_core.testing import fake_world

RING = 64_000


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with fake_world(2):
        yield


def program(recording: Recording, num_batches: int = 60) -> int:
    """Communicate, and write a batch now and then; return the number of calls."""
    recording._flusher.stop()
    for _ in range(num_batches):
        for size in range(1, 101):
            dist.all_reduce(torch.ones(size))
            recording.step()
        recording._output.flush()
    return 100 * num_batches


def require_last(trace: Trace, num_calls: int) -> None:
    """Check that a trace has the last calls without a gap, and counts the others."""
    ids = list(trace.tables["comm"]["id"])
    assert ids == list(range(num_calls - len(ids), num_calls))
    assert 0 < len(ids) < num_calls
    assert list(trace.tables["ranks"]["num_dropped"]) == [num_calls - len(ids)]
    shapes = trace.tables["comm"]["input_shapes"]
    assert list(shapes) == [f"[{number % 100 + 1}]" for number in ids]
    steps = list(trace.tables["steps"]["step"])
    assert steps == list(range(steps[0], num_calls))
    assert ids[0] - 100 <= steps[0] <= ids[0] + 100
    assert trace.run["torn_ranks"] == []


@pytest.mark.parametrize("name", ["run.json", "RUN.comm"])
def test_a_file_has_the_last_calls(tmp_path: Path, name: str) -> None:
    with commtrace.record(tmp_path / name, ring=RING) as recording:
        num_calls = program(recording)
        spools = list(tmp_path.rglob("*.spool"))
        size = sum(path.stat().st_size for path in spools)
        assert len(spools) == 2
        assert RING / 2 <= size <= 1.25 * RING
        assert 0 < len(recording.trace().tables["comm"]["id"]) < num_calls
    trace = read_trace(tmp_path / name)
    require_last(trace, num_calls)
    (notice,) = [n for n in notices_of(load(tmp_path / name)) if "dropped" in n.text]
    assert notice.text.startswith(f"{trace.tables['ranks']['num_dropped'][0]:,} calls were dropped")


def test_memory_has_the_last_calls() -> None:
    with commtrace.record(ring=RING) as recording:
        num_calls = program(recording)
        assert sum(map(len, recording._output.buffer.contents())) <= 1.25 * RING
    require_last(recording.trace(), num_calls)


def test_a_short_recording_is_whole(tmp_path: Path) -> None:
    with commtrace.record(tmp_path / "run.json", ring="1 GB") as recording:
        program(recording, 1)
    trace = read_trace(tmp_path / "run.json")
    assert trace.num_rows("comm") == 100
    assert list(trace.tables["ranks"]["num_dropped"]) == [0]


def test_the_last_part_of_every_nth_step_is_kept(tmp_path: Path) -> None:
    with commtrace.record(tmp_path / "run.json", ring=RING, every=3) as recording:
        num_calls = program(recording, 150)
    trace = read_trace(tmp_path / "run.json")
    ids = list(trace.tables["comm"]["id"])
    assert ids == list(range(ids[0], num_calls, 3))
    assert list(trace.tables["comm"]["step"]) == ids
    assert list(trace.tables["ranks"]["num_dropped"]) == [ids[0] // 3]
    assert ids[0] > 0


@pytest.mark.parametrize("ring", ["much", "12kB", 1, -5, True, 1.5, ""])
def test_a_ring_has_a_size(ring: Any) -> None:
    with pytest.raises(UsageError, match="cannot record into a ring of that size") as raised:
        commtrace.record(ring=ring)
    assert raised.value.found == repr(ring)
    assert raised.value.why
    assert raised.value.attempt
