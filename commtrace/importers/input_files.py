"""Files to be imported: found, read, and classified by their contents.

Takes paths and returns a `Document` for each file, with its `format` and the rank in its name, if
any. A file's type is determined by its bytes, not by its name or suffix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar

from commtrace.errors import EmptyTraceError, NotATraceError, TraceError, TruncatedTraceError
from commtrace.importers.delimited_messages import is_chakra_trace, is_group_file
from commtrace.importers.log_lines import has_log_lines
from commtrace.importers.plain_pickle import BrokenPickleError, ForbiddenNameError, load_plain
from commtrace.importers.unsupported_formats import (
    name_of_values,
    require_known_bytes,
    require_known_name,
    require_known_text,
)
from commtrace.schema import MAX_RANKS
from commtrace.torch_names import NOT_KNOWN
from commtrace.tracefile.reading import (
    BYTES_PER_VALUE,
    GZIP,
    GZIP_MAGIC,
    Allowance,
    DamageError,
    MoreThanError,
    parse_json,
    read_file,
    read_head,
    reading,
)
from commtrace.units import counted

PROFILER = "torch.profiler"
FLIGHT_RECORDER = "flight recorder"
INSPECTOR = "NCCL Inspector"
RAS = "NCCL RAS"
LOG = "log lines"
EXECUTION = "execution trace"
NSYS = "Nsight Systems"
CHAKRA = "Chakra"

_PICKLE = b"\x80"
_SQLITE = b"SQLite format 3\0"
_EVENTS = '"traceEvents"'
_SUPPORTED = (
    "supported are chrome traces of torch.profiler (.json, .json.gz), flight-recorder dumps "
    "(JSON or pickle), the logs of NCCL Inspector (JSON), the JSON output of `ncclras`, torch's "
    "ExecutionTrace (JSON), Chakra's execution traces, SQLite exports of Nsight Systems, and text "
    "with lines of torch's watchdog or of NCCL_DEBUG=INFO"
)
_NAME_FILES = "pass the files that the ranks wrote"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """A file: the text of a chrome trace, the bytes of Inspector's log, or the values of others.

    The text of a chrome trace is None until `loaded` reads it, so that only one is in memory at a
    time, and only while its events are read.
    """

    path: Path
    format: str
    content: Any

    @property
    def rank_in_name(self) -> int:
        """Global rank in the file's name, `rank3` or `rank_3`; -1 if none.

        torch appends the rank to any prefix of a dump, `trace_3`. A date, a time or a process id is
        not a rank, nor is a rank within a host, `local_rank_3`.
        """
        numbers = {int(number) for number in _RANK.findall(self.path.name)}
        is_at_end = self.format in (FLIGHT_RECORDER, CHAKRA) and not numbers
        ends = is_at_end and _AT_THE_END.fullmatch(self.path.name)
        numbers |= {int(ends[1])} if ends else set()
        rank = numbers.pop() if len(numbers) == 1 else NOT_KNOWN
        return rank if rank < MAX_RANKS else NOT_KNOWN


_RANK = re.compile(
    r"(?<![a-z])(?<!local[_\-.])(?<!node[_\-.])(?<!group[_\-.])rank[_\-.= ]?(\d{1,18})(?!\d)",
    re.IGNORECASE | re.ASCII,
)


_AT_THE_END = re.compile(
    r"(?!.*(?:local|node|group)[_\-.]?rank)(?:.*\D)?(\d{1,6})(?:\.[a-z_]+)*",
    re.IGNORECASE | re.ASCII,
)


Reduce = Callable[["Document"], Any]
"""Function that returns the part of a file's contents that is needed."""


def documents_of(
    sources: Iterable[Path | str], reduced: Mapping[str, Reduce] | None = None
) -> tuple[list[Document], list[str]]:
    """Read the files named by `sources`, and all files in folders; they must share one format.

    A file that is empty or cut off, as a killed process leaves it, is left out if others are whole;
    chrome traces are read later, by `kineto.importer`.

    Args:
        sources: Files and folders.
        reduced: By format, the function whose result replaces a file's contents, to save memory.

    Returns:
        The files, and a sentence for each reason why files were left out.

    Raises:
        TraceError: names the file that cannot be imported, and the reason.
    """
    documents, left_out = whole_ones(
        (path, partial(_classified, path, reduced or {})) for path in _files_of(sources)
    )
    formats = {document.format: document.path for document in documents}
    if len(formats) > 1:
        found = "; ".join(f"{path} of {name}" for name, path in formats.items())
        raise TraceError(
            "cannot import files of several formats as one trace",
            found=found,
            why="a call in both would be counted twice",
            attempt="import each format separately",
        )
    return documents, left_out


