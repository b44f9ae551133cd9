"""`commtrace export`: each format, its output file, and refusals."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commtrace.schema import TABLES
from tests.cli.conftest import Commtrace


def test_perfetto_is_written_beside_where_one_stands(
    commtrace: Commtrace, run_json: Path, tmp_path: Path
) -> None:
    ended = commtrace("export", run_json, "--to", "perfetto", columns=None)
    assert (ended.code, ended.out) == (0, "")
    assert "wrote run.perfetto.json.gz (" in ended.err
    document = json.loads(gzip.decompress((tmp_path / "run.perfetto.json.gz").read_bytes()))
    assert document["traceEvents"]


@pytest.mark.parametrize("to", ["perfetto", "speedscope"])
def test_a_file_is_written_to_the_requested_path(
    to: str, commtrace: Commtrace, run_json: Path, tmp_path: Path
) -> None:
    assert commtrace("export", run_json, "--to", to, "-o", "mine.json").code == 0
    assert json.loads((tmp_path / "mine.json").read_text())
    again = commtrace("export", run_json, "--to", to, "-o", "mine.json")
    assert (again.code, "found: an existing file" in again.err) == (2, True)
    assert commtrace("export", run_json, "--to", to, "-o", "mine.json", "--force").code == 0


def test_csv_is_a_folder_of_tables(commtrace: Commtrace, run_json: Path, tmp_path: Path) -> None:
    ended = commtrace("export", run_json, "--to", "csv", columns=None)
    assert ended.code == 0
    names = sorted(path.name for path in (tmp_path / "run-csv").iterdir())
    assert names == sorted(f"{name}.csv" for name in (*TABLES, "columns", "facts"))
    assert all(f"wrote run-csv/{name}" in ended.err for name in names)
    again = commtrace("export", run_json, "--to", "csv")
    assert (again.code, "a folder that is not empty" in again.err) == (2, True)
    assert commtrace("export", run_json, "--to", "csv", "-f").code == 0


def test_chakra_is_a_folder_of_ranks_that_import_reads(
    commtrace: Commtrace, run_json: Path, tmp_path: Path
) -> None:
    ended = commtrace("export", run_json, "--to", "chakra", columns=None)
    assert ended.code == 0
    names = sorted(path.name for path in (tmp_path / "run-chakra").iterdir())
    assert names == ["comm_group.json", *(f"trace.{rank}.et" for rank in range(len(names) - 1))]
    assert re.search(r"note: [\d,]+ dependencies between nodes, 0 of them inferred", ended.err)
    back = commtrace("import", "run-chakra", "-o", "back.json", columns=None)
    assert (back.code, "from Chakra" in back.err) == (0, True)
    calls = [
        commtrace("dump", path, "comm", "--csv", columns=None).out
        for path in (run_json, "back.json")
    ]
    assert len(calls[0].splitlines()) == len(calls[1].splitlines())


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from commtrace_cli.main import main
main()
"""


def test_parquet_without_pyarrow_ends_with_2(run_json: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PYARROW, "export", str(run_json), "--to", "parquet"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "try: `pip install 'commtrace[parquet]'`, or --to csv" in " ".join(ended.stderr.split())


def test_a_format_must_be_one_that_there_is(commtrace: Commtrace, run_json: Path) -> None:
    assert commtrace("export", run_json, "--to", "excel").code == 2
    assert commtrace("export", run_json).code == 2


def test_what_is_no_trace_is_refused(commtrace: Commtrace, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert commtrace("export", "x.json", "--to", "csv").code == 3
    assert not (tmp_path / "x-csv").exists()
