"""Writer and reader of run.json, the file of a finished run.

    {"format": "commtrace", "version": 3, "run": {facts}, "strings": [each string once],
     "tables": {"comm": {"rows": n, "columns": {"rank": column, ...}}, ...},
     "crc32": "5fb1d7e3"}

A column is its description (see `encoding`), with its bytes under `data`: deflated, then base64.
The integers of a string column are indices into `strings`. Format and version come first, so that a
reader can refuse the file before it has read the rest. `crc32`, of all bytes before it, comes last;
a file without it, as of former versions or of other programs, is not checked. Written traces read
back equal.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write
from commtrace.errors import EmptyTraceError, NewerTraceError, NotATraceError
from commtrace.schema import FORMAT_NAME, FORMAT_VERSION, TABLES, Column
from commtrace.tracefile.encoding import (
    Description,
    decode,
    encode_floats,
    encode_ints,
    is_not_known,
    not_known,
    require_codes,
    require_rows,
    size_of,
)
from commtrace.tracefile.reading import (
    Allowance,
    DamageError,
    distinct,
    inflate,
    is_int,
    parse_json,
    read_file,
    reading,
    text_in,
)
from commtrace.tracefile.trace import Columns, ColumnValues, StringColumn, StringTable, Trace

_COMPRESSION = 6
OPENING = '{"format":"commtrace"'
"""First characters of a run file."""


def write_trace(trace: Trace, path: Path | str) -> Path:
    """Write `trace` to `path` atomically and return the path."""
    path = Path(path)
    strings = StringTable([""])
    tables = {name: _encode_table(trace, name, strings) for name in TABLES}
    document = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "run": dict(trace.run),
        "strings": strings.strings,
        "tables": tables,
    }
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(sealed(document))
    return path


def sealed(document: Mapping[str, Any]) -> bytearray:
    """Return the bytes of a run file, with their checksum."""
    # ASCII, since JSON can escape all other characters, lone surrogates included.
    data = bytearray(json.dumps(document, separators=(",", ":")).encode("ascii"))
    del data[-1:]
    data += b',"crc32":"%08x"}' % zlib.crc32(data)
    return data


_SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"}\s*\Z')
_SEAL_BYTES = 64


def _check_seal(data: bytes) -> None:
    """Refuse a file whose bytes differ from its checksum, if it has one."""
    found = _SEAL.search(data, max(len(data) - _SEAL_BYTES, 0))
    if found is None:
        return
    begin = len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0  # which an editor may have added
    if int(found[1], 16) != zlib.crc32(memoryview(data)[begin : found.start()]):
        raise DamageError("contents that differ from their checksum")


def _encode_table(trace: Trace, name: str, strings: StringTable) -> dict[str, Any]:
    columns = {}
    for column in TABLES[name]:
        description, data = _encode_column(column, trace.tables[name][column.name], strings)
        if is_not_known(column, description):
            continue
        if data:
            deflated = zlib.compress(data, _COMPRESSION)
            description["data"] = base64.b64encode(deflated).decode("ascii")
        columns[column.name] = description
    return {"rows": trace.num_rows(name), "columns": columns}


def _encode_column(
    column: Column, values: ColumnValues, strings: StringTable
) -> tuple[Description, bytes]:
    if column.type is str:
        from commtrace.tracefile.arrays import recoded  # imported late: it loads numpy

        return encode_ints(recoded(values, strings).codes)
    return encode_floats(values) if column.type is float else encode_ints(values)


def read_run_file(path: Path) -> Trace:
    """Read the trace in a run.json without checking its values, which `validated` does.

    Raises:
        EmptyTraceError: the file is empty.
        NotATraceError: the file is something else.
        NewerTraceError: a later commtrace has written it.
        TruncatedTraceError: it is incomplete or damaged.
        OversizedTraceError: it claims more memory than its size allows.
    """
    summary = f"cannot read the trace {path}"
    data = read_file(path, summary)
    allowance = Allowance(summary, len(data))
    with reading(summary):
        document = _parse(data, summary, allowance)
        version = _version(document, summary)
        _check_seal(data)
        # Frees the bytes of the file before the columns take memory.
        del data
        strings = _list_of_strings(document.get("strings"))
        run = _object(document, "run")
        stored = _object(document, "tables")
        tables = {name: _decode_table(stored, name, strings, allowance) for name in TABLES}
        return Trace(run, tables, path, version)


def _parse(data: bytes, summary: str, allowance: Allowance) -> dict[str, Any]:
    if not data:
        raise EmptyTraceError(
            summary,
            found="an empty file",
            why="the program ended before it wrote the trace, or the disk was full",
            attempt="record the run again",
        )
    try:
        text = text_in(data)
    except DamageError as error:
        raise _no_trace(summary, error.found, error.place) from error
    try:
        document = parse_json(text, allowance)
    except ValueError as error:
        begins = text[:200].replace(" ", "")[: len(OPENING)]
        if begins and OPENING.startswith(begins):
            raise _damage(error, text) from error
        line = text.splitlines()[0][:60] if text.strip() else ""
        raise _no_trace(summary, repr(line), "its first line") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise _no_trace(summary, "JSON of another format")
    return document


def _no_trace(summary: str, found: str, place: str = "") -> NotATraceError:
    return NotATraceError(
        summary,
        place=place,
        found=found,
        why=f"a trace is a JSON object that begins with {OPENING}",
        attempt="another file; import files of torch's tools with `commtrace import`",
    )


def _damage(error: ValueError, text: str) -> DamageError:
    """Return the error for text that begins as a trace but does not parse; mostly it is cut off."""
    at = getattr(error, "pos", len(text))
    is_truncated = isinstance(error, json.JSONDecodeError) and (
        at >= len(text) or error.msg.startswith("Unterminated") or not text.rstrip().endswith("}")
    )
    if is_truncated:
        return DamageError("the end of the file", f"character {len(text)}")
    return DamageError(str(error), f"character {at}" if at < len(text) else "")


def _version(document: Mapping[str, Any], summary: str) -> int:
    version = document.get("version")
    if not is_int(version) or version < 1:
        raise DamageError(repr(version), "version")
    if version > FORMAT_VERSION:
        raise NewerTraceError(
            summary,
            found=f"version {version} of the format",
            why=f"this commtrace supports versions up to {FORMAT_VERSION}",
            attempt="install the commtrace that recorded it, or a newer version",
        )
    return version


def _object(container: Mapping[str, Any], name: str, place: str = "") -> dict[str, Any]:
    value = container.get(name)
    if not isinstance(value, dict):
        raise DamageError("no object of that name", place or name)
    return value


def _list_of_strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(type(each) is str for each in value):
        raise DamageError("not a list of strings", "strings")
    return distinct(value)


def _decode_table(
    tables: Mapping[str, Any], name: str, strings: list[str], allowance: Allowance
) -> Columns:
    place = f"tables.{name}"
    if name not in tables:
        return {
            column.name: _of_type(column, not_known(column, 0), strings) for column in TABLES[name]
        }
    stored = _object(tables, name, place)
    rows = require_rows(stored.get("rows"), len(TABLES[name]), allowance, place)
    columns = _object(stored, "columns", f"{place}.columns")
    return {
        column.name: _decode_column(
            column, f"{place}.columns.{column.name}", columns, rows, strings
        )
        for column in TABLES[name]
    }


def _decode_column(
    column: Column, place: str, stored: Mapping[str, Any], rows: int, strings: list[str]
) -> ColumnValues:
    if column.name not in stored:  # unknown, or added by a later format version
        values = not_known(column, rows)
    else:
        values = _decode_stored(column, stored[column.name], rows, place)
    return _of_type(column, values, strings, place)


def _of_type(
    column: Column, values: array[Any], strings: list[str], place: str = ""
) -> ColumnValues:
    if column.type is not str:
        return values
    require_codes(values, len(strings), place)
    return StringColumn(values, strings)


def _decode_stored(column: Column, description: Description, rows: int, place: str) -> array[Any]:
    try:
        packed = description.get("data", "") if isinstance(description, dict) else ""
        if not isinstance(packed, str):
            raise DamageError("data that is not text")
        data = base64.b64decode(packed, validate=True)
        data = inflate(data, size_of(description, rows))
        return decode(description, data, rows, column.type)
    except ValueError as error:
        raise DamageError(str(error), place) from error
