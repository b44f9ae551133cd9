"""Files that no importer reads are refused by what they are."""

from __future__ import annotations

import json
import pickle
import sqlite3
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from commtrace.errors import NotATraceError
from commtrace.importers import import_trace


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _tensorboard() -> bytes:
    event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2"
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def _perfetto() -> bytes:
    packets = [b"\x10\x01" + b"\0" * size for size in (3, 300, 40)]
    return b"".join(b"\x0a" + _varint(len(each)) + each for each in packets)


def _zip(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "x")
    return path.read_bytes()


def _array(path: Path) -> bytes:
    np.save(path.with_suffix(".npy"), np.zeros(3))
    return path.with_suffix(".npy").read_bytes()


def _database(path: Path) -> bytes:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE apples (id INT)")
    return path.read_bytes()


SPEEDSCOPE = {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}
SNAPSHOT = {"segments": [], "device_traces": [], "allocator_settings": {}}
CONTENTS: dict[str, tuple[bytes, str]] = {
    "tensorboard": (_tensorboard(), "a TensorBoard event file"),
    "perfetto": (_perfetto(), r"a trace of Perfetto \(protobuf\)"),
    "html": (b"\n<!doctype html><html>", "an HTML page"),
    "svg": (b'<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C//DTD">', r"a picture \(SVG\)"),
    "xml": (b"<?xml version='1.0'?><trace/>", "an XML document"),
    "folded": (b"main (a.py:1);step (a.py:2) 17\nmain (a.py:1) 3\n", "folded stacks"),
    "csv": (b"Start (ns),Duration (ns),Name\n1,2,x\n", r"a table with commas \(CSV\)"),
    "speedscope": (json.dumps(SPEEDSCOPE).encode(), "a profile of speedscope"),
    "snapshot": (pickle.dumps(SNAPSHOT), "a memory snapshot of torch"),
    "traceback": (b"Traceback (most recent call last):\n  File x\n", "a traceback of Python"),
    "memray": (b"memray\0\0\1", "a capture of memray"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "a file compressed by zstd"),
    "parquet": (b"PAR1\x15\x04PAR1", "a Parquet file"),
    "elf": (b"\x7fELF\x02\x01", "a program"),
    "ras": (b"NCCL version 2.28.3 compiled\nJob summary\n", "the text output of NCCL RAS"),
    "numbers": (b"[1, 2]", "a list"),
    "nothing": (b"{}", "an empty object"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    content, found = CONTENTS[name]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(NotATraceError, match=f"found: {found}"):
        import_trace([tmp_path / "file"])


@pytest.mark.parametrize(
    ("write", "found"),
    [(_zip, "a zip archive"), (_array, "an array of NumPy"), (_database, "a database of SQLite")],
)
def test_files_that_libraries_wrote_are_refused_by_their_names(
    write, found: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(write(tmp_path / "made"))
    with pytest.raises(NotATraceError, match=f"found: {found}"):
        import_trace([tmp_path / "file"])


def test_a_text_with_line_breaks_is_no_trace_of_perfetto(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("\n\n\nhello\n")
    with pytest.raises(NotATraceError, match="its first line"):
        import_trace([tmp_path / "file"])


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep", ".qdstrm"])
def test_a_report_of_nsight_systems_is_known_by_its_name_and_can_be_exported(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"report{suffix}"
    path.write_bytes(bytes(range(1, 256)) * 4)
    with pytest.raises(NotATraceError, match="Nsight Systems") as caught:
        import_trace([path])
    assert "nsys export --type sqlite" in str(caught.value)
