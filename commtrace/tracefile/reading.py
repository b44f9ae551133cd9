"""Reading of untrusted files: bounds on memory, and a single boundary that converts all errors.

A file's claims about its size are not trusted. A path is opened only if it is a regular file.
Decompressed data and decoded rows are charged to an `Allowance` before memory is allocated:

    an allowance = 64 MiB + 100 x size of the file, 4 GiB at most

COMMTRACE_READ_LIMIT (bytes, or `16GiB`) replaces it for trusted files. Inside `reading(...)` every
failure becomes a TraceError with its four parts, and hence exit code 3.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from commtrace.errors import (
    CommtraceError,
    NotATraceError,
    OversizedTraceError,
    TraceError,
    TruncatedTraceError,
    UsageError,
)
from commtrace.units import text_of_bytes

LIMIT_VARIABLE = "COMMTRACE_READ_LIMIT"

MAX_DEPTH = 64
"""Maximum nesting of lists and objects in JSON or in a pickle."""

GZIP, ZLIB = 31, 15
"""Window bits of zlib for either container."""

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""

_FLOOR_BYTES = 64 << 20
_FACTOR = 200
_MOST_BYTES = 4 << 30
BYTES_PER_VALUE = 64
_CHUNK_BYTES = 1 << 20
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_DAMAGED = "the file was truncated or modified after it was written"
_COPY_AGAIN = "copy it again, or record the run again"


class DamageError(ValueError):
    """Damage at a place in a file; `reading` turns it into a TraceError."""

    def __init__(self, found: str, place: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.place = place


class MoreThanError(DamageError):
    """Compressed data holds more than it may."""


@contextmanager
def reading(summary: str) -> Iterator[None]:
    """Convert every failure of the body into a TraceError that begins with `summary`."""
    try:
        yield
    except CommtraceError:
        # First, since some of these are OSErrors as well.
        raise
    except DamageError as error:
        raise TruncatedTraceError(
            summary, place=error.place, found=error.found, why=_DAMAGED, attempt=_COPY_AGAIN
        ) from error
    except OSError as error:
        raise TraceError(
            summary,
            found=(error.strerror or str(error)).lower(),
            why="the file cannot be opened or read",
            attempt="pass a regular, readable file",
        ) from error
    except MemoryError as error:
        raise OversizedTraceError(
            summary,
            found="contents larger than the available memory",
            why="the contents take many times the size of the file",
            attempt="read it on a machine with more memory, or record less",
        ) from error
    except RecursionError as error:
        raise TruncatedTraceError(
            summary, found="values that are nested too deeply", why=_DAMAGED, attempt=_COPY_AGAIN
        ) from error
    except Exception as error:  # a reader met values that it did not foresee
        text = " ".join(str(error).split())[:200]
        raise TruncatedTraceError(
            summary,
            place=_place_of(error),
            found=f"{type(error).__name__}: {text}",
            why=_DAMAGED,
            attempt=_COPY_AGAIN,
        ) from error


def _place_of(error: BaseException) -> str:
    """Return the line of the reader that failed, for bug reports."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "commtrace" in code.co_filename:
            place = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"the reader's {place}" if place else ""


class Allowance:
    """Memory budget for the contents of a file."""

    __slots__ = ("left", "num_bytes", "summary", "total")

    def __init__(self, summary: str, num_bytes: int) -> None:
        self.summary = summary
        self.renew(num_bytes)

    def renew(self, num_bytes: int) -> None:
        """Set the budget for further contents of the file."""
        self.num_bytes = num_bytes
        limit = _limit()
        if limit is None:
            limit = min(_FLOOR_BYTES + _FACTOR * num_bytes, _MOST_BYTES)
        self.total = self.left = limit

    def take(self, num_bytes: int, contents: str, place: str = "") -> None:
        """Charge `num_bytes` for `what`; raise OversizedTraceError if the budget is exceeded."""
        if num_bytes > self.left:
            self.refuse(f"{contents}: {text_of_bytes(num_bytes)} of memory", place)
        self.left -= num_bytes

    def inflate(self, data: bytes, *, container: int = ZLIB, place: str = "") -> bytes:
        """Inflate within the remaining budget, and charge it."""
        try:
            inflated = inflate(data, self.left, container=container)
        except MoreThanError as error:
            self.refuse(error.found, place)
        self.left -= len(inflated)
        return inflated

    def refuse(self, found: str, place: str = "") -> NoReturn:
        """Raise OversizedTraceError for a file that claims to hold more than is plausible."""
        raise OversizedTraceError(
            self.summary,
            place=place,
            found=found,
            why=f"a file of {text_of_bytes(self.num_bytes)} may take {text_of_bytes(self.total)} "
            "of memory: a larger claim means that the file is damaged or malicious",
            attempt=f"{LIMIT_VARIABLE}=16GiB, if you trust the file",
        )


