"""Tables written as CSV and Parquet read back equal, with nulls for unknown values."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.errors import UsageError
from commtrace.exporters import FORMATS, export
from commtrace.schema import TABLES
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.synthetic import write_synthetic_run

FILES = {*TABLES, "facts", "columns"}


@pytest.fixture(params=["training", "synthetic", "empty"])
def frames(request: pytest.FixtureRequest, tmp_path: Path) -> Frames:
    if request.param == "training":
        return load(training_trace())
    if request.param == "synthetic":
        return load(write_synthetic_run(tmp_path / "run.json"))
    return run_of()


def test_csv_reads_back_as_it_was(frames: Frames, tmp_path: Path) -> None:
    folder = export(frames, tmp_path / "out", to="csv")
    assert {path.name for path in folder.iterdir()} == {f"{name}.csv" for name in FILES}
    for name, columns in TABLES.items():
        table = getattr(frames, name)
        read = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)
        assert read.columns.tolist() == [column.name for column in columns]
        assert len(read) == len(table)
        for column in columns:
            back = read[column.name]
            if column.type is int:
                values = back.replace("", str(column.missing)).astype("int64")
            elif column.type is bool:
                values = back == "true"
            elif column.type is float:
                values = back.replace("", "nan").astype("float64")
            else:
                values = back
            assert values.tolist() == table[column.name].tolist(), column.name


def test_every_column_is_explained(tmp_path: Path) -> None:
    folder = export(run_of(), tmp_path / "out", to="csv")
    listed = pd.read_csv(folder / "columns.csv", keep_default_na=False)
    assert len(listed) == sum(map(len, TABLES.values()))
    row = listed[(listed["table"] == "comm") & (listed["column"] == "wire_bytes")].iloc[0]
    assert (row["unit"], row["type"]) == ("bytes", "int")


def test_texts_with_commas_quotes_and_lines_are_preserved(tmp_path: Path) -> None:
    odd = 'a,"b"\nc'
    folder = export(run_of([call(module=odd, reason="ä;")]), tmp_path / "out", to="csv")
    read = pd.read_csv(folder / "comm.csv", keep_default_na=False)
    assert read.loc[0, ["module", "reason"]].tolist() == [odd, "ä;"]


def test_parquet_reads_back_as_it_was_with_units_and_nulls(frames: Frames, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra: commtrace[parquet]")
    folder = export(frames, tmp_path / "out", to="parquet")
    assert {path.name for path in folder.iterdir()} == {f"{name}.parquet" for name in FILES}
    for name, columns in TABLES.items():
        table, read = getattr(frames, name), pq.read_table(folder / f"{name}.parquet")
        assert read.column_names == [column.name for column in columns]
        for column in columns:
            field = read.schema.field(column.name)
            assert field.metadata[b"unit"].decode() == column.unit
            assert field.metadata[b"meaning"].decode() == column.meaning
            values = [
                column.missing if value is None else value
                for value in read[column.name].to_pylist()
            ]
            assert values == table[column.name].tolist(), column.name


def test_without_pyarrow_parquet_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError) as raised:
        export(run_of(), tmp_path / "out", to="parquet")
    assert str(raised.value).splitlines() == [
        "cannot write Parquet",
        "  found: no pyarrow",
        "  why: it is not among the packages that commtrace installs by itself",
        "  try: `pip install 'commtrace[parquet]'`, or --to csv",
    ]
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found: the formats " + ", ".join(FORMATS)):
        export(run_of(), tmp_path / "out", to="excel")


def test_pyarrow_is_no_requirement_of_anything_else() -> None:
    assert importlib.util.find_spec("commtrace") is not None
    from tests.test_imports import loaded_modules

    program = "import sys; sys.modules['pyarrow'] = None\nimport commtrace.exporters.tables"
    assert "commtrace.exporters.tables" in loaded_modules(program)
