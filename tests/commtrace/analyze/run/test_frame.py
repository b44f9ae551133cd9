from __future__ import annotations

from array import array
from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.run.frame import DTYPES, in_order
from commtrace.errors import NotATraceError
from commtrace.schema import TABLES
from commtrace.tracefile import Trace, write_trace
from tests.commtrace.analyze.rows import START_NS, call, random_trace, rank_row, run_of, trace_of
from tests.commtrace.analyze.training import training_trace


def tables_of(frames: Frames) -> dict[str, pd.DataFrame]:
    return {name: getattr(frames, name) for name in TABLES}


@pytest.mark.parametrize("trace", [training_trace(), Trace({}, {})], ids=["training", "empty"])
def test_every_table_has_the_columns_and_dtypes_of_the_schema(trace: Trace) -> None:
    for name, table in tables_of(load(trace)).items():
        expected = {column.name: DTYPES[column.type] for column in TABLES[name]}
        assert {column: str(dtype) for column, dtype in table.dtypes.items()} == expected


def test_every_value_is_the_trace_s_own() -> None:
    trace = random_trace(1)
    for name, table in tables_of(load(trace)).items():
        assert list(table.itertuples(index=False, name=None)) == list(trace.rows(name))


def test_a_path_loads_as_what_was_written_there(tmp_path: Path) -> None:
    trace = training_trace()
    frames = load(write_trace(trace, tmp_path / "run.json"))
    assert frames.path == tmp_path / "run.json"
    assert frames.run == trace.run
    for name, table in tables_of(load(trace)).items():
        pd.testing.assert_frame_equal(table, getattr(frames, name))


def test_frames_load_as_themselves() -> None:
    frames = load(training_trace())
    assert load(frames) is frames


def test_what_is_no_trace_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no trace\n")
    with pytest.raises(NotATraceError, match=r"notes\.txt"):
        load(path)


def test_a_column_that_an_older_trace_lacks_is_not_known() -> None:
    older = Trace({}, {"comm": {"rank": array("q", [3, 4])}})
    comm = load(older).comm
    assert comm["rank"].tolist() == [3, 4]
    assert comm["wire_bytes"].tolist() == [-1, -1]
    assert comm["kind"].tolist() == ["", ""]
    assert comm["is_async"].tolist() == [False, False]


def test_categories_are_the_strings_in_use_and_sorted() -> None:
    frames = run_of([call(kind="send"), call(kind="all_reduce"), call(kind="send")])
    assert frames.comm["kind"].cat.categories.tolist() == ["all_reduce", "send"]


def test_the_run_starts_with_its_first_rank() -> None:
    ranks = [rank_row(0, start_ns=START_NS + 5), rank_row(1, start_ns=START_NS + 2)]
    assert run_of([call(at=9)], ranks=ranks).start_ns == START_NS + 2


def test_ranks_are_counted_from_their_calls_where_the_trace_lists_none() -> None:
    frames = run_of([call(rank=0), call(rank=5), call(rank=5)], ranks=[])
    assert frames.num_ranks == 2
    assert load(trace_of(num_ranks=3)).num_ranks == 3


def test_rows_in_order_are_left_as_they_are_and_others_are_sorted() -> None:
    rows = pd.DataFrame({"rank": [0, 0, 1, 1], "id": [1, 1, 0, 2], "which": [*"abcd"]})
    assert in_order(rows, ["rank", "id"]) is rows
    assert in_order(rows[:0], ["rank", "id"]).empty
    for places in ([1, 0, 2, 3], [2, 3, 0, 1], [0, 1, 3, 2]):
        mixed = rows.iloc[places]
        expected = mixed.sort_values(["rank", "id"], kind="stable")
        pd.testing.assert_frame_equal(in_order(mixed, ["rank", "id"]), expected)
