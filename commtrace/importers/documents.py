"""The files that are to be imported: found, read, and told apart by what is in them.

Paths come in; a `Document` for each file goes out, with its `format` and its rank as far as the
name tells it. Names and suffixes do not decide what a file is, its bytes do.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.errors import EmptyTraceError, NotATraceError, TraceError, TruncatedTraceError
from commtrace.importers.plain_pickle import BrokenPickleError, ForbiddenNameError, load_plain

PROFILER = "torch.profiler"
FLIGHT_RECORDER = "flight recorder"

_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_EVENTS = '"traceEvents"'
_SUPPORTED = (
    "supported are chrome traces of torch.profiler (.json, .json.gz) and flight-recorder dumps "
    "(JSON or pickle)"
)


@dataclass(frozen=True, slots=True)
class Document:
    """One file: text of a chrome trace, or the values of a flight recorder's dump."""

    path: Path
    format: str
    content: Any

    @property
    def rank_in_name(self) -> int:
        """The rank that the file's name tells: `rank3`, or else its last number; -1 of none."""
        stem = self.path.name
        while (suffix := Path(stem).suffix) and not suffix[1:].isdigit():
            stem = stem.removesuffix(suffix)
        named = re.findall(r"rank[_\-.]?(\d+)", stem, re.IGNORECASE)
        numbers = named or re.findall(r"\d+", stem)[-1:]
        return int(numbers[-1]) if numbers else -1


def documents_of(sources: Iterable[Path | str]) -> list[Document]:
    """The files that `sources` name, of a folder all that are in it; all of one format.

    Raises a TraceError that says which file cannot be taken, and why.
    """
    documents = [read_document(path) for path in _files_of(sources)]
    formats = {document.format: document.path for document in documents}
    if len(formats) > 1:
        found = "; ".join(f"{path} of {name}" for name, path in formats.items())
        raise TraceError(
            "cannot import files of several kinds as one trace",
            found=found,
            why="a call that both have would be counted twice",
            attempt="import each kind by itself",
        )
    return documents


def _files_of(sources: Iterable[Path | str]) -> list[Path]:
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            found += sorted(
                path for path in source.iterdir() if path.is_file() and path.name[0] != "."
            )
        elif source.is_file():
            found.append(source)
        else:
            raise NotATraceError(
                f"cannot import {source}", found="no such file or folder", why=_SUPPORTED
            )
    if not found:
        raise EmptyTraceError(
            "nothing to import", found="no file", attempt="name the files that ranks wrote"
        )
    return list(dict.fromkeys(found))


def read_document(path: Path) -> Document:
    """One file, by what is in it.

    Raises a TraceError that says what is in it instead.
    """
    asked = f"cannot import {path}"
    data = path.read_bytes()
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TruncatedTraceError(asked, found=f"gzip that breaks off: {error}") from error
    if not data:
        raise EmptyTraceError(asked, found="an empty file", attempt="record it again")
    if data.startswith(_PICKLE):
        return Document(path, FLIGHT_RECORDER, _dump_in(_unpickled(data, asked), asked))
    text = data.decode("utf-8", "replace")
    if _EVENTS in text or text.lstrip().startswith("["):
        return Document(path, PROFILER, text)
    return Document(path, FLIGHT_RECORDER, _dump_in(_parsed(text, asked), asked))


def _unpickled(data: bytes, asked: str) -> Any:
    try:
        return load_plain(data)
    except ForbiddenNameError as error:
        raise TraceError(
            asked,
            found=f"a pickle that wants to load {error.name}",
            why="a dump holds plain values only; anything else could run code, so none was loaded",
            attempt="find out where the file comes from before you open it with anything else",
        ) from error
    except BrokenPickleError as error:
        raise TruncatedTraceError(
            asked, found=f"a pickle that breaks off or is none ({error})", why=_SUPPORTED
        ) from error


def _parsed(text: str, asked: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError as error:
        begins = text[:40].splitlines()[0] if text.strip() else ""
        if text.lstrip().startswith("{"):
            raise TruncatedTraceError(
                asked, place=str(error), found="JSON that breaks off", attempt="copy it again"
            ) from error
        raise NotATraceError(
            asked, place="its first line", found=repr(begins), why=_SUPPORTED
        ) from error


def _dump_in(values: Any, asked: str) -> dict[str, Any]:
    if isinstance(values, dict) and values.get("format") == "commtrace":
        raise NotATraceError(
            asked, found="a trace of commtrace", why="it needs no import: commands read it as it is"
        )
    if not isinstance(values, dict) or not {"pg_config", "entries"} & set(values):
        raise NotATraceError(asked, found="values of another kind", why=_SUPPORTED)
    if not isinstance(values.get("entries", []), list):
        raise NotATraceError(asked, place="entries", found="no list", why=_SUPPORTED)
    return values
