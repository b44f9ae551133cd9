"""Blocks of collectives: gathered once, then read by column."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze.cached_per_run import OF_COLLECTIVES
from commtrace.analyze.stored import StoredRun
from commtrace.analyze.stored.collective_blocks import COLUMNS
from commtrace.errors import TraceError
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from tests.commtrace.analyze.rows import call, group, trace_of
from tests.commtrace.analyze.test_second_computation import TRACES


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    folder = tmp_path / "RUN.comm"
    folder.mkdir()
    write_trace(TRACES["training"], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return StoredRun(open_dataset(folder), rows_of_part=20)


def files(run: StoredRun) -> set[str]:
    return {path.name.partition("-")[0] for path in (run.folder / "blocks").glob("*.arrow")}


def num_calls(part: object) -> int:
    return len(part.comm["rank"])  # type: ignore[attr-defined]


def test_files_of_parts_go_once_all_blocks_are_gathered(run: StoredRun) -> None:
    run.part(OF_COLLECTIVES, 0)
    assert files(run) == {"part", "block"}
    assert sum(run.by_collectives(num_calls)) == run.num_calls
    assert files(run) == {"block"}
    again = StoredRun(run.dataset, rows_of_part=20)
    assert sum(again.by_collectives(num_calls)) == run.num_calls


def test_a_block_is_read_by_column_and_its_rows_ascend(run: StoredRun) -> None:
    whole = run.comm
    for part in run.parts(OF_COLLECTIVES):
        assert part.comm.index.is_monotonic_increasing
        assert part.comm._columns_read == {}  # type: ignore[attr-defined]
        for name in COLUMNS:
            found, expected = part.comm[name], whole.loc[part.comm.index, name]
            assert found.astype(object).tolist() == expected.astype(object).tolist(), name
            assert isinstance(found.dtype, pd.CategoricalDtype) == isinstance(
                expected.dtype, pd.CategoricalDtype
            )


def test_parts_may_have_more_groups_together_than_each_of_them(tmp_path: Path) -> None:
    calls = [
        call(rank=rank, id=number, group=f"g{rank}.{number}", seq=0, at=number)
        for rank in range(3)
        for number in range(100)
    ]
    groups = [group(f"g{rank}.{number}", [rank]) for rank in range(3) for number in range(100)]
    folder = tmp_path / "RUN.comm"
    folder.mkdir()
    write_trace(trace_of(calls, num_ranks=3, groups=groups), folder / "run.json")
    prepare_dataset(folder, workers=1)
    run = StoredRun(open_dataset(folder), rows_of_part=150)
    part = run.part(OF_COLLECTIVES, 0)
    assert part.comm["group"].nunique() > 127
    assert (part.comm["group"] == run.comm.loc[part.comm.index, "group"].astype(object)).all()


def test_a_damaged_block_is_named(run: StoredRun) -> None:
    run.by_collectives(num_calls)
    path = next((run.folder / "blocks").glob("block-*.arrow"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match="what is prepared"):
        StoredRun(run.dataset, rows_of_part=20).by_collectives(num_calls)
