"""A trace in memory: its columns behave like sequences and share their strings."""

from __future__ import annotations

import pytest

from commtrace.errors import EmptyTraceError
from commtrace.event import CommEvent
from commtrace.schema import TABLES
from commtrace.tracefile import StringColumn, require_events, trace_of_rows

TRACE = trace_of_rows({}, {"comm": [CommEvent(kind="send"), CommEvent(kind="recv", rank=1)]})


def test_every_table_is_there_even_without_rows() -> None:
    assert [TRACE.num_rows(name) for name in TRACE.tables] == [2, *[0] * (len(TABLES) - 1)]


def test_rows_are_tuples_in_the_order_of_the_columns() -> None:
    assert [CommEvent(*row).kind for row in TRACE.rows("comm")] == ["send", "recv"]


def test_equal_strings_have_equal_numbers_in_all_columns() -> None:
    comm = TRACE.tables["comm"]
    kind, dtype = comm["kind"], comm["dtype"]
    assert isinstance(kind, StringColumn)
    assert isinstance(dtype, StringColumn)
    assert kind.strings is dtype.strings
    assert list(dtype.codes) == [kind.strings.index("")] * 2


def test_a_string_column_is_a_sequence() -> None:
    kind = TRACE.tables["comm"]["kind"]
    assert (len(kind), kind[0], list(kind[1:]), list(kind)) == (
        2,
        "send",
        ["recv"],
        ["send", "recv"],
    )
    assert kind == ["send", "recv"]
    assert kind != ["send"]


def test_a_trace_without_events_has_nothing_to_show() -> None:
    with pytest.raises(EmptyTraceError, match="no communication calls or operators"):
        require_events(trace_of_rows({}, {}))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({}, "the program did not communicate while recording was on"),
        ({"torn_ranks": [1]}, "while recording was on, or ended before its calls were written"),
        ({"missing_ranks": [1]}, "while recording was on, or did on ranks that left no recording"),
        ({"imported_from": "a tool"}, "the files imported from a tool contain none; the program"),
    ],
)
def test_only_a_whole_recording_shows_that_the_program_did_not_communicate(
    run: dict[str, object], why: str
) -> None:
    with pytest.raises(EmptyTraceError) as error:
        require_events(trace_of_rows(run, {}))
    assert why in str(error.value)
    assert ("the program did not communicate" in str(error.value)) == ("imported_from" not in run)


def test_a_trace_with_events_passes() -> None:
    assert require_events(TRACE) is TRACE
