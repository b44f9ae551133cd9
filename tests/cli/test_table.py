"""`commtrace table`: any table of the catalog, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.tracefile import write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, kernel, trace_of


def test_without_a_name_all_tables_are_listed(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("table", run_json, columns=140)
    assert ended.code == 0
    for name, analysis in CATALOG.items():
        assert any(line.startswith(f"{name} ") for line in ended.out.splitlines()), name
        assert analysis.question in ended.out


def test_numbers_that_say_what_a_row_is_about_are_shown(
    commtrace: Commtrace, run_json: Path
) -> None:
    ended = commtrace("table", run_json, "by_group", columns=140)
    assert "group_size" in ended.out
    for value in CATALOG["by_group"].function(load(run_json))["group_size"]:
        assert f" {value} " in ended.out


def test_a_source_line_is_one_column(commtrace: Commtrace, run_json: Path) -> None:
    out = commtrace("table", run_json, "by_source", columns=140).out
    table = CATALOG["by_source"].function(load(run_json))
    keys = table[["source_file", "source_line", "source_function"]]
    for file, line, function in keys.itertuples(index=False):
        assert f"\n{file}:{line} {function} " in out


@pytest.mark.parametrize("device_ns", [3_000, -1])
def test_times_on_devices_are_shown_if_known(
    commtrace: Commtrace, tmp_path: Path, device_ns: int
) -> None:
    path = write_trace(trace_of([call(device_ns=device_ns)]), tmp_path / "run.json")
    out = commtrace("table", path, "by_source", columns=140).out
    assert ("on the device" in out, "1.5 µs" in out) == (device_ns >= 0, device_ns >= 0)


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("columns", [80, 140])
def test_every_table_fits_the_terminal(
    commtrace: Commtrace, run_json: Path, name: str, columns: int
) -> None:
    ended = commtrace("table", run_json, name, columns=columns)
    assert ended.code == 0
    assert max(len(line) for line in ended.out.splitlines()) <= columns


@pytest.mark.parametrize("name", CATALOG)
def test_csv_and_json_are_the_analysis_itself(
    commtrace: Commtrace, run_json: Path, name: str
) -> None:
    table = CATALOG[name].function(load(run_json))
    rows = list(csv.reader(io.StringIO(commtrace("table", run_json, name, "--csv").out)))
    assert rows[0] == list(table.columns)
    assert len(rows) == 1 + len(table)
    document = json.loads(commtrace("table", run_json, name, "--json").out)
    assert len(document[name]["rows"]) == len(table)
    assert list(document[name]["columns"]) == list(table.columns)


def test_a_table_is_found_by_its_former_name(commtrace: Commtrace, run_json: Path) -> None:
    former = commtrace("table", run_json, "latecomers", "--csv")
    assert former.code == 0
    assert former.out == commtrace("table", run_json, "stragglers", "--csv").out


def test_a_table_that_does_not_exist_is_refused(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("table", run_json, "by_moon")
    assert (ended.code, ended.out) == (2, "")
    found = f"  found: the tables {', '.join(CATALOG)}\n"
    assert ended.err == f"error: no table 'by_moon'\n{found}  try: one of them\n"
    ended = commtrace("table", run_json, "by_modul")
    assert ended.err == f"error: no table 'by_modul'\n{found}  try: by_module\n"


def test_columns_and_rows_that_do_not_fit_are_named(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("table", run_json, "calls", "--rows", "2")
    assert "118 more rows: --rows 120" in ended.out
    assert "columns omitted (" in ended.out
    assert "in a wider terminal, or with --csv" in " ".join(ended.out.split())


def test_devices_are_shown_without_any_communication(commtrace: Commtrace, tmp_path: Path) -> None:
    kernels = [kernel(at=0, until=600), kernel(at=600, until=900, name="void x::fast_nccl()")]
    rows = [each._replace(id=number) for number, each in enumerate(kernels)]
    path = write_trace(trace_of(kernels=rows, num_ranks=1), tmp_path / "device.json")
    ended = commtrace("table", path, "gpu_time", columns=160)
    assert " all " in ended.out
    assert "100.0%" in ended.out
    ended = commtrace("table", path, "kernel_patterns", columns=160)
    assert "'*x::fast_nccl*' = \"KIND\"" in ended.out
    assert "all" not in commtrace("table", path, "by_rank", columns=160).out.split()
