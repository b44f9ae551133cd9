"""Joining of the segments of a recording (see `tracefile.segments`) into one spool.

What was removed counts as dropped: the last segment states how many calls and operators came
before it. So does what a missing or damaged segment in the middle had, and the recording then
counts as cut off. Steps that began before the first segment that is there are not listed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

from commtrace.tracefile.outline import SpoolOrOutline
from commtrace.tracefile.segments import BEFORE, BEGIN, SEGMENT
from commtrace.tracefile.spool import FOUND_STEPS, Spool
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable

if TYPE_CHECKING:
    import numpy as np

_Table = Mapping[str, ColumnValues]


R = TypeVar("R", bound=SpoolOrOutline)


def joined_segments(
    recordings: Iterable[R], join: Callable[[Sequence[R]], R] | None = None
) -> list[R]:
    """Return the recordings, with the segments of each joined into one.

    Args:
        recordings: the spools, or their outlines.
        join: joins the segments of a recording, in order; by default as spools.
    """
    others: list[R] = []
    segments_of: dict[tuple[Any, ...], dict[int, R]] = {}
    for each in recordings:
        facts = each.facts
        if SEGMENT not in facts:
            others.append(each)
            continue
        key = (facts["host"], facts["pid"], facts["boot"], facts["start_ns"])
        segments = segments_of.setdefault(key, {})
        copy = segments.get(facts[SEGMENT])
        if copy is None or copy.num_calls < each.num_calls:
            segments[facts[SEGMENT]] = each
    join = join or cast("Callable[[Sequence[R]], R]", join_segments)
    return [*others, *(join([found[n] for n in sorted(found)]) for found in segments_of.values())]


def join_segments(segments: Sequence[Spool]) -> Spool:
    """Join the segments of a recording, in order."""
    import numpy as np

    from commtrace.tracefile.arrays import view_of

    first, last = segments[0], segments[-1]
    tables = {name: _concatenated([each.tables[name] for each in segments]) for name in last.tables}
    num_lost = []
    for name, num_before in zip(("comm", "ops"), last.facts[BEFORE], strict=True):
        num_rows = [len(each.tables[name]["rank"]) for each in segments]
        rows = _latest(view_of(tables[name]["rank"]), view_of(tables[name]["id"]))
        num_earlier = int((rows < sum(num_rows[:-1])).sum())
        num_lost.append(max(num_before - num_earlier, 0))
        tables[name] = _rows_of(tables[name], rows)
    tables["groups"] = _rows_of(tables["groups"], _latest_of_name(tables["groups"]["name"]))
    tables["removed_calls"] = first.tables["removed_calls"]
    facts = dict(last.facts)
    if first.facts[SEGMENT]:
        begin = facts["start_ns"] = first.facts[BEGIN]
        for name in ("steps", FOUND_STEPS):
            rows = np.flatnonzero(view_of(tables[name]["start_ns"]) >= begin)
            tables[name] = _rows_of(tables[name], rows)
    facts["num_dropped"] = facts.get("num_dropped", 0) + num_lost[0]
    facts["num_ops_dropped"] = facts.get("num_ops_dropped", 0) + num_lost[1]
    values = tables["fingerprints"]["id"]
    num_lost_values = (values[-1] + 1 if len(values) else 0) - len(values)
    facts["num_fingerprints_dropped"] = facts.get("num_fingerprints_dropped", 0) + num_lost_values
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
    from commtrace.tracefile.arrays import recoded  # imported late: it loads numpy

    if isinstance(parts[0], StringColumn):
        codes = array("q")
        for part in parts:
            codes.extend(recoded(part, strings).codes)
        return StringColumn(codes, strings.strings)
    values = array(parts[0].typecode)
    for part in parts:
        values.extend(part)
    return values


def _latest(ranks: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the last row of each pair of rank and id, in the order of the pairs."""
    import numpy as np

    order = np.lexsort((ids, ranks))  # stable: alike rows stay in order
    ranks, ids = ranks[order], ids[order]
    is_last = np.append((ranks[1:] != ranks[:-1]) | (ids[1:] != ids[:-1]), True)
    return order[is_last[: len(order)]]


def _latest_of_name(names: Sequence[str]) -> list[int]:
    """Return the last row of each name, in the order of the names."""
    row_of = {name: row for row, name in enumerate(names)}
    return [row_of[name] for name in sorted(row_of)]


def _rows_of(table: _Table, rows: Sequence[int] | np.ndarray) -> dict[str, ColumnValues]:
    from commtrace.tracefile.arrays import taken

    return {name: taken(values, rows) for name, values in table.items()}
