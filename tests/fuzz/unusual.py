"""Runs with a valid form and unusual content, for the analyses and pages.

A run is changed a few times, each time to values that the schema allows. It is then made to obey
the laws of `commtrace.schema`: columns within their bounds, unique rows, ends after beginnings,
calls on existing groups. The values may be combinations that no program records.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.schema import (
    FORMS,
    HOST_EVENT_KINDS,
    INSTANT,
    MAX_RANKS,
    MEMBER_STATES,
    MOST_INSTANT_NS,
    ORDERED,
    PHASES,
    PIPELINE_ACTIONS,
    REFERENCES,
    ROLES,
    SYNC_KINDS,
    TABLES,
    UNIQUE,
    Column,
)
from commtrace.tracefile import SpoolWriter, Trace, spool_name, trace_of_rows
from tests.commtrace.analyze.rows import START_NS, layouts_trace, random_trace
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.synthetic import synthetic_facts

Columns = dict[str, list[Any]]
Tables = dict[str, Columns]

_TEXTS = (
    "", " ", "\n", "\t", "\0", "\x1b[31mred\x1b[0m", "\x1b]0;x\x07", "\x7f\x85", "\u202eabc\u2028",
    "\ufeff", "\u0301", "界" * 40, "a" * 5000, "<script>alert(1)</script>", "</script><!--",
    "[bold]x[/]", "[/]", ":smile:", "{{ x }}", "{x}", "%s", "%", "=1+1", "@x", "\\", "'", '"', "`",
    "|", ",", ";", ";;", ".", "..", "a..b", "a.b.c.d.e", "/", "/etc/passwd", "C:\\x", "..\\..", "~",
    "nan", "NaN", "None", "null", "-1", "0", "1", "1e9", "0:3", "__proto__", "constructor", "index",
    "rank", "total", "other", "other modules", "unknown", "send", "f32[8,16] tp:R",
    "f32[0] tp:S(0)", "f32[] :", "f32[99999999999999999999] tp:S(9)", "tp:P(sum)",
)  # fmt: skip

_TEXTS_OF: dict[str, tuple[str, ...]] = {
    "splits": ("", "0,0", "4,8", "96,0,32", "1", "999999999999999999,1"),
    "category": ("", "compute", "communication", "memcpy", "memset"),
    "phase": ("", *PHASES),
    "level": ("", "dtensor", "local"),
    "role": ("", *ROLES),
    "host_event": ("", *HOST_EVENT_KINDS),
    "action": ("", *PIPELINE_ACTIONS),
    "direction": ("", "forward", "backward"),
    "member_state": ("", *MEMBER_STATES),
    "needs": ("", "1", "c0", "1,c1", "2,3,c7", f"{'9' * 18},c{'9' * 18}", "0," * 300 + "c0"),
    "sync_kind": ("", *SYNC_KINDS),
    "shapes": ("", "[]", "[0]", "[0,5]", "[1]", "[8,16];[]", f"[{'9' * 18},{'9' * 18}]",
               ";".join(["[1]"] * 300), f"[{','.join('1' * 200)}]"),
    "ranks": ("", "0", "1,0", "0,1,2", "262143", "0,262143", "7,8,9",
              ",".join(map(str, range(999)))),
    "candidates": ("", "[]", '[["x",0]]', '[["x",-1],["x",1e299]]', '[["",0.5],["\\u0000",1]]'),
    "kind": (*KINDS, "send", "recv", "wait", "monitored_barrier"),
    "reduce_op": ("sum", "avg", "premul_sum", "unused"),
    "dtype": ("float32", "bfloat16", "complex128", "int64", "bool", "float4_e2m1fn_x2"),
    "carries": ("parameters", "gradients", "flags", "activations", "objects", "harness"),
    "parameters": ("w", "w,b", ",", "w,,b", "w," * 500),
    "module": ("layers.0", "layers.0.attention", "layers", "layers.10", ".".join("m" * 300)),
    "backend": ("gloo", "nccl", "fake", "mpi"),
    "device": ("cpu", "cuda", "meta"),
    "file": ("train.py", "<stdin>", "ipython-input-1"),
    "source_file": ("train.py", "<stdin>", "ipython-input-1"),
}  # fmt: skip
"""Strings by form or name of their column; a column without a form may have all of `_TEXTS`."""

_INSTANTS = (0, 1, START_NS, START_NS + 1, START_NS + 10**6, START_NS + 10**9, START_NS + 10**15)
_NUMBERS = (0, 1, 2, 3, 7, 255, 1000, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 53) + 1)
_CLOCK_FACTS = ("host", "boot", "epoch_ns", "start_ns")
_CLOCKS = (
    ("node0", "one", START_NS, START_NS), ("node1", "two", START_NS + 10**6, START_NS),
    ("node1", "two", 0, 0), ("", "", MOST_INSTANT_NS, 1),
    ("\x1b", "one", -MOST_INSTANT_NS, START_NS),
)  # fmt: skip
_RANKS = (0, 1, 2, 3, 7, MAX_RANKS - 1)


def _values(column: Column) -> tuple[Any, ...]:
    """Values of a column that the schema allows."""
    if column.type is bool:
        return False, True
    if column.type is str:
        own = _TEXTS_OF.get(column.form) or _TEXTS_OF.get(column.name, ())
        return own if column.form else (*own, *_TEXTS)
    usual = _INSTANTS if column.unit == INSTANT else _NUMBERS
    usual = _RANKS if column.most == MAX_RANKS - 1 else usual
    bounds = column.least, column.least + 1, column.most, column.most - 1
    return tuple(each for each in (*usual, *bounds) if column.least <= each <= column.most)


def unusual_run(chance: random.Random) -> Trace:
    """Create a run, changed once or several times, that the readers accept."""
    trace = _ordinary_run(chance)
    tables: Tables = {
        name: {column.name: list(trace.tables[name][column.name]) for column in columns}
        for name, columns in TABLES.items()
    }
    facts = dict(trace.run)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        chance.choice(_CHANGES)(chance, tables)
        if chance.random() < 0.2:
            _change_a_fact(chance, facts)
    _hold_to_the_laws(chance, tables)
    rows = {name: list(zip(*columns.values(), strict=True)) for name, columns in tables.items()}
    return trace_of_rows(facts, rows)


def unusual_spools(chance: random.Random) -> dict[str, bytes]:
    """Create the spools of such a run, by name, on clocks of a single host or of several."""
    trace = unusual_run(chance)
    rows = {name: list(trace.rows(name)) for name in ("comm", "ops", "steps")}
    ranks = sorted({row[0] for of_table in rows.values() for row in of_table}) or [0]
    clocks = chance.sample(_CLOCKS, chance.choice((1, 1, 2)))
    spools = {}
    for rank in ranks:
        stream, clock = io.BytesIO(), chance.choice(clocks)
        facts = synthetic_facts(rank, len(ranks)) | dict(zip(_CLOCK_FACTS, clock, strict=True))
        writer = SpoolWriter(stream, facts)
        writer.write({"groups": list(trace.rows("groups"))})
        for name, of_table in rows.items():
            writer.write({name: [row for row in of_table if row[0] == rank]})
        if chance.random() < 0.8:
            writer.write({}, {"complete": True, "end_ns": chance.choice(_INSTANTS)})
        spools[spool_name(rank)] = stream.getvalue()
    return spools


def _ordinary_run(chance: random.Random) -> Trace:
    seed = chance.randrange(1000)
    way = chance.randrange(4)
    if way == 0:
        return training_trace()
    if way == 1:
        return layouts_trace(seed)
    return random_trace(seed, chance.choice((1, 2, 3, 5)), chance.choice((1, 8, 40)))


def _a_column(chance: random.Random, tables: Tables) -> tuple[str, Column]:
    """Choose a column of a table, more often of calls."""
    name = chance.choice(("comm", "comm", *(name for name in tables if any(tables[name].values()))))
    return name, chance.choice(TABLES[name])


def _num_rows(table: Columns) -> int:
    return len(next(iter(table.values())))


def _some_rows(chance: random.Random, table: Columns) -> list[int]:
    """Choose rows of a table: all, some, one, or those with the same value in a column."""
    rows = range(_num_rows(table))
    way = chance.randrange(4)
    if way == 0 or not rows:
        return list(rows)
    if way == 1:
        return [row for row in rows if chance.random() < 0.3]
    values = table[chance.choice([name for name in ("rank", *table) if name in table])]
    value = chance.choice(values)
    return [row for row in rows if values[row] == value] if way == 2 else [chance.choice(rows)]


def _fill(chance: random.Random, tables: Tables) -> None:
    """Set a column to a few other values in some rows."""
    name, column = _a_column(chance, tables)
    legal = _values(column)
    pool = chance.sample(legal, min(chance.choice((1, 1, 2, 5)), len(legal)))
    for row in _some_rows(chance, tables[name]):
        tables[name][column.name][row] = chance.choice(pool)


def _fill_all_of_a_unit(chance: random.Random, tables: Tables) -> None:
    """Set all columns of a unit to the same value: no time passes, or nothing has a size."""
    unit = chance.choice((INSTANT, "ns", "bytes"))
    value = chance.choice((-1, 0, 1, 1 << 58, START_NS))
    for name, columns in TABLES.items():
        for column in columns:
            if column.unit == unit:
                tables[name][column.name] = [value] * _num_rows(tables[name])


def _scale(chance: random.Random, tables: Tables) -> None:
    """Shift and scale the instants, or scale the durations, of some tables."""
    unit, by = chance.choice((INSTANT, "ns", "bytes")), chance.choice((0, 2, 1000, 10**9, 10**15))
    to = chance.choice((0, START_NS, MOST_INSTANT_NS // 2))
    since = START_NS if unit == INSTANT else 0
    for name in chance.sample(list(TABLES), chance.choice((1, len(TABLES)))):
        for column in TABLES[name]:
            if column.unit == unit:
                values = tables[name][column.name]
                values[:] = [(n - since) * by + to * bool(since) if n >= 0 else n for n in values]


def _shuffle_values(chance: random.Random, tables: Tables) -> None:
    name, column = _a_column(chance, tables)
    chance.shuffle(tables[name][column.name])


def _take_another_column(chance: random.Random, tables: Tables) -> None:
    name, column = _a_column(chance, tables)
    alike = [each.name for each in TABLES[name] if each.type is column.type]
    tables[name][column.name] = list(tables[name][chance.choice(alike)])


def _order(chance: random.Random, tables: Tables) -> None:
    """Shuffle, reverse or sort the rows of a table."""
    name, column = _a_column(chance, tables)
    rows = list(range(_num_rows(tables[name])))
    values = tables[name][column.name]
    way = chance.randrange(3)
    if way == 0:
        chance.shuffle(rows)
    else:
        rows.sort(key=values.__getitem__, reverse=way == 1)
    _keep(tables[name], rows)


def _lose(chance: random.Random, tables: Tables) -> None:
    """Remove rows from a table: a rank, a group, a step, some or all of them."""
    name = chance.choice(list(tables))
    gone = set(_some_rows(chance, tables[name]))
    _keep(tables[name], [row for row in range(_num_rows(tables[name])) if row not in gone])


def _lose_a_rank(chance: random.Random, tables: Tables) -> None:
    """Remove a rank, or all others, from all tables that have it, or from a single table."""
    known = [rank for table in tables.values() for rank in table.get("rank", ())] or [0]
    rank, is_alone = chance.choice(known), chance.random() < 0.5
    having = [name for name in tables if "rank" in tables[name]]
    for name in having if chance.random() < 0.7 else [chance.choice(having)]:
        ranks = tables[name]["rank"]
        _keep(tables[name], [row for row, own in enumerate(ranks) if (own == rank) is is_alone])


def _repeat(chance: random.Random, tables: Tables) -> None:
    """Duplicate rows, with another rank or other numbers."""
    name = chance.choice(list(tables))
    table, key = tables[name], UNIQUE[name][-1]
    rows = _some_rows(chance, table)
    for column in table.values():
        column.extend([column[row] for row in rows])
    if rows:
        values = _values(next(column for column in TABLES[name] if column.name == key))
        table[key][-len(rows) :] = [chance.choice(values) for _ in rows]


def _rename(chance: random.Random, tables: Tables) -> None:
    """Replace a value in all columns of a name; a group's `name` counts as `group`."""
    name, column = _a_column(chance, tables)
    values = tables[name][column.name]
    if not values:
        return
    old, new = chance.choice(values), chance.choice(_values(column))
    key = {"group": "name", "name": "group"}.get(column.name, column.name)
    for table in tables.values():
        for own in {column.name, key} & set(table):
            table[own] = [new if value == old else value for value in table[own]]


