"""run.json: the file of a finished run, written and read.

    {"format": "commtrace", "version": 1, "run": {facts}, "strings": [each string once],
     "tables": {"comm": {"rows": n, "columns": {"rank": column, ...}}, ...}}

A column is its description (see `encoding`), with its bytes under `data`: deflated, then base64. A
string column's integers number the entries of `strings`. Version and format come first, so that a
reader can refuse before it has read the rest. What is written reads back equal.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commtrace.errors import EmptyTraceError, NewerTraceError, NotATraceError, TruncatedTraceError
from commtrace.schema import FORMAT_NAME, FORMAT_VERSION, TABLES, Column
from commtrace.tracefile.encoding import (
    DamagedColumnError,
    Description,
    decode,
    encode_floats,
    encode_ints,
    is_not_known,
    not_known,
)
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable, Table, Trace
from commtrace.writing import whole

_COMPRESSION = 6
_OPENING = '{"format":"commtrace"'


def write_trace(trace: Trace, path: Path | str) -> Path:
    """Write `trace` to `path`, whole or not at all, and return the path."""
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
    with whole(path) as unfinished:
        unfinished.write_text(json.dumps(document, separators=(",", ":")), encoding="ascii")
    return path


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
        return encode_ints(_recode(values, strings))
    return encode_floats(values) if column.type is float else encode_ints(values)


def _recode(values: ColumnValues, strings: StringTable) -> array[int]:
    """The numbers in `strings` of the strings that a column really uses."""
    if not isinstance(values, StringColumn):
        return strings.codes(values)
    new = {code: strings.code(values.strings[code]) for code in dict.fromkeys(values.codes)}
    return array("q", [new[code] for code in values.codes])


def read_run_file(path: Path) -> Trace:
    """The trace in a run.json.

    Raises EmptyTraceError, NotATraceError, NewerTraceError or TruncatedTraceError.
    """
    document = _parse(path)
    _check_version(document, path)
    try:
        strings, run = document["strings"], document["run"]
        tables = {name: _decode_table(document["tables"], name, strings) for name in TABLES}
    except _DamageError as error:
        raise _damaged(path, error.place, error.found) from error.__cause__
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, "its tables", f"{type(error).__name__}: {error}") from error
    return Trace(run, tables, path, document["version"])


class _DamageError(Exception):
    def __init__(self, place: str, found: str) -> None:
        super().__init__(place, found)
        self.place = place
        self.found = found


def _damaged(path: Path, place: str, found: str) -> TruncatedTraceError:
    return TruncatedTraceError(
        f"cannot read the trace {path}",
        place=place,
        found=found,
        why="the file was cut off or changed after it was written",
        attempt="copy it again, or record the run again",
    )


def _parse(path: Path) -> dict[str, Any]:
    asked = f"cannot read the trace {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise NotATraceError(
            asked, place=f"byte {error.start}", found="bytes that are no text", why=_EXPECTED
        ) from error
    if not text:
        raise EmptyTraceError(asked, found="an empty file", attempt="record the run again")
    try:
        document = json.loads(text)
    except ValueError as error:
        if text.replace(" ", "").startswith(_OPENING[: len(text)]):
            raise _damaged(path, f"character {len(text)}", "the end of the file") from error
        line = text.splitlines()[0][:60] if text.strip() else ""
        raise NotATraceError(
            asked, place="its first line", found=repr(line), why=_EXPECTED
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise NotATraceError(asked, found="JSON of another kind", why=_EXPECTED)
    return document


_EXPECTED = f"a trace is a JSON object that begins with {_OPENING}"


def _check_version(document: Mapping[str, Any], path: Path) -> None:
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path, "version", repr(version))
    if version > FORMAT_VERSION:
        raise NewerTraceError(
            f"cannot read the trace {path}",
            found=f"version {version} of the format",
            why=f"this commtrace supports versions up to {FORMAT_VERSION}",
            attempt="install the commtrace that recorded it, or a newer one",
        )


def _decode_table(tables: Mapping[str, Any], name: str, strings: list[str]) -> Table:
    stored = tables.get(name, {"rows": 0, "columns": {}})
    rows = stored["rows"]
    return {
        column.name: _decode_column(column, name, stored["columns"], rows, strings)
        for column in TABLES[name]
    }


def _decode_column(
    column: Column, table: str, stored: Mapping[str, Any], rows: int, strings: list[str]
) -> ColumnValues:
    place = f"tables.{table}.columns.{column.name}"
    description = stored.get(column.name)
    if description is None:  # nothing was known of it, or it came with a version after the file's
        values = not_known(column, rows)
    else:
        values = _decode_stored(description, rows, place)
    if column.type is not str:
        return values
    if rows and not (min(values) >= 0 and max(values) < len(strings)):
        raise _DamageError(place, f"a string number outside of 0..{len(strings) - 1}")
    return StringColumn(values, strings)


def _decode_stored(description: Description, rows: int, place: str) -> array[Any]:
    try:
        data = base64.b64decode(description.get("data", ""))
        return decode(description, zlib.decompress(data) if data else b"", rows)
    except (DamagedColumnError, binascii.Error, zlib.error) as error:
        raise _DamageError(place, str(error)) from error
