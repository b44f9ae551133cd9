from __future__ import annotations

import pytest

from commtrace.analyze.run.select import hints, select
from commtrace.errors import UsageError
from commtrace.schema import COMM
from tests.commtrace.analyze.rows import call, run_of

FRAMES = run_of(
    [
        call(id=0, kind="all_reduce", payload_bytes=10, is_async=True, module="layers.0"),
        call(id=1, kind="all_gather", payload_bytes=20, module="layers.1"),
        call(id=2, kind="all_gather", payload_bytes=30, module="a=b"),
    ]
)


def ids(*where: str) -> list[int]:
    return select(FRAMES.comm, COMM, where=where)["id"].tolist()


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ((), [0, 1, 2]),
        (("kind=all_gather",), [1, 2]),
        (("kind == all_gather",), [1, 2]),
        (("kind!=all_gather",), [0]),
        (("payload_bytes>10",), [1, 2]),
        (("payload_bytes>=10", "payload_bytes < 30"), [0, 1]),
        (("payload_bytes<=10",), [0]),
        (("is_async=true",), [0]),
        (("is_async=no",), [1, 2]),
        (("module~layers",), [0, 1]),
        (("module~.",), [0, 1]),  # plain text, not a pattern
        (("module=a=b",), [2]),
        (("reduce_op=",), [0, 1, 2]),
        (("kind>all_gather",), [0]),
    ],
)
def test_rows_are_those_for_which_every_condition_holds(
    where: tuple[str, ...], found: list[int]
) -> None:
    assert ids(*where) == found


def test_columns_come_as_asked_for() -> None:
    table = select(FRAMES.comm, COMM, columns=["kind", "rank"])
    assert list(table.columns) == ["kind", "rank"]
    assert list(select(FRAMES.comm, COMM).columns) == [column.name for column in COMM]


@pytest.mark.parametrize(
    ("where", "columns", "message"),
    [
        ("kind", (), "'kind' is not a condition\n  why: a condition is a column, one of"),
        ("rank=one", (), "found: 'one' for rank, whose values are of type int"),
        ("is_async=maybe", (), "found: 'maybe' for is_async, whose values are of type bool"),
        ("knd=x", (), "no column 'knd'"),
        ("rank=0", ("payload",), "no column 'payload'"),
    ],
)
def test_what_cannot_be_looked_for_is_reported(
    where: str, columns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        select(FRAMES.comm, COMM, where=[where], columns=columns)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("kind=all_reduc", "did you mean kind=all_reduce? kind is one of all_reduce, send"),
        ("kind=xyz", "'kind=xyz' holds for no row: kind is one of all_reduce, send"),
        ("rank>7", "'rank>7' holds for no row: rank ranges from 0 to 1"),
        ("region=x", "'region=x' holds for no row: region is unknown for all rows"),
    ],
)
def test_a_condition_that_holds_for_no_row_gets_a_hint(where: str, message: str) -> None:
    frames = run_of([call(kind="all_reduce"), call(rank=1, kind="send")])
    (hint,) = hints(frames.comm, COMM, [where, "rank<2"])
    assert hint.endswith(message)
    assert hints(frames.comm, COMM, ["kind=send", "rank=0"]) == []