_CHANGES: tuple[Callable[[random.Random, Tables], None], ...] = (
    *[_fill] * 6, _fill_all_of_a_unit, _scale, _shuffle_values, _take_another_column, _order, _lose,
    _lose_a_rank, _repeat, _rename, _rename,
)  # fmt: skip

_FACTS: dict[str, tuple[Any, ...]] = {
    "world_size": (1, 2, 3, 1000, MAX_RANKS),
    "missing_ranks": ([], [0], [1], [7], list(range(500)), [MAX_RANKS - 1]),
    "torn_ranks": ([], [0], [1], [0, 1], [99]),
    "left_out_spools": ([], ["rank-00001.spool"], list(_TEXTS)),
    "lacks": ([], ["ops"], ["issue_ns", "blocked_ns"], list(TABLES), list(_TEXTS)),
    "imported_files": (0, -1, 1 << 62),
    "imported_from": (*_TEXTS, "Kineto", "flight recorder"),
    "clock": _TEXTS,
    "command": _TEXTS,
    "created": (*_TEXTS, "2023-11-14T22:13:20+00:00", "0000-00-00", "9999-12-31T23:59:59+14:00"),
    "torch": _TEXTS,
    "python": _TEXTS,
    "detail": (*_TEXTS, "collective", "op"),
    "process_group": (*_TEXTS, "none"),
    "ranks_from": _TEXTS,
    "kernels": _TEXTS,
    "steps_from": (*_TEXTS, None, 3, []),
    "something": (*_TEXTS, None, 0.5, [1, [2]], {"x": {}}, True, float("inf")),
}


