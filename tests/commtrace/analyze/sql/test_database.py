"""Statements: what they see, what they may do, and where they end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze.run.frame import Frames, frames_of
from commtrace.analyze.sql import SQL_TABLES, Database, Limits
from commtrace.analyze.stored import StoredRun
from commtrace.errors import UsageError
from commtrace.schema import TABLES
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES

EVERY = TRACES | FAULTY
CHOSEN = ("training", "crossed", "device0", "piped0", "not received")


def stored(trace: str, folder: Path) -> StoredRun:
    """A trace as a run that is read in parts."""
    run = folder / "RUN.comm"
    run.mkdir()
    write_trace(EVERY[trace], run / "run.json")
    prepare_dataset(run, workers=1)
    return StoredRun(open_dataset(run), rows_of_part=5)


def test_a_relation_has_the_columns_that_are_documented() -> None:
    with Database({"": run_of([call()])}) as database:
        for name, relation in SQL_TABLES.items():
            found = database.query(f"SELECT * FROM {name}")
            assert [*found] == [each.name for each in relation.columns], name


@pytest.mark.parametrize("trace", CHOSEN)
def test_a_relation_has_the_rows_of_its_table(trace: str) -> None:
    frames = frames_of(EVERY[trace])
    with Database({"": frames}) as database:
        for name, relation in SQL_TABLES.items():
            if relation.rows is None:
                continue
            expected = relation.rows(frames).reset_index(drop=True)
            found = database.query(f"SELECT * FROM {name}")
            assert len(found) == len(expected), name
            for column in relation.columns:
                own, known = expected[column.name], found[column.name].notna()
                message = f"{name}.{column.name}"
                if column.type is str:
                    assert found[column.name].tolist() == own.astype(str).tolist(), message
                    continue
                assert found[column.name][known].tolist() == own[known].tolist(), message
                missing = own[~known]
                assert (missing.isna() | (missing == -1)).all(), message


@pytest.mark.parametrize("trace", CHOSEN)
def test_a_stored_run_answers_like_one_in_memory(trace: str, tmp_path: Path) -> None:
    run = stored(trace, tmp_path)
    statements = [
        *(f"SELECT * FROM {name} ORDER BY ALL" for name in (*TABLES, "waits", "calls")),
        "SELECT * FROM by_kind ORDER BY ALL",
    ]
    with Database({"": run}) as parts, Database({"": frames_of(run.dataset.trace())}) as whole:
        for statement in statements:
            expected, found = whole.query(statement), parts.query(statement)
            pd.testing.assert_frame_equal(found, expected, check_dtype=False, obj=statement)


def test_unknown_numbers_are_null_and_sums_leave_them_out() -> None:
    run = run_of([call(blocked_ns=7), call(id=1, blocked_ns=-1), call(id=2, blocked_ns=5)])
    with Database({"": run}) as database:
        found = database.query(
            "SELECT sum(blocked_ns) AS total, count(blocked_ns) AS known, count(*) AS n FROM comm"
        )
    assert found.iloc[0].tolist() == [12, 2, 3]


def test_sums_of_large_integers_are_exact() -> None:
    large = (1 << 57) + 1
    run = run_of([call(id=number, wire_bytes=large) for number in range(5)])
    with Database({"": run}) as database:
        found = database.query("SELECT sum(wire_bytes) AS total FROM comm")
    assert found["total"].tolist() == [5 * large]


def test_calls_have_the_axis_of_their_group_and_their_wait() -> None:
    frames = frames_of(EVERY["training"])
    with Database({"": frames}) as database:
        found = database.query("SELECT * FROM calls ORDER BY rank, id")
    expected = SQL_TABLES["waits"].rows(frames) if SQL_TABLES["waits"].rows else pd.DataFrame()
    expected = expected.sort_values(["rank", "id"], ignore_index=True)
    assert found["wait_ns"].fillna(-1).tolist() == expected["wait_ns"].tolist()
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    assert found["mesh_axis"].tolist() == [axes[group] for group in found["group"]]


def test_tables_of_several_runs_have_their_names() -> None:
    runs = {"one": run_of([call()]), "Two": run_of([call(), call(id=1)])}
    with Database(runs) as database:
        found = database.query(
            'SELECT (SELECT count(*) FROM one.comm) AS a, (SELECT count(*) FROM "two".calls) AS b'
        )
        assert found.iloc[0].tolist() == [1, 2]
        with pytest.raises(UsageError, match=r"no table 'comm'.*\n(.*\n)*.*one\.comm or two\.comm"):
            database.query("SELECT * FROM comm")


@pytest.mark.parametrize(
    "name", ["main", "memory", "left", "Select", "a b", "1st", "information_schema", "a.b", "x'"]
)
def test_names_that_are_none_of_a_schema_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        Database({name: run_of([call()])})


def test_names_that_differ_by_case_are_refused() -> None:
    with pytest.raises(UsageError, match="apart"):
        Database({"a": run_of([call()]), "A": run_of([call(), call(id=1)])})


@pytest.mark.parametrize("folder", ["rank=3", "g[1]", "step=x, y", "a*", "what?", "it's"])
def test_a_path_is_taken_literally(folder: str, tmp_path: Path) -> None:
    place, other = tmp_path / folder, tmp_path / "g1"
    place.mkdir()
    other.mkdir()
    stored("crossed", other)
    run = stored("training", place)
    with Database({"": run}) as parts, Database({"": frames_of(run.dataset.trace())}) as whole:
        statement = (
            "SELECT rank, step, count(*), sum(wire_bytes) FROM calls GROUP BY ALL ORDER BY ALL"
        )
        pd.testing.assert_frame_equal(
            parts.query(statement), whole.query(statement), check_dtype=False
        )


def test_a_table_that_failed_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table, failures = SQL_TABLES["by_kind"], [KeyboardInterrupt()]
    assert table.rows is not None
    compute = table.rows

    def once_failing(frames: Frames) -> pd.DataFrame:
        if failures:
            raise failures.pop()
        return compute(frames)

    monkeypatch.setitem(SQL_TABLES, "by_kind", replace(table, rows=once_failing))
    with Database({"": run_of([call()])}) as database:
        with pytest.raises(KeyboardInterrupt):
            database.query("SELECT * FROM by_kind")
        assert len(database.query("SELECT * FROM by_kind")) == 1


def test_sums_beyond_64_bits_are_floats() -> None:
    run = run_of([call(id=number, issue_ns=1_700_000_000_000_000_000) for number in range(9)])
    with Database({"": run}) as database:
        found = database.query("SELECT sum(issue_ns) AS total, count(*) AS n FROM comm")
    assert found["total"].tolist() == [9 * 1.7e18]


def test_a_statement_that_an_interrupt_ends_is_not_stuck() -> None:
    stuck: list[bool] = []
    limits = Limits(seconds=0.01)
    with Database({"": run_of([call()])}, limits, lambda: stuck.append(True)) as database:
        with pytest.raises(UsageError, match="no result after"):
            database.query("SELECT count(*) FROM range(1000000000000)")
        assert not stuck, "it was interrupted in time"


HOSTILE = (
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{folder}/x''')",
    "COPY (SELECT 1) TO '{folder}/x'",
    "COPY comm FROM '{file}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/x'",
    "EXPORT DATABASE '{folder}/x'",
    "ATTACH '{folder}/x.db'",
    "ATTACH ':memory:' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "PRAGMA memory_limit = '100GB'",
    "SET enable_external_access = true",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO m() AS 1",
    "DROP VIEW comm",
    "CREATE SECRET (TYPE s3)",
    "SELECT 1; COPY (SELECT 1) TO '{folder}/x'",
    "SELECT * FROM read_parquet('{folder}/**/*.parquet')",
    "CALL pragma_version()",
    "VACUUM",
    "",
    "-- nothing",
    "COPY (PIVOT comm ON kind USING count(*)) TO '{folder}/x'",
    "/* a */ COPY (PIVOT comm ON kind USING count(*)) TO '{folder}/x'",
    "CREATE TABLE t AS SELECT * FROM (PIVOT comm ON kind USING count(*))",
    "CREATE OR REPLACE TABLE kernels AS PIVOT comm ON kind USING count(*)",
    "CREATE TEMP TABLE waits AS FROM (PIVOT comm ON kind USING count(*))",
    "WITH p AS (PIVOT comm ON kind USING count(*)) INSERT INTO comm SELECT * FROM p",
    "INSERT INTO comm PIVOT comm ON kind USING count(*)",
)


@pytest.mark.parametrize("statement", HOSTILE)
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_statement_reaches_nothing_but_the_run(
    statement: str, is_stored: bool, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "secret.csv").write_text("password\nhunter2\n")
    run: Frames = run_of([call()])
    if is_stored:
        run = stored("training", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with Database({"": run}) as database, pytest.raises(UsageError) as caught:
        database.query(statement.format(file=others / "secret.csv", folder=others))
    assert "hunter2" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{}/comm/x.parquet'",
        "COPY (PIVOT comm ON kind USING count(*)) TO '{}/comm/x.parquet'",
        "CHECKPOINT",
    ],
)
def test_nothing_is_written_into_a_dataset(statement: str, tmp_path: Path) -> None:
    run = stored("training", tmp_path)
    with Database({"": run}) as database, pytest.raises(UsageError):
        database.query(statement.format(run.dataset.target))
    assert not (run.dataset.target / "comm" / "x.parquet").exists()


ENDLESS = (
    "SELECT count(*) FROM range(1000000000000)",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
    "SELECT max(a.range + b.range) FROM range(10000000) AS a, range(10000000) AS b",
)


@pytest.mark.parametrize("statement", ENDLESS)
def test_a_statement_that_does_not_end_is_interrupted(statement: str) -> None:
    limits = Limits(seconds=0.5)
    with (
        Database({"": run_of([call()])}, limits) as database,
        pytest.raises(UsageError, match="no result after 500 ms"),
    ):
        database.query(statement)


def test_the_time_counts_from_when_the_tables_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SQL_TABLES["by_kind"]
    assert table.rows is not None
    compute = table.rows

    def slowly(frames: Frames) -> pd.DataFrame:
        time.sleep(0.8)
        return compute(frames)

    monkeypatch.setitem(SQL_TABLES, "by_kind", replace(table, rows=slowly))
    with Database({"": run_of([call()])}, Limits(seconds=0.5)) as database:
        assert len(database.query("SELECT * FROM by_kind")) == 1
        with pytest.raises(UsageError, match="no result after"):
            database.query("SELECT count(*) FROM by_kind, range(1000000000000)")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM (SELECT DISTINCT range, random() FROM range(1000000000))",
        "SELECT repeat('x', 1000000) || range AS text FROM range(10000)",
        "WITH RECURSIVE r AS (SELECT repeat('x', 1000000) AS t, 1 AS n UNION ALL "
        "SELECT t || 'x', n + 1 FROM r) SELECT count(DISTINCT t) FROM r",
    ],
)
def test_a_statement_ends_at_its_limit_of_memory_and_disk(statement: str) -> None:
    limits = Limits(memory_bytes=200_000_000, disk_bytes=50_000_000, seconds=120)
    with (
        Database({"": run_of([call()])}, limits) as database,
        pytest.raises(UsageError, match="200 MB of memory and 50 MB of disk"),
    ):
        database.query(statement)


def test_a_result_of_too_many_rows_is_refused() -> None:
    with Database({"": run_of([call()])}, Limits(rows=1000)) as database:
        assert len(database.query("SELECT * FROM range(1000)")) == 1000
        with pytest.raises(UsageError, match="more than 1,000 rows of 1 columns"):
            database.query("SELECT * FROM range(1001)")


@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("SELECT modul FROM comm", "try: module"),
        ("SELECT c.wire_byte FROM comm AS c", "try: wire_bytes"),
        ("SELECT * FROM by_modul", "try: by_module"),
        ("SELECT * FROM Comms", "try: comm"),
        ("SELECT coun(*) FROM comm", "coun"),
        ("SELECT * FORM comm", "syntax error"),
        ("SELECT wait_ns FROM comm", "a table that has it: waits, calls"),
        ("SELECT cuont(*) FROM comm", "try: count"),
        ("WITH comm AS (SELECT * FROM comm) SELECT * FROM comm", "main.TABLE"),
        ("SELECT count(*) FROM other.comm", "no table"),
    ],
)
def test_an_error_names_what_was_meant(statement: str, meant: str) -> None:
    with (
        Database({"": run_of([call()])}) as database,
        pytest.raises(UsageError, match=meant) as caught,
    ):
        database.query(statement)
    assert "LINE 1" not in str(caught.value)


def test_columns_of_one_name_are_told_apart() -> None:
    with Database({"": run_of([call()])}) as database:
        found = database.query("SELECT rank, rank, id AS rank_1 FROM comm")
    assert len({*found}) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "FROM comm",
        "DESCRIBE comm",
        "SUMMARIZE steps",
        "VALUES (1), (2)",
        "PIVOT comm ON kind USING count(*)",
        "SELECT * FROM (PIVOT (SELECT replace(kind, '_', '-') AS k FROM comm) ON k USING count(*))",
        "WITH x AS (SELECT * FROM waits) SELECT * FROM x JOIN comm USING (rank, id)",
    ],
)
def test_whatever_selects_is_run(statement: str) -> None:
    with Database({"": run_of([call(id=0)])}) as database:
        assert len(database.query(statement))


def test_temporary_files_go_with_the_database() -> None:
    with Database({"": run_of([call()])}) as database:
        folder = Path(database._folder.name)
        assert folder.exists()
    assert not folder.exists()
