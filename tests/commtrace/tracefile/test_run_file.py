"""run.json reads back equal; unreadable files are distinguished and errors give the place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.errors import (
    EmptyTraceError,
    NewerTraceError,
    NotATraceError,
    TraceError,
    TruncatedTraceError,
)
from commtrace.event import CommEvent
from commtrace.schema import FORMAT_VERSION
from commtrace.tracefile import read_run_file, read_trace, trace_of_rows, write_trace
from tests.commtrace.synthetic import write_synthetic_run
from tests.commtrace.tracefile.tables import TEXT, tables

_FACT = st.one_of(
    TEXT, st.integers(), st.none(), st.booleans(), st.floats(allow_nan=False), st.just(2**80)
)
FACTS = st.dictionaries(TEXT, st.one_of(_FACT, st.lists(_FACT, max_size=3)), max_size=3)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("run") / "run.json")


@given(FACTS, tables())
def test_what_is_written_reads_back_equal(facts: dict, rows: dict) -> None:
    path = Path(_folder.name) / "run.json"
    trace = trace_of_rows(facts, rows)
    back = read_run_file(write_trace(trace, path))
    assert back.run == trace.run
    assert back.tables == trace.tables
    assert back.path == path


def test_nan_is_still_nan(tmp_path: Path) -> None:
    trace = trace_of_rows({"loss": float("nan")}, {})
    assert math.isnan(read_trace(write_trace(trace, tmp_path / "run.json")).run["loss"])


@given(tables())
def test_reading_and_writing_again_gives_the_same_file(rows: dict) -> None:
    path = Path(_folder.name) / "run.json"
    write_trace(trace_of_rows({}, rows), path)
    first = path.read_bytes()
    write_trace(read_run_file(path), path)
    assert path.read_bytes() == first


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_trace(trace_of_rows({"good": 1}, {}), tmp_path / "run.json")
    with pytest.raises(TypeError):
        write_trace(trace_of_rows({"bad": object()}, {}), path)
    assert read_trace(path).run == {"good": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_truncated_anywhere_is_reported_as_truncated(run_file: Path, tmp_path: Path) -> None:
    full = run_file.read_text()
    path = tmp_path / "cut.json"
    for length in (1, 5, 20, len(full) // 2, len(full) - 1):
        path.write_text(full[:length])
        with pytest.raises(TruncatedTraceError) as error:
            read_trace(path)
        assert str(path) in str(error.value)
        assert f"character {length}" in str(error.value)


def test_no_changed_byte_of_a_file_is_believed(run_file: Path, tmp_path: Path) -> None:
    data, trace = run_file.read_bytes(), read_trace(run_file)
    path = tmp_path / "changed.json"
    for place in range(0, len(data), 97):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(TraceError):
            read_trace(path)
    for same in (data, b"\xef\xbb\xbf" + data, data + b"\n"):
        path.write_bytes(same)
        assert read_trace(path).tables == trace.tables


def test_a_change_that_leaves_valid_contents_is_named(run_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed.json"
    path.write_bytes(run_file.read_bytes().replace(b"attention", b"attentiom"))
    with pytest.raises(TruncatedTraceError, match="contents that differ from their checksum"):
        read_trace(path)
    # As other programs write it, or former versions did.
    document = json.loads(path.read_text())
    del document["crc32"]
    path.write_text(json.dumps(document))
    assert "layers.0.attentiom" in read_trace(path).tables["comm"]["module"]


def test_a_file_that_another_program_has_edited_is_read(run_file: Path, tmp_path: Path) -> None:
    document, path = json.loads(run_file.read_text()), tmp_path / "edited.json"
    document["run"]["command"] = "another.py"
    path.write_text(json.dumps(document))
    assert read_trace(path).run["command"] == "another.py"


def test_a_newer_version_is_named_before_its_checksum(run_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "newer.json"
    path.write_bytes(run_file.read_bytes().replace(b'"version":', b'"version":9', 1))
    with pytest.raises(NewerTraceError):
        read_trace(path)


def test_a_damaged_column_is_named(run_file: Path, tmp_path: Path) -> None:
    document = json.loads(run_file.read_text())
    document["tables"]["comm"]["columns"]["wire_bytes"]["data"] = "AAAA"
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(document))
    with pytest.raises(TruncatedTraceError, match=r"at: tables\.comm\.columns\.wire_bytes"):
        read_trace(damaged)


def spoiled(**changes: Any) -> str:
    document = {"format": "commtrace", "version": 1, "run": {}, "strings": [], "tables": {}}
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    "text",
    [
        spoiled(tables={"comm": {"rows": 1, "columns": {"kind": {"const": 3}}}}),
        spoiled(tables={"comm": {"columns": {}}}),
        spoiled(tables=7),
        spoiled(strings=None, tables={"comm": {"rows": 1, "columns": {"kind": {"const": 0}}}}),
        spoiled(version="1"),
        spoiled(version=0),
    ],
)
def test_a_trace_with_a_part_that_does_not_fit_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(TruncatedTraceError):
        read_trace(path)


def test_a_newer_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(f'{{"format": "commtrace", "version": {FORMAT_VERSION + 1}, "new": []}}')
    with pytest.raises(NewerTraceError) as error:
        read_trace(path)
    assert str(error.value) == (
        f"cannot read the trace {path}\n"
        f"  found: version {FORMAT_VERSION + 1} of the format\n"
        f"  why: this commtrace supports versions up to {FORMAT_VERSION}\n"
        "  try: install the commtrace that recorded it, or a newer version"
    )


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", EmptyTraceError),
        (b"step,loss\n1,2.0\n", NotATraceError),
        (b"\n\n", NotATraceError),
        (b'{"format": "chrome"}', NotATraceError),
        (b"[1, 2]", NotATraceError),
        (b"\x80\x02\x8a\nl\xfc", NotATraceError),
    ],
)
def test_a_file_of_another_kind_is_reported_to_be_one(
    content: bytes, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(error, match=f"cannot read the trace {path}"):
        read_trace(path)


def test_a_missing_file_is_reported_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="no such file"):
        read_trace(tmp_path / "run.json")


def test_a_column_that_the_file_does_not_have_is_not_known(tmp_path: Path) -> None:
    rows = [CommEvent(rank=0, payload_bytes=7, reason="a")]
    path = write_trace(trace_of_rows({}, {"comm": rows}), tmp_path / "run.json")
    document = json.loads(path.read_text())
    columns = document["tables"]["comm"]["columns"]
    assert set(columns) == {"rank", "payload_bytes", "reason"}  # the other columns are unknown
    del columns["payload_bytes"], columns["reason"]
    path.write_text(json.dumps(document))
    comm = read_trace(path).tables["comm"]
    assert (list(comm["payload_bytes"]), list(comm["reason"])) == ([-1], [""])


@pytest.fixture(autouse=True, scope="module")
def _a_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    _folder.name = str(tmp_path_factory.mktemp("files"))


class _Folder:
    """Folder of the laws; a function-scoped fixture would be shared by its examples."""

    name = ""


_folder = _Folder()