def _change_a_fact(chance: random.Random, facts: dict[str, Any]) -> None:
    name = chance.choice(list(_FACTS))
    facts[name] = chance.choice(_FACTS[name])


def _keep(table: Columns, rows: list[int]) -> None:
    for name, values in table.items():
        table[name] = [values[row] for row in rows]


def _hold_to_the_laws(chance: random.Random, tables: Tables) -> None:
    for name, columns in TABLES.items():
        for column in columns:
            values = tables[name][column.name]
            if column.type is int:
                values[:] = [min(max(value, column.least), column.most) for value in values]
            elif column.form:
                form = re.compile(FORMS[column.form], re.ASCII | re.DOTALL)
                values[:] = [value if form.fullmatch(value) else "" for value in values]
    groups = tables["groups"]
    groups["size"] = [
        ranks.count(",") + 1 if ranks else size
        for ranks, size in zip(groups["ranks"], groups["size"], strict=True)
    ]
    for name, first, second in ORDERED:
        table = tables[name]
        for row, (before, after) in enumerate(zip(table[first], table[second], strict=True)):
            if second == "id" and before >= after:
                table[first][row] = -1
            elif before > after >= 0:
                table[first][row], table[second][row] = after, before
    for name, keys in UNIQUE.items():
        _tell_apart(tables[name], keys)
    for name, column, other, key in REFERENCES:
        known = {"", *tables[other][key]}
        named = tables[name][column]
        named[:] = [each if each in known else chance.choice(sorted(known)) for each in named]


def _tell_apart(table: Columns, keys: tuple[str, ...]) -> None:
    """Keep the first of rows with equal keys; a row with an unknown key is always kept."""
    first: dict[Any, int] = {}
    rows = list(zip(*(table[key] for key in keys), strict=True))
    for row, values in enumerate(rows):
        first.setdefault((row,) if -1 in values else values, row)
    _keep(table, sorted(first.values()))