def whole_ones(reads: Iterable[tuple[Path, Callable[[], T]]]) -> tuple[list[T], list[str]]:
    """Read files; leave out files that are empty or cut off if others are whole.

    Args:
        reads: Each file and the function that reads it.

    Returns:
        The results, and a sentence for each reason why files were left out.

    Raises:
        TraceError: for the first file if none is whole, or for a file damaged in another way.
    """
    results: list[T] = []
    damaged: list[tuple[Path, TraceError]] = []
    for path, read in reads:
        try:
            results.append(read())
        except (EmptyTraceError, TruncatedTraceError) as error:
            damaged.append((path, error))
    if damaged and not results:
        raise damaged[0][1]
    firsts = {error.found: path for path, error in reversed(damaged)}
    num = Counter(error.found for _, error in damaged)
    return results, [
        f"the contents of {counted(num[found], 'file')} that had to be left out, {found}: "
        f"{firsts[found].name}{', ...' if num[found] > 1 else ''}"
        for found in num
    ]


def _classified(path: Path, reduced: Mapping[str, Reduce]) -> Document:
    """Return a file, without its content if that is the text of a chrome trace.

    The head of a chrome trace mostly identifies it. A dump is small, and is read at once.
    """
    head = read_head(path, _HEAD_BYTES, f"cannot import {path}")
    if head.startswith(_SQLITE):
        return Document(path, NSYS, None)
    if not head.startswith(_PICKLE) and _is_chrome_trace(head.decode("utf-8-sig", "replace")):
        return Document(path, PROFILER, None)
    document = read_document(path)
    if document.format in reduced:
        return replace(document, content=reduced[document.format](document))
    return replace(document, content=None) if document.format == PROFILER else document


_HEAD_BYTES = 1 << 20


def _is_chrome_trace(text: str) -> bool:
    """Return whether a text, or the head of a text, belongs to a chrome trace."""
    begin = _JSON.match(text)
    return begin is not None and (begin[0][-1] == "[" or _EVENTS in text)


# A log may begin with `[rank0]:`, and a list of events with `[`.
_JSON = re.compile(r"\s*(?:\{|\[(?=\s*(?:\{|\]|$)))")


def loaded(document: Document) -> Document:
    """Return a document with its content.

    Raises:
        TraceError: the file has been replaced meanwhile.
    """
    if document.content is not None:
        return document
    found = read_document(document.path)
    if found.format != document.format:
        raise TraceError(
            f"cannot import {document.path}",
            found=f"a file of {found.format}, previously of {document.format}",
            why="it was replaced while it was read",
            attempt="import it again",
        )
    return found


def _files_of(sources: Iterable[Path | str]) -> list[Path]:
    found: list[Path] = []
    for source in map(Path, sources):
        with reading(f"cannot import {source}"):
            if source.is_dir():
                inside = (path for path in source.iterdir() if path.name[0] != ".")
                found += sorted(path for path in inside if not path.is_dir())
            elif source.exists() or source.is_symlink():
                found.append(source)
            else:
                raise NotATraceError(
                    f"cannot import {source}",
                    found="no such file or folder",
                    why=_SUPPORTED,
                    attempt=_NAME_FILES,
                )
    if not found:
        raise EmptyTraceError(
            "nothing to import",
            found="no file",
            why="hidden files and subfolders are ignored",
            attempt=_NAME_FILES,
        )
    return list(dict.fromkeys(found))


def read_document(path: Path) -> Document:
    """Read a file and classify it by its contents.

    Raises:
        TraceError: the file has another format; says which.
    """
    summary = f"cannot import {path}"
    data = read_file(path, summary)
    allowance = Allowance(summary, len(data))
    with reading(summary):
        if data.startswith(GZIP_MAGIC):
            data = _inflated(data, allowance)
        if not data:
            raise EmptyTraceError(
                summary,
                found="an empty file",
                why="its writer was interrupted, or the disk was full",
                attempt="record it again",
            )
        if is_chakra_trace(data):  # whose first length may be the first byte of a pickle
            return Document(path, CHAKRA, data)
        if data.startswith(_PICKLE):
            return _of_values(path, _unpickled(data, summary, allowance), summary)
        if _INSPECTOR.search(data, 0, _HEAD_BYTES):
            return Document(path, INSPECTOR, data)
        require_known_bytes(data, summary)
        # The text takes more memory than its bytes, once a character needs more than one.
        allowance.take((_width_of(data) - 1) * len(data), "text")
        text = data.decode("utf-8-sig", "replace")
        num_bytes = allowance.num_bytes
        del data
        if greeting := _GREETING.match(text):
            text = text[greeting.end() :]
        if _is_chrome_trace(text):
            num_events = text.count('"ph"')
            Allowance(summary, num_bytes).take(num_events * _EVENT_BYTES, f"{num_events:,} events")
            return Document(path, PROFILER, text)
        if _JSON.match(text) is None:
            if has_log_lines(text):
                return Document(path, LOG, text)
            require_known_text(text, summary)
            require_known_name(path, summary)
        return _of_values(path, _parsed(text, summary, allowance), summary)


