"""Formats that no importer reads; their files are refused by name, never read as "0 calls".

Takes the first bytes of a file, its first text, or the values in it. A table for each: the
beginning, the name of the format, and what to try. Used by `input_files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from commtrace.errors import NotATraceError

_PROFILE = "profiles that torch.profiler's export_chrome_trace wrote"
_NSYS = "`nsys export --type sqlite report.nsys-rep`, and import that file"

_BYTES: tuple[tuple[bytes, str, str], ...] = (
    (rb"PAR1", "a Parquet file", "the trace that it was made of"),
    (rb"ARROW1", "an Arrow file", "the trace that it was made of"),
    (rb"\x89HDF\r\n", "an HDF5 file", _PROFILE),
    (rb"PK\x03\x04", "a zip archive, such as a checkpoint of torch.save", "the files in it"),
    (rb"\x28\xb5\x2f\xfd", "a file compressed by zstd", "`zstd -d` first"),
    (rb"\xfd7zXZ\x00", "a file compressed by xz", "`unxz` first"),
    (rb"BZh[1-9]1AY", "a file compressed by bzip2", "`bunzip2` first"),
    (rb"7z\xbc\xaf", "an archive of 7-Zip", "the files in it"),
    (rb".{257}ustar", "a tar archive", "the files in it"),
    (rb"\x93NUMPY", "an array of NumPy", _PROFILE),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|%PDF", "an image or a PDF", "the trace that it shows"),
    (rb"\x7fELF", "a program", "the files that it wrote"),
    (rb"memray\x00?", "a capture of memray", _PROFILE),
    (rb"PERFILE2", "a recording of Linux perf", _PROFILE),
    (rb"NVR\x00", "a report of Nsight Compute", _PROFILE),
    (rb".{0,64}(?:QuadD|NsysReport|nsys-rep)", "a report of Nsight Systems", _NSYS),
    (rb".{12}\x09.{8}\x1a.brain\.Event:", "a TensorBoard event file", _PROFILE),
    (rb".{2,5}\x00{3,6}\{\"", "a file of safetensors", "the trace of the run"),
)
"""Beginnings of binary files, with the name of the format and what to try."""

_TEXTS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"(?:NCCL|RCCL) version \d",
        "the text output of NCCL RAS",
        "its counts are summarized, and its layout differs between releases",
        "`ncclras -f json`, or SET FORMAT json before VERBOSE STATUS",
    ),
    (
        r"(?:#[^\n]{0,400}\n){0,40}nccl_(?:bus_bandwidth|collective|p2p)\w{0,40}\{",
        "metrics of NCCL Inspector in the format of Prometheus",
        "they are means over many calls",
        "NCCL_INSPECTOR_PROM_DUMP=0",
    ),
    (
        r"(?:<\?xml[^>]{0,200}>\s{0,20})?(?:<!DOCTYPE svg|<svg)",
        "a picture (SVG), such as a flame graph of py-spy",
        "a picture has no calls",
        "the trace that it shows",
    ),
    (
        r"(?i:<!doctype html|<html)",
        "an HTML page",
        "a page shows a trace and is none, even if commtrace wrote it",
        "the trace that it shows",
    ),
    (r"<\?xml|<[a-zA-Z]", "an XML document", "no importer reads XML", _PROFILE),
    (
        r"[^\n;]{1,200};[^\n]{1,4000} \d{1,18}\n",
        "folded stacks, such as py-spy's raw format",
        "stacks that a profiler sampled are no calls",
        _PROFILE,
    ),
    (
        r"Traceback \(most recent call last\)",
        "a traceback of Python",
        "it has no line of torch's watchdog or NCCL",
        "the whole log of the run",
    ),
    (
        r"(?:[\w .()/%\"-]{1,60},){2,60}[\w .()/%\"-]{0,60}\r?\n",
        "a table with commas (CSV)",
        "no importer reads tables",
        _PROFILE,
    ),
)
"""Beginnings of texts, with the name of the format, the reason, and what to try."""


def require_known_bytes(data: bytes, summary: str) -> None:
    """Raise NotATraceError if a file begins like a binary format that no importer reads."""
    head = data[:_HEAD]
    for pattern, name, attempt in _BYTES:
        if re.match(pattern, head, re.DOTALL):
            raise _refused(summary, name, "no importer reads this format", attempt)
    if _is_perfetto(head):
        raise _refused(
            summary, "a trace of Perfetto (protobuf)", "no importer reads this format",
            "the JSON file of torch.profiler that it was made from, if any",
        )  # fmt: skip


def require_known_text(text: str, summary: str) -> None:
    """Raise NotATraceError if a text begins like a format that no importer reads."""
    head = text[:_HEAD].lstrip()
    for pattern, name, why, attempt in _TEXTS:
        if re.match(pattern, head):
            raise _refused(summary, name, why, attempt)


_SUFFIXES: dict[str, tuple[str, str]] = {
    ".nsys-rep": ("a report of Nsight Systems", _NSYS),
    ".qdrep": ("a report of Nsight Systems", _NSYS),
    ".qdstrm": ("a stream of Nsight Systems", "`QdstrmImporter -i FILE`, then " + _NSYS),
    ".ncu-rep": ("a report of Nsight Compute", _PROFILE),
}
"""Endings of names, for files not recognizable by content: name of the format, what to try."""


def require_known_name(path: Path, summary: str) -> None:
    """Raise NotATraceError if the name of a file shows a format that no importer reads."""
    if path.suffix in _SUFFIXES:
        name, attempt = _SUFFIXES[path.suffix]
        raise _refused(summary, name, "no importer reads this format", attempt)


_HEAD = 8192


def _is_perfetto(head: bytes) -> bool:
    """Return whether bytes are packets, each a tag, a length and as many bytes."""
    place, num = 0, 0
    while place < len(head) and num < 8:
        if head[place] != _PACKET:
            return False
        length, shift, place = 0, 0, place + 1
        while place < len(head) and shift < 35:
            length |= (head[place] & 127) << shift
            shift, place = shift + 7, place + 1
            if not head[place - 1] & 128:
                break
        place, num = place + length, num + 1
    # One that fills the head is likely too; a text may begin with a line break and little more.
    return num > 1 and b"\x00" in head


_PACKET = 0x0A


def _is_speedscope(values: Mapping[str, Any]) -> bool:
    return "speedscope" in str(values.get("$schema"))


def _is_snapshot(values: Mapping[str, Any]) -> bool:
    return {"segments", "device_traces"} <= values.keys()


_VALUES: tuple[tuple[Callable[[Mapping[str, Any]], bool], str, str], ...] = (
    (_is_speedscope, "a profile of speedscope, which py-spy writes, too", _PROFILE),
    (_is_snapshot, "a memory snapshot of torch", _PROFILE),
)


def name_of_values(values: Any) -> tuple[str, str]:
    """Return the name of the format of values, and what to try."""
    if not isinstance(values, dict):
        return f"a {type(values).__name__}", _PROFILE
    for is_one, name, attempt in _VALUES:
        if is_one(values):
            return name, attempt
    keys = ", ".join(str(key)[:40] for key in list(values)[:4])
    return f"an object with the keys {keys}" if keys else "an empty object", _PROFILE


def _refused(summary: str, name: str, why: str, attempt: str) -> NotATraceError:
    return NotATraceError(summary, found=name, why=why, attempt=attempt)
