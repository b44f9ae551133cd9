"""`commtrace dump`: selected raw rows, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from commtrace.schema import TABLES
from commtrace.tracefile import read_trace
from tests.cli.conftest import Commtrace


@pytest.mark.parametrize("name", TABLES)
def test_csv_is_the_full_table(commtrace: Commtrace, run_json: Path, name: str) -> None:
    reader = csv.DictReader(io.StringIO(commtrace("dump", run_json, name, "--csv").out))
    rows, table = list(reader), read_trace(run_json).tables[name]
    assert list(reader.fieldnames or ()) == list(table)
    for column, values in table.items():
        if TABLES[name][list(table).index(column)].type in (int, str):
            assert [row[column] for row in rows] == list(map(str, values))


def test_rows_and_columns_are_chosen(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace(
        *("dump", run_json, "comm", "--where", "kind=all_gather", "--where", "rank>1"),
        *("--columns", "id,rank", "--columns", "kind", "--limit", "2", "--csv"),
    )
    assert ended.out == "id,rank,kind\n3,2,all_gather\n8,2,all_gather\n"


def test_json_says_what_the_columns_mean(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("dump", run_json, "ops", "--columns", "op,duration_ns", "--json")
    document = json.loads(ended.out)["ops"]
    assert document["columns"]["duration_ns"]["unit"] == "ns"
    assert len(document["rows"]) == 120
    assert list(document["rows"][0]) == ["op", "duration_ns"]


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_the_terminal_shows_what_fits_and_says_what_is_left(
    commtrace: Commtrace, run_json: Path, columns: int
) -> None:
    ended = commtrace("dump", run_json, "comm", columns=columns)
    assert ended.code == 0
    assert ended.out.startswith("120 of 120 rows of comm\n")
    assert "90 more: --limit 120" in ended.out
    text = " ".join(ended.out.split())
    assert re.search(r"\d+ columns omitted \(.*\): in a wider terminal, or with --columns or", text)
    assert max(len(line) for line in ended.out.splitlines()) <= columns


def test_conditions_that_hold_apart_but_not_together_leave_no_row(
    commtrace: Commtrace, run_json: Path
) -> None:
    where = ["--where", "rank=0", "--where", "rank=1"]
    ended = commtrace("dump", run_json, "comm", *where)
    assert (ended.code, ended.out) == (0, "0 of 120 rows of comm\n")


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
@pytest.mark.parametrize(
    ("where", "found"),
    [
        (
            "kind=all_reduc",
            "did you mean kind=all_reduce? kind is one of all_gather, all_reduce, reduce_scatter",
        ),
        ("rank=99", "rank ranges from 0 to 3"),
    ],
)
def test_a_value_that_no_row_has_is_a_mistake(
    commtrace: Commtrace, run_json: Path, form: tuple[str, ...], where: str, found: str
) -> None:
    ended = commtrace("dump", run_json, "comm", "--where", where, *form)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"error: no row of comm\n  found: {where!r} holds for no row: {found}\n"
        "  try: another value\n"
    )


def test_a_trace_without_events_is_dumped_too(commtrace: Commtrace, silent_json: Path) -> None:
    ended = commtrace("dump", silent_json, "groups", "--csv")
    assert (ended.code, len(ended.out.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("com",),
            f"error: no table 'com'\n  found: the tables {', '.join(TABLES)}\n",
        ),
        (("comm", "--where", "knd=x"), "error: no column 'knd'\n"),
        (("comm", "--columns", "knd"), "error: no column 'knd'\n"),
        (("comm", "--where", "kind"), "error: 'kind' is not a condition\n"),
    ],
)
def test_what_there_is_not_is_reported(
    commtrace: Commtrace, run_json: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = commtrace("dump", run_json, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(message)
