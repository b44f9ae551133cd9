"""Joining of the segments of a recording (see `segments`) into one spool.

What was removed counts as dropped: the last segment states how many calls and operators came
before it. So does what a missing or damaged segment in the middle had, and the recording then
counts as cut off. Steps that began before the first segment that is there are not listed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from commtrace.tracefile.segments import BEFORE, BEGIN, SEGMENT
from commtrace.tracefile.spool import FOUND_STEPS, Spool
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable, rows_at

_Table = Mapping[str, ColumnValues]


def joined_segments(spools: Iterable[Spool]) -> list[Spool]:
    """Return the spools, with the segments of each recording joined into one."""
    others: list[Spool] = []
    recordings: dict[tuple[Any, ...], dict[int, Spool]] = {}
    for spool in spools:
        facts = spool.facts
        if SEGMENT not in facts:
            others.append(spool)
            continue
        key = (facts["host"], facts["pid"], facts["boot"], facts["start_ns"])
        segments = recordings.setdefault(key, {})
        copy = segments.get(facts[SEGMENT])
        if copy is None or _num_calls(copy) < _num_calls(spool):
            segments[facts[SEGMENT]] = spool
    return [
        *others,
        *(_join([found[n] for n in sorted(found)]) for found in recordings.values()),
    ]


def _num_calls(spool: Spool) -> int:
    return len(spool.tables["comm"]["id"])


def _join(segments: Sequence[Spool]) -> Spool:
    """Join the segments of one recording, in order."""
    first, last = segments[0], segments[-1]
    tables = {name: _concatenated([each.tables[name] for each in segments]) for name in last.tables}
    origins = {
        name: [number for number, each in enumerate(segments) for _ in each.tables[name]["rank"]]
        for name in ("comm", "ops")
    }
    num_lost = []
    for (name, origin), num_before in zip(origins.items(), last.facts[BEFORE], strict=True):
        rows = _latest(tables[name], ("rank", "id"))
        num_earlier = sum(origin[row] < len(segments) - 1 for row in rows)
        num_lost.append(max(num_before - num_earlier, 0))
        tables[name] = _rows_of(tables[name], rows)
    tables["groups"] = _rows_of(tables["groups"], _latest(tables["groups"], ("name",)))
    facts = dict(last.facts)
    if first.facts[SEGMENT]:
        begin = facts["start_ns"] = first.facts[BEGIN]
        for name in ("steps", FOUND_STEPS):
            starts = tables[name]["start_ns"]
            rows = [row for row, start in enumerate(starts) if start >= begin]
            tables[name] = _rows_of(tables[name], rows)
    facts["num_dropped"] = facts.get("num_dropped", 0) + num_lost[0]
    facts["num_ops_dropped"] = facts.get("num_ops_dropped", 0) + num_lost[1]
    numbers = [each.facts[SEGMENT] for each in segments]
    is_damaged = any(each.is_truncated for each in segments[:-1])
    has_gap = any(after != before + 1 for before, after in pairwise(numbers))
    if is_damaged or has_gap:
        facts["complete"] = False
    return Spool(
        facts,
        tables,
        any(each.is_truncated for each in segments),
        last.path,
        tuple([each.path for each in segments if each.path is not None]),
    )


def _concatenated(tables: Sequence[_Table]) -> dict[str, ColumnValues]:
    strings = StringTable([""])
    return {
        name: _concatenated_column([table[name] for table in tables], strings) for name in tables[0]
    }


def _concatenated_column(parts: Sequence[Any], strings: StringTable) -> ColumnValues:
    if isinstance(parts[0], StringColumn):
        codes = array("q")
        for part in parts:
            new = {code: strings.code(part.strings[code]) for code in dict.fromkeys(part.codes)}
            codes.extend(map(new.__getitem__, part.codes))
        return StringColumn(codes, strings.strings)
    values = array(parts[0].typecode)
    for part in parts:
        values.extend(part)
    return values


def _latest(table: _Table, columns: Sequence[str]) -> list[int]:
    """Return the last row of each key, in the order of the keys."""
    keys = list(zip(*(table[name] for name in columns), strict=True))
    row_of = {key: row for row, key in enumerate(keys)}
    return sorted(row_of.values(), key=keys.__getitem__)


def _rows_of(table: _Table, rows: Sequence[int]) -> dict[str, ColumnValues]:
    return {name: rows_at(values, rows) for name, values in table.items()}
