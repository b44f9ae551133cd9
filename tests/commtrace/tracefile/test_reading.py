"""Reading is bounded: declared sizes are not trusted, and every failure becomes a TraceError."""

from __future__ import annotations

import base64
import gzip
import json
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.errors import (
    InvalidTraceError,
    NotATraceError,
    OversizedTraceError,
    TraceError,
    TruncatedTraceError,
)
from commtrace.importers import import_trace
from commtrace.schema import TABLES
from commtrace.tracefile import read_trace
from commtrace.tracefile.reading import (
    GZIP,
    LIMIT_VARIABLE,
    Allowance,
    inflate,
    parse_json,
    read_file,
    reading,
)
from commtrace.tracefile.spool import spool_name
from dtensor_core.testing import fake_world
from tests.commtrace.synthetic import write_synthetic_run, write_synthetic_spools

MOST_BYTES = 200 << 20


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_synthetic_run(tmp_path / "run.json", world_size=2, num_steps=1, num_layers=1)


def changed(path: Path, change: Any) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def refused(path: Path, error: type[TraceError] = TraceError) -> str:
    """Text of the error that a trace is refused with, using little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as raised:
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    text = str(raised.value)
    assert all(f"\n  {part}: " in text for part in ("found", "why", "try")), text
    return text


@pytest.mark.parametrize("rows", [250_000_000, 1 << 62, -1, None, "7", True, 2.5])
def test_a_number_of_rows_is_checked_before_there_is_memory_for_them(
    run_file: Path, rows: Any
) -> None:
    def claim(document: dict[str, Any]) -> None:
        document["tables"]["comm"] = {"rows": rows, "columns": {}}

    assert "tables.comm" in refused(changed(run_file, claim))


def test_a_column_inflates_to_its_rows_and_no_further(run_file: Path) -> None:
    bomb = base64.b64encode(zlib.compress(b"\0" * (300 << 20))).decode()

    def inflate(document: dict[str, Any]) -> None:
        document["tables"]["comm"]["columns"]["id"] = {"width": 8, "data": bomb}

    text = refused(changed(run_file, inflate), TruncatedTraceError)
    assert "at: tables.comm.columns.id" in text
    assert "inflates to more than" in text


def test_what_a_file_may_hold_grows_with_its_size_and_with_what_the_user_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Allowance("x", 2_000_000).total == (64 << 20) + 400_000_000
    assert Allowance("x", 1 << 40).total == 4 << 30
    monkeypatch.setenv(LIMIT_VARIABLE, "16GiB")
    assert Allowance("x", 10).total == 16 << 30
    monkeypatch.setenv(LIMIT_VARIABLE, "plenty")
    with pytest.raises(Exception, match="not a number of bytes"):
        Allowance("x", 10)


def test_a_gzip_of_blanks_is_refused_with_the_way_to_allow_it(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b" " * (300 << 20)))
    with pytest.raises(OversizedTraceError, match=f"{LIMIT_VARIABLE}=16GiB"):
        import_trace([path])


def test_data_compressed_in_several_parts_is_read_completely() -> None:
    data = gzip.compress(b"a" * 100) + gzip.compress(b"b" * 100) + b"\0\0"
    assert inflate(data, 200, container=GZIP) == b"a" * 100 + b"b" * 100


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "nothing", "sparse"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, inside: bool) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=2)
    path = folder / spool_name(7)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path, "nothing": "nowhere"}[kind])
    if not (kind == "folder" and not inside):
        refused(folder if inside else path)
    if kind != "folder":
        with pytest.raises(TraceError):
            import_trace([folder if inside else path])


@pytest.mark.parametrize(
    "error", [KeyError("x"), IndexError(), ZeroDivisionError(), OverflowError(), UnicodeError("u"),
              OSError(5, "Input/output error"), MemoryError(), RecursionError(), AssertionError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_fails_while_reading_becomes_a_trace_error(error: BaseException) -> None:
    with pytest.raises(TraceError) as raised, reading("cannot read x"):
        raise error
    assert raised.value.exit_code == 3
    assert raised.value.__cause__ is error
    assert all((raised.value.found, raised.value.why, raised.value.attempt))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1, "a": 2}', ValueError),
        ("[" * 100 + "]" * 100, RecursionError),
        ("[" * 100_000, RecursionError),
        ("1" * 5000, ValueError),
    ],
)
def test_json_that_means_two_things_or_none_is_refused(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_json(text)


def test_a_byte_order_mark_is_no_fault(run_file: Path) -> None:
    before = read_trace(run_file)
    run_file.write_bytes(b"\xef\xbb\xbf" + run_file.read_bytes())
    assert read_trace(run_file).tables == before.tables


def test_true_is_no_version(run_file: Path) -> None:
    refused(changed(run_file, lambda document: document.update(version=True)), TruncatedTraceError)


def test_a_spool_with_right_checksums_and_wrong_facts_is_not_taken_for_a_missing_one(
    tmp_path: Path,
) -> None:
    from tests.fuzz.mutations import _batch

    folder = write_synthetic_spools(tmp_path / "spools", world_size=2)
    path = folder / spool_name(1)
    data = path.read_bytes()
    head = json.dumps({"facts": {"rank": "1"}, "strings": [], "tables": {}}).encode()
    path.write_bytes(data + _batch(len(head).to_bytes(4, "little") + head))
    assert "at: facts.rank" in refused(folder, InvalidTraceError)
    path.write_bytes(data + _batch(b"\x09\0\0\0{}"))
    assert "its head" in refused(folder, TruncatedTraceError)


def test_a_name_that_nobody_may_read_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="only regular files"):
        read_file(tmp_path, "cannot read x")
    refused(tmp_path / ("x" * 300))


def test_a_spool_of_many_alike_calls_may_take_the_memory_that_its_rows_take() -> None:
    number, tensor = 20_000, torch.ones(4)
    with fake_world(4), commtrace.record(detail="collective") as recording:
        for _ in range(number):
            dist.all_reduce(tensor)
    (spool,) = recording._output.buffer.contents()
    bytes_per_row = 8 * len(TABLES["comm"])
    much_more = 200
    allowance = Allowance("a spool", much_more * len(spool))
    assert allowance.total > 1.5 * much_more * number * bytes_per_row
