"""Files of dumps read back as they were written, and nothing that is read is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace.errors import TraceError
from commtrace.tracefile.dump_files import (
    CALL_FIELDS,
    REQUEST,
    StackDump,
    ThreadStack,
    read_dump,
    request_dumps,
    requested,
    write_dump,
)

CALL = {name: 7 if name in ("seq", "issue_ns") else "text" for name in CALL_FIELDS}
DUMP = StackDump(
    rank=3,
    host="node0",
    pid=77,
    at_ns=1_700_000_000_000_000_000,
    request="5-6",
    threads=(ThreadStack("MainThread", 77, (("train.py", 8, "<module>"), ("x.py", 1, "f"))),),
    calls=(CALL,),
    num_left_out=2,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-00003.dump"
    write_dump(path, DUMP)
    assert read_dump(path) == DUMP


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", "3"), ("rank", 1 << 40), ("host", 3), ("threads", [{}]), ("threads", 3),
        ("threads", [{"name": "x", "native_id": 1, "frames": [["a", "b", "c"]]}]),
        ("threads", [{"name": "x", "native_id": 1, "frames": [["a", 1]]}]),
        ("calls", [{}]), ("calls", [{**CALL, "kind": []}]), ("at_ns", None), ("pid", True),
    ],
)  # fmt: skip
def test_other_values_are_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "rank-00003.dump"
    write_dump(path, DUMP)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(TraceError):
        read_dump(path)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 9000, b'{"rank":1}'])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank-00003.dump"
    path.write_bytes(data)
    with pytest.raises(TraceError):
        read_dump(path)


def test_a_request_asks_some_ranks_or_all(tmp_path: Path) -> None:
    some = request_dumps(tmp_path, [3, 1])
    path = tmp_path / REQUEST
    assert [requested(path, rank) for rank in range(4)] == ["", some, "", some]
    everyone = request_dumps(tmp_path, None)
    assert everyone != some
    assert requested(path, 2) == everyone


@pytest.mark.parametrize("data", ["", "[]", '{"id": 1}', '{"id": "x", "ranks": 5}'])
def test_other_requests_are_refused(tmp_path: Path, data: str) -> None:
    path = tmp_path / REQUEST
    path.write_text(data)
    with pytest.raises(TraceError):
        requested(path, 0)