# The first keys of a line, in the order in which Inspector writes them.
_INSPECTOR = re.compile(
    rb'^\s*\{\s*"(?:header"\s*:\s*\{\s*"id"|(?:coll|p2p)_perf"|proxy_trace")', re.MULTILINE
)

_GREETING = re.compile(r"(?:SERVER PROTOCOL \d+\r?\n|OK\r?\n)+")
"""Answers of NCCL RAS at its socket that precede the answer to the request."""


def _width_of(data: bytes) -> int:
    """Return the bytes that a character of the decoded text takes in memory."""
    if data.isascii():
        return 1
    return 4 if _ASTRAL.search(data) else 2


_ASTRAL = re.compile(rb"[\xf0-\xff]")
_EVENT_BYTES = 300


def _inflated(data: bytes, allowance: Allowance) -> bytes:
    try:
        return allowance.inflate(data, container=GZIP)
    except DamageError as error:
        raise TruncatedTraceError(
            allowance.summary,
            found=f"truncated gzip data: {error.found}",
            why="the end is missing, or the file was modified",
            attempt="copy it again",
        ) from error


def _unpickled(data: bytes, summary: str, allowance: Allowance) -> Any:
    try:
        return load_plain(data, allowance.left // BYTES_PER_VALUE)
    except ForbiddenNameError as error:
        raise TraceError(
            summary,
            found=f"a pickle that loads {error.name}",
            why="a dump holds plain values only; anything else could run code and was not loaded",
            attempt="check the origin of the file before opening it with another tool",
        ) from error
    except BrokenPickleError as error:
        raise TruncatedTraceError(
            summary,
            found=f"a truncated or invalid pickle ({error})",
            why=_SUPPORTED,
            attempt="copy it again",
        ) from error
    except MoreThanError as error:
        allowance.refuse(error.found)


def _parsed(text: str, summary: str, allowance: Allowance) -> Any:
    try:
        try:
            return parse_json(text, allowance)
        except ValueError:
            if '"communicators"' not in text[:4096]:
                raise
            return parse_json(_LACKING_COMMA.sub(r"\1,\2", text), allowance)
    except ValueError as error:
        begins = text[:40].splitlines()[0] if text[:40].strip() else ""
        if text.lstrip()[:1] == "{":
            is_truncated = isinstance(error, JSONDecodeError)
            raise TruncatedTraceError(
                summary,
                place=str(error) if is_truncated else "",
                found="truncated JSON" if is_truncated else str(error),
                why="a dump is one complete JSON document",
                attempt="copy it again",
            ) from error
        raise NotATraceError(
            summary, place="its first line", found=repr(begins), why=_SUPPORTED, attempt=_NAME_FILES
        ) from error


# Some builds of NCCL 2.28 leave out the comma behind a field of a missing rank.
_LACKING_COMMA = re.compile(r'([0-9"el])(\s*\n\s*"[a-z_]+":)')


def _of_values(path: Path, values: Any, summary: str) -> Document:
    if isinstance(values, dict) and isinstance(values.get("communicators"), list):
        return Document(path, RAS, values)
    if isinstance(values, dict) and isinstance(values.get("nodes"), list) and "schema" in values:
        return Document(path, EXECUTION, values)
    if is_group_file(values):
        return Document(path, CHAKRA, values)
    return Document(path, FLIGHT_RECORDER, _dump_in(values, summary))


def _dump_in(values: Any, summary: str) -> dict[str, Any]:
    if isinstance(values, dict) and values.get("format") == "commtrace":
        raise NotATraceError(
            summary,
            found="a trace of commtrace",
            why="commands read it without an import",
            attempt="`commtrace summary` with that file",
        )
    if not isinstance(values, dict) or not {"pg_config", "entries"} & set(values):
        found, attempt = name_of_values(values)
        raise NotATraceError(summary, found=found, why=_SUPPORTED, attempt=attempt)
    if not isinstance(values.get("entries", []), list):
        raise NotATraceError(
            summary, place="entries", found="not a list", why=_SUPPORTED, attempt=_NAME_FILES
        )
    return values
