"""Facts about a rank that its process could not write itself, in files beside its spool.

    RUN.comm/rank-00003.stacks    stacks that faulthandler wrote when the process was asked to end,
                                  or was killed at a timeout (see `thread_dumps`)
    RUN.comm/rank-00003.exit      exit code that the launcher saw, -9 if signal 9 killed it

Readers of the spool add them to its events and facts. In a recording with several segments,
they belong to the last.
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commtrace.event import HostEventRow
from commtrace.permissions import opener
from commtrace.schema import HOST_EVENTS, STUCK, Column
from commtrace.tracefile.dump_files import MOST_BYTES, STACKS_SUFFIX
from commtrace.tracefile.spool import SPOOL_SUFFIX
from commtrace.tracefile.thread_dumps import DumpedThread, dumps_in, users_frame
from commtrace.tracefile.trace import ColumnValues, StringColumn

EXIT_SUFFIX = ".exit"
EXIT_CODE = "exit_code"
"""Name of the fact of a spool that states how the process ended."""
MAIN_THREAD = "main_thread"
"""Name of the fact of a spool with the number that Python gives to the main thread."""

_SEGMENT = re.compile(rf"\.s(\d{{1,9}}){re.escape(SPOOL_SUFFIX)}$")
_RECORDER = f"{Path(__file__).parents[1] / 'recorder'}{os.sep}"
_NAME_OF_MAIN = "MainThread"
_HANGUP, _SHELL_CODE_OF_HANGUP = -1, 129


def leave_stacks(spool: Path, text: str, at_ns: int) -> None:
    """Leave what faulthandler wrote about the process of a spool at a time, in Unix ns."""
    path = _first_of(spool).with_suffix(STACKS_SUFFIX)
    with contextlib.suppress(OSError):  # the folder is full, or gone
        with open(path, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)
        os.utime(path, ns=(at_ns, at_ns))


def leave_exit_code(spool: Path, exit_code: int) -> None:
    """Leave the exit code of the process of a spool, negative for a signal."""
    path = _first_of(spool).with_suffix(EXIT_SUFFIX)
    with (
        contextlib.suppress(OSError),
        open(path, "w", encoding="ascii", opener=opener) as file,
    ):
        # -1 means unknown in a table.
        file.write(f"{_SHELL_CODE_OF_HANGUP if exit_code == _HANGUP else exit_code}\n")


def files_beside(spool: Path) -> list[Path]:
    """Return the files of a spool that this module reads."""
    first = _first_of(spool)
    paths = (first.with_suffix(suffix) for suffix in (STACKS_SUFFIX, EXIT_SUFFIX))
    return [path for path in paths if path.is_file()]


def facts_beside(spool: Path) -> dict[str, int]:
    """Return the facts that others left about the process of a spool."""
    path = _first_of(spool).with_suffix(EXIT_SUFFIX)
    with contextlib.suppress(OSError, ValueError):
        return {EXIT_CODE: int(path.read_bytes()[:20])}
    return {}


def with_stacks_beside(
    spool: Path, facts: Mapping[str, Any], tables: Mapping[str, Mapping[str, ColumnValues]]
) -> dict[str, Mapping[str, ColumnValues]]:
    """Add the stacks that others left to the events of a spool, as rows of kind `stuck`."""
    table = tables.get("host_events")
    if table is None or "id" not in table:
        return dict(tables)
    threads, at_ns = _last_dump(spool)
    first = max(table["id"], default=-1) + 1
    rows = [
        _row(thread, first + number, facts, at_ns)
        for number, thread in enumerate(_of_interest(threads, facts))
    ]
    if not rows:
        return dict(tables)
    added = {
        column.name: _extended(column, table[column.name], [row[place] for row in rows])
        for place, column in enumerate(HOST_EVENTS)
        if column.name in table
    }
    return {**tables, "host_events": added}


def _first_of(spool: Path) -> Path:
    """Return the first file of a recording."""
    return spool.with_name(_SEGMENT.sub(SPOOL_SUFFIX, spool.name))


def _is_last(spool: Path) -> bool:
    """Return whether no later segment of the recording is there."""
    found = _SEGMENT.search(spool.name)
    number = int(found[1]) if found else 0
    return not _first_of(spool).with_suffix(f".s{number + 1}{SPOOL_SUFFIX}").exists()


def _last_dump(spool: Path) -> tuple[list[DumpedThread], int]:
    """Return the threads of the last dump and its time; none if there is no dump."""
    path = _first_of(spool).with_suffix(STACKS_SUFFIX)
    try:
        status = path.stat()
        if not status.st_size or not _is_last(spool):
            return [], -1
        with path.open("rb") as file:
            file.seek(max(status.st_size - MOST_BYTES, 0))
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return [], -1
    dumps = dumps_in(text)
    return (dumps[-1] if dumps else []), status.st_mtime_ns


def _of_interest(threads: Sequence[DumpedThread], facts: Mapping[str, Any]) -> list[DumpedThread]:
    """Return the main thread and those in the user's code, the main thread first."""
    main = facts.get(MAIN_THREAD)
    chosen = [each for each in threads if each.ident == main or users_frame(each.frames)]
    return sorted(chosen, key=lambda each: each.ident != main)


def _row(thread: DumpedThread, number: int, facts: Mapping[str, Any], at_ns: int) -> Any:
    is_main = thread.ident == facts.get(MAIN_THREAD)
    file, line, function = users_frame(thread.frames) or ("", -1, "")
    return HostEventRow(
        rank=facts["rank"],
        id=number,
        kind=STUCK,
        at_ns=at_ns,
        # On Linux, the main thread has the number of its process.
        thread=facts["pid"] if is_main else -1,
        text=_NAME_OF_MAIN if is_main else thread.name or f"thread 0x{thread.ident:x}",
        source_file=file,
        source_line=line,
        source_function=function,
        stack="\n".join(
            f"{file}:{line} {function}"
            for file, line, function in thread.frames
            if not file.startswith(_RECORDER)
        ),
    )


def _extended(column: Column, values: Any, added: Sequence[Any]) -> ColumnValues:
    if column.type is not str:
        return array("q", [*values, *added])
    known = values.strings if isinstance(values, StringColumn) else sorted({*values, ""})
    strings = list(dict.fromkeys([*known, *added]))
    code_of = {text: code for code, text in enumerate(strings)}
    return StringColumn(array("q", [code_of[each] for each in (*values, *added)]), strings)
