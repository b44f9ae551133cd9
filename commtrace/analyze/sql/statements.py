"""Texts of statements: what they do, the names of their columns, and errors about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

import duckdb

from commtrace.analyze.sql.tables import SQL_TABLES
from commtrace.errors import UsageError

_OPENERS = frozenset({"select", "with", "from", "pivot", "unpivot", "("})
_WRITES = frozenset({"insert", "update", "delete", "merge", "copy", "create", "export", "attach"})
_MEANT = re.compile(r'Did you mean "(?P<name>[^"]+)"')
_COLUMN = re.compile(r'(?:Referenced column|column named|Column) "(?P<name>[^"]+)"')
_CANDIDATES = re.compile(r"Candidate bindings: (?P<names>.*)")


def unusable(statement: str, error: Exception | str) -> UsageError:
    """Return the error of a statement that the engine refuses, with the name that was meant."""
    text = str(error)
    column, given, meant = (each.search(text) for each in (_COLUMN, _CANDIDATES, _MEANT))
    attempt = meant["name"] if meant else ""
    if "Circular reference to CTE" in text:
        attempt = "main.TABLE within the WITH that has the name of a table"
    if column is not None:
        name = column["name"]
        known = {each.name for table in SQL_TABLES.values() for each in table.columns}
        candidates = re.findall(r'"([^"]+)"', given["names"]) if given else []
        owners = [
            of for of, table in SQL_TABLES.items() if name in {each.name for each in table.columns}
        ]
        near = get_close_matches(name, candidates, n=1, cutoff=0.7)
        near = near or get_close_matches(name, sorted(known - {name}), n=1, cutoff=0.7)
        attempt = near[0] if near else ", ".join(candidates)
        if owners:
            attempt = f"a table that has it: {', '.join(owners[:5])}"
    return UsageError(
        f"cannot run {short(statement)}",
        found=first_line(text),
        why="no file, extension or setting can be reached" if "Permission Error" in text else "",
        attempt=attempt,
    )


def first_line(error: Exception | str) -> str:
    """Return the first line of an error of the engine, without its kind."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^[A-Z][A-Za-z ]* Error: ", "", line)


def only_selects(statement: str) -> bool:
    """Return whether a statement with a PIVOT selects: it opens so, and no word of it writes."""
    tokens = duckdb.tokenize(statement)
    ends = [begin for begin, _ in tokens[1:]] + [len(statement.encode())]
    encoded = statement.encode()
    words = [
        encoded[begin:end].decode(errors="replace").split()[0].lower()
        for (begin, kind), end in zip(tokens, ends, strict=True)
        if kind in (duckdb.token_type.keyword, duckdb.token_type.operator)
    ]
    return bool(words) and words[0] in _OPENERS and not _WRITES.intersection(words)


def with_integers_as(
    selection: duckdb.DuckDBPyRelation, names: Sequence[str], to: str
) -> duckdb.DuckDBPyRelation:
    """Return a selection whose integers of 128 bits, as sums have, are of another type."""
    columns = ", ".join(
        f"#{place}{f'::{to}' if str(of_type) in _WIDE else ''} AS {_identifier(name)}"
        for place, (name, of_type) in enumerate(zip(names, selection.types, strict=True), start=1)
    )
    return selection.project(columns)


_WIDE = ("HUGEINT", "UHUGEINT")


def short(statement: str) -> str:
    """Return a statement on one line, cut if it is long."""
    text = " ".join(statement.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _identifier(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def distinct(names: list[str]) -> list[str]:
    """Return the names of columns, with a number appended to repeated names."""
    found: list[str] = []
    for name in names:
        number, new = 1, name
        while new in found:
            new, number = f"{name}_{number}", number + 1
        found.append(new)
    return found
