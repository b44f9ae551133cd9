"""`commtrace sql`: answers for people and programs, the list of tables, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from commtrace.analyze.sql import SQL_TABLES, database
from commtrace.tracefile import write_trace
from commtrace_cli.main import app
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, trace_of

COUNT = "SELECT kind, count(*) AS calls, sum(blocked_ns) AS blocked FROM comm GROUP BY kind"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    calls = [call(id=number, blocked_ns=10, kind="all_reduce") for number in range(3)]
    return write_trace(
        trace_of([*calls, call(id=3, kind="barrier", blocked_ns=-1)]), tmp_path / "a.json"
    )


def test_an_answer_is_a_table_in_which_unknown_is_no_number(
    commtrace: Commtrace, run: Path
) -> None:
    ended = commtrace("sql", run, f"{COUNT} ORDER BY kind")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines == [
        ["kind", "calls", "blocked"],
        ["all_reduce", "3", "30"],
        ["barrier", "1", "unknown"],
    ]


def test_without_a_statement_tables_and_columns_are_listed(commtrace: Commtrace, run: Path) -> None:
    out = commtrace("sql", run, columns=200).out.splitlines()
    for name, relation in SQL_TABLES.items():
        assert any(line.startswith(f"{name}  ") for line in out), name
        for column in relation.columns:
            assert any(line.split()[:1] == [column.name] for line in out), column.name


def test_programs_get_exact_values(commtrace: Commtrace, run: Path) -> None:
    printed = commtrace("sql", run, f"{COUNT} ORDER BY kind", "--csv").out
    assert [*csv.reader(io.StringIO(printed))][1:] == [
        ["all_reduce", "3", "30"],
        ["barrier", "1", ""],
    ]
    document = json.loads(commtrace("sql", run, f"{COUNT} ORDER BY kind", "--json").out)
    assert document["columns"] == ["kind", "calls", "blocked"]
    assert document["rows"][1] == {"kind": "barrier", "calls": 1, "blocked": None}


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_an_answer_is_written_as_its_suffix_says(
    commtrace: Commtrace, run: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"answer.{suffix}"
    assert commtrace("sql", run, f"{COUNT} ORDER BY kind", "-o", path).code == 0
    found = {
        "csv": lambda: pd.read_csv(path),
        "json": lambda: pd.DataFrame(json.loads(path.read_text())["rows"]),
        "parquet": lambda: pd.read_parquet(path),
    }[suffix]()
    assert found["calls"].tolist() == [3, 1]
    again = commtrace("sql", run, COUNT, "-o", path)
    assert again.code == 2
    assert "--force" in again.err
    assert commtrace("sql", run, COUNT, "-o", path, "--force").code == 0


def test_a_statement_can_be_in_a_file(commtrace: Commtrace, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "count.sql"
    file.write_text(f"-- calls by kind\n{COUNT};\n")
    assert "all_reduce" in commtrace("sql", run, "-f", file).out


def test_several_runs_are_compared(commtrace: Commtrace, run: Path) -> None:
    statement = "SELECT (SELECT count(*) FROM a.comm) + (SELECT count(*) FROM b.comm) AS calls"
    assert "8" in commtrace("sql", f"a={run}", f"b={run}", statement).out


def test_rows_that_are_not_shown_are_counted(commtrace: Commtrace, run: Path) -> None:
    out = commtrace("sql", run, "SELECT * FROM range(100)", "--rows", "7").out
    assert "93 more rows: --rows 100" in out
    assert "no rows" in commtrace("sql", run, "SELECT 1 WHERE false").out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["{run}", "{run}", "SELECT 1"], "cannot tell the runs"),
        (["a={run}", "a={run}", "SELECT 1"], "cannot tell the runs"),
        (["main={run}", "SELECT 1"], "cannot name a run 'main'"),
        (["{run}", "SELECT 1", "--parquet"], "cannot print Parquet"),
        (["{run}", "SELECT 1", "-o", "x.txt"], "cannot tell the format"),
        (["{run}", "SELECT 1", "--json", "--csv"], "two formats at once"),
        (["{run}", "-f", "nowhere.sql"], "cannot read nowhere.sql"),
        (["{run}", "DROP VIEW comm"], "a single statement that selects"),
        (["{run}", "SELECT sum(kind) FROM comm"], "cannot run"),
        (
            ["{run}", "SELECT count(*) FROM range(1000000000000)", "--seconds", "0.2"],
            "no result after",
        ),
        (["nowhere.json", "SELECT 1"], "nowhere.json"),
        (["a={run}", "b=nowhere.json"], "nowhere.json"),
        (["a={run}", "A={run}", "SELECT 1"], "cannot tell the runs"),
        (["{run}", "SELECT 1", "-f", "{run}"], "cannot run two statements"),
        (["SELECT count(*) FROM comm"], "no run"),
        (["{run}", "--json"], "no statement"),
        (["{run}", "SELECT 1", "--seconds", "inf"], "as limits"),
        (["{run}", "SELECT 1", "--memory", "nan"], "--memory"),
        (
            ["{run}", "SELECT length(repeat('a', 3000000000))", "--memory", "0.2"],
            "200 MB of memory",
        ),
    ],
)
def test_a_mistake_is_explained(
    commtrace: Commtrace, run: Path, given: list[str], message: str
) -> None:
    ended = commtrace("sql", *[each.format(run=run) for each in given])
    assert ended.code in (2, 3)
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_a_function_that_no_interrupt_reaches_ends_the_command(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database, "_GRACE_S", 0.2)
    ended: list[int] = []

    def leave(code: int) -> None:
        ended.append(code)

    monkeypatch.setattr(os, "_exit", leave)
    statement = "SELECT length(lpad('a', 60000000, 'b')) FROM range(4)"
    CliRunner().invoke(app, ["sql", str(run), statement, "--seconds", "0.1"])
    assert ended == [2]


def test_nothing_in_a_run_that_is_read_is_overwritten(
    commtrace: Commtrace, tmp_path: Path, run: Path
) -> None:
    folder = tmp_path / "RUN.comm"
    (folder / "dataset").mkdir(parents=True)
    run.rename(folder / "run.json")
    inside = folder / "dataset" / "ranks.parquet"
    inside.write_bytes(b"rows")
    ended = commtrace("sql", folder, "SELECT 1", "-o", inside, "--force")
    assert ended.code == 2
    assert inside.read_bytes() == b"rows"