def _limit() -> int | None:
    """Return the limit that the user has set, or None."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise UsageError(
            f"cannot read files with {LIMIT_VARIABLE}={text}",
            found="not a number of bytes",
            attempt=f"{LIMIT_VARIABLE}=16GiB",
        )
    return int(found[1]) << _POWERS[found[2].upper()]


def read_file(path: Path, summary: str) -> bytes:
    """Read a regular file; devices, pipes, sockets and folders are refused without opening them."""
    with _opened(path, summary) as stream:
        return _all_of(stream, os.fstat(stream.fileno()).st_size, summary)


def read_head(path: Path, num_bytes: int, summary: str) -> bytes:
    """Read the first bytes of a regular file, decompressed; no more than `num_bytes` of either.

    If compressed data is damaged, return the bytes before the damage.
    """
    with _opened(path, summary) as stream:
        data = stream.read(num_bytes)
    if not data.startswith(GZIP_MAGIC):
        return data
    with suppress(zlib.error):
        return zlib.decompressobj(GZIP).decompress(data, num_bytes)
    return b""


@contextmanager
def _opened(path: Path, summary: str) -> Iterator[io.RawIOBase]:
    with reading(summary):
        _require_regular(os.stat(path).st_mode, summary)
        # It may have become a pipe since; opening that without O_NONBLOCK waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as stream:
            _require_regular(os.fstat(descriptor).st_mode, summary)
            yield stream


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def _require_regular(mode: int, summary: str) -> None:
    if not stat.S_ISREG(mode):
        raise NotATraceError(
            summary,
            found=_KINDS.get(stat.S_IFMT(mode), "not a file"),
            why="only regular files are read",
            attempt="write the contents to a file first",
        )


def _all_of(stream: io.RawIOBase, size: int, summary: str) -> bytes:
    """Read a file that may be longer than its size says."""
    most = _limit() or _MOST_BYTES
    parts: list[bytes] = []
    # At least one byte, since an empty read means the end of the file.
    total, ask_for = 0, size + 1
    while total <= most >= size:
        part = stream.read(ask_for)
        if not part:
            return b"".join(parts)
        parts.append(part)
        total, ask_for = total + len(part), _CHUNK_BYTES
    Allowance(summary, max(size, total)).refuse(text_of_bytes(max(size, total)))


def inflate(data: bytes, most: int, *, container: int = ZLIB) -> bytes:
    """Inflate compressed bytes.

    Raises:
        DamageError: the data is damaged or breaks off.
        MoreThanError: the data holds more than `most` bytes.
    """
    parts: list[bytes] = []
    total = 0
    while data:
        machine = zlib.decompressobj(container)
        while not machine.eof:
            try:
                # One byte beyond the limit shows that there is more. A length of 0 is no limit.
                part = machine.decompress(data, min(_CHUNK_BYTES, most - total + 1))
            except zlib.error as error:
                raise DamageError(f"damaged compressed data: {error}") from error
            if not part and not machine.eof:
                raise DamageError("truncated compressed data")
            parts.append(part)
            total += len(part)
            if total > most:
                raise MoreThanError(f"data that inflates to more than {text_of_bytes(most)}")
            data = machine.unconsumed_tail
        # A gzip file may have several members, and zeros as padding.
        data = machine.unused_data.lstrip(b"\0") if container == GZIP else b""
    return b"".join(parts)


def text_in(data: bytes, place: str = "") -> str:
    """Decode UTF-8, with or without a byte order mark; raise DamageError if it is not valid."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamageError("bytes that are not valid UTF-8", f"byte {error.start}") from error


def parse_json(text: str, allowance: Allowance | None = None) -> Any:
    """Parse JSON text; an object must not repeat a name.

    Raises:
        ValueError: the text is not valid JSON, or an object repeats a name.
        RecursionError: values are nested too deep.
    """
    if allowance is not None:
        # An upper bound on the number of values, known before any of them takes memory.
        most = text.count(",") + text.count("[") + text.count("{")
        allowance.take(most * BYTES_PER_VALUE, f"{most:,} values")
    value = _DECODER.decode(text)
    check_depth(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{duplicate[:60]!r} occurs twice in the same object")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once, strict=False)


def check_depth(value: Any, most: int = MAX_DEPTH) -> None:
    """Raise RecursionError if lists and dictionaries are nested deeper than `most`."""
    level = [[value]]
    for _ in range(most + 1):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, (dict, list, tuple))
        ]
        if not level:
            return
    raise RecursionError(f"values nested deeper than {most}")


def is_int(value: Any) -> TypeGuard[int]:
    """Return whether a value is a 64-bit integer; `True` is not."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def distinct(strings: list[str]) -> list[str]:
    """Return `strings`; raise DamageError for duplicates: columns compare strings by index."""
    if len(set(strings)) < len(strings):
        duplicate = next(each for each, num in Counter(strings).items() if num > 1)
        raise DamageError(f"{duplicate[:60]!r} twice", "strings")
    return strings
