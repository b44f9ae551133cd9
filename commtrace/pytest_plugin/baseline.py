"""Baselines: the recorded communication of each test, as last approved.

Each test file has a baseline file, beside it or in a separate folder, with one line per place
that communicates: a rank's communication by module, operator, kind, group and phase. Entries are
derived from recordings, written sorted, and compared as two runs are.

    {"format": "comms-baseline 1", "tests": {"test_step": {"ranks": 4, "places": [
      {"module": "layers.0", "op": "aten.mm.default", "kind": "all_reduce", ..., "calls": 2, ...}
    ]}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.atomic_write import atomic_write, make_folder
from commtrace.errors import NewerTraceError, NotATraceError
from commtrace.pytest_plugin.mismatch import ExpectationError, text_table
from commtrace.pytest_plugin.observed import Observed
from commtrace.pytest_plugin.options import INCREASE, setting
from commtrace.tracefile.reading import Allowance, is_int, parse_json, read_file, reading, text_in
from commtrace.units import text_of_value

if TYPE_CHECKING:
    import pandas

BaselineEntry = dict[str, Any]

SUFFIX = ".comms.json"
_WORD, _VERSION = "comms-baseline", 1
_KEYS = ("module", "op", "kind", "group", "phase")
_MEASURES = ("calls", "payload_bytes", "wire_bytes")
_SCOPE = "run"


def path_of(test_file: Path, folder: str, root: Path) -> Path:
    """Return the baseline path of a test file: beside it, or at the same place below `folder`."""
    name = test_file.with_suffix(SUFFIX)
    if not folder:
        return name
    inside = Path(os.path.relpath(name, root))
    return root / folder / (name.name if os.pardir in inside.parts else inside)


def entry_of(found: Observed) -> BaselineEntry:
    """Return a rank's mean communication, by place."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in found.rows:
        place = (row.module, row.op, row.kind, row.group_text, row.phase)
        total = sums.setdefault(place, [0, 0, 0])
        for number, value in enumerate((1, row.payload_bytes, row.wire_bytes)):
            total[number] += max(value, 0)
    num = max(len(found.ranks), 1)
    places = [
        dict(zip(_KEYS, place, strict=True))
        | {
            name: value // num if value % num == 0 else value / num
            for name, value in zip(_MEASURES, total, strict=True)
        }
        for place, total in sorted(sums.items())
    ]
    return {"ranks": len(found.ranks), "places": places}


def read(path: Path) -> dict[str, BaselineEntry]:
    """Read the entries of a baseline file, by test; empty if there is no file.

    Raises:
        NewerTraceError: a later commtrace has written the file.
        NotATraceError: the file is not a baseline.
        TraceError: the file cannot be opened or is too large.
    """
    summary = f"cannot read the baseline {path}"
    with reading(summary):
        if not path.exists() and not path.is_symlink():
            return {}
        data = read_file(path, summary)
        allowance = Allowance(summary, len(data))
        try:
            document = parse_json(text_in(data), allowance)
            _refuse_newer(document, summary)
            tests = _tests_in(document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise NotATraceError(
                summary,
                found=f"{type(error).__name__}: {error}",
                why="it was not written by --comms-update, or was edited",
                attempt="restore it, or remove it and run pytest --comms-update",
            ) from error
        return tests


def _refuse_newer(document: Any, summary: str) -> None:
    word, _, version = str(document["format"])[:40].partition(" ")
    if word == _WORD and version.isdecimal() and int(version) > _VERSION:
        raise NewerTraceError(
            summary,
            found=f"version {version}",
            why=f"this commtrace reads versions up to {_VERSION}",
            attempt="install a newer commtrace",
        )


def _tests_in(document: Any) -> dict[str, BaselineEntry]:
    """Return the entries by test, after validating their values."""
    if document["format"] != f"{_WORD} {_VERSION}":
        raise ValueError(f"format {str(document['format'])[:40]!r}")
    for name, entry in document["tests"].items():
        places = entry["places"]
        if not is_int(entry["ranks"]) or entry["ranks"] < 0 or not isinstance(places, list):
            raise ValueError(f"ranks or places of {name[:60]!r}")
        for place in places:
            for key in _KEYS:
                if not isinstance(place[key], str):
                    raise TypeError(f"{key} of {name[:60]!r}: {str(place[key])[:40]}")
            for key in _MEASURES:
                if type(place[key]) not in (int, float) or not 0 <= place[key] < _MOST:
                    raise ValueError(f"{key} of {name[:60]!r}: {str(place[key])[:40]}")
    return document["tests"]


_MOST = 1 << 62


def write(path: Path, entries: Mapping[str, BaselineEntry]) -> bool:
    """Replace the given entries in a baseline file; return whether the file has changed."""
    before = read(path)
    after = {**before, **entries}
    if before == after and path.exists():
        return False
    make_folder(path.parent)
    with atomic_write(path) as unfinished:
        unfinished.write_text(_text(after), encoding="utf-8")
    return True


def _text(tests: Mapping[str, BaselineEntry]) -> str:
    """Format the file: tests sorted by name, one line per place, for readable diffs."""
    blocks = []
    for name, entry in sorted(tests.items()):
        places = ",\n".join(f"        {json.dumps(place)}" for place in entry["places"])
        listed = f"[\n{places}\n      ]" if places else "[]"
        blocks.append(
            f"    {json.dumps(name)}: {{\n"
            f'      "ranks": {entry["ranks"]},\n'
            f'      "places": {listed}\n'
            "    }"
        )
    inside = ",\n".join(blocks)
    return f'{{\n  "format": "{_WORD} {_VERSION}",\n  "tests": {{\n{inside}\n  }}\n}}\n'


def compare(
    before: BaselineEntry | None, after: BaselineEntry, mode: str, *, test: str, path: str
) -> ExpectationError | None:
    """Return the failure if a test communicates otherwise than its baseline allows."""
    update = f'pytest --comms-update "{test}" and commit {path}'
    if before is None:
        return ExpectationError(
            f"{test} has no baseline",
            found=f"no entry in {path}",
            why="without a baseline, the test could never fail",
            attempt=update,
        )
    if before == after:
        return None
    from commtrace.analyze.comparisons.diff import SAME, increases
    from commtrace.analyze.comparisons.diff import compare as compare_sums

    table = compare_sums(_frame(before), _frame(after))
    changes = table[table["change"] != SAME]
    grown = {
        "calls": increases(table, "calls").get(_SCOPE),
        "wire": increases(table, "bytes").get(_SCOPE),
    }
    differences = [
        f"{name} {_text_of(name, each[0])} -> {_text_of(name, each[1])}"
        for name, each in grown.items()
        if each is not None
    ]
    if mode == INCREASE and not differences:
        return None
    if changes.empty and before["ranks"] == after["ranks"]:
        return None
    if before["ranks"] != after["ranks"]:
        differences.append(f"{before['ranks']} ranks -> {after['ranks']} ranks")
    differs = "communicates more than" if grown["calls"] or grown["wire"] else "differs from"
    error = ExpectationError(
        f"{test} {differs} its baseline",
        found="; ".join(differences) or f"changes in {len(changes)} places",
        attempt=f"if this is intended, {update}",
    )
    error.args = (f"{error.args[0]}\n\n{_text_of_changes(changes)}",)
    return error


def _frame(entry: BaselineEntry) -> pandas.DataFrame:
    """Convert an entry to the DataFrame that the comparison of two runs expects."""
    import pandas

    from commtrace.analyze.comparisons.diff import KEYS, MEASURED

    rows = [{**place, "scope": _SCOPE, "blocked_ns": 0} for place in entry["places"]]
    return pandas.DataFrame(rows, columns=[*KEYS, *MEASURED]).set_index(list(KEYS)).astype(float)


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def _text_of_changes(changes: pandas.DataFrame) -> str:
    lines: list[Sequence[str]] = []
    for row in changes.to_dict("records"):
        numbers = [
            _arrow(_text_of(name, row[f"{column}_before"]), _text_of(name, row[f"{column}_after"]))
            for name, column in (
                ("calls", "calls"),
                ("payload", "payload_bytes"),
                ("wire", "wire_bytes"),
            )
        ]
        where = [str(row[name]) for name in ("phase", "module", "op", "group")]
        lines.append((_SIGNS[str(row["change"])], str(row["kind"]), *numbers, *where))
    columns = (" ", "kind", "calls", "payload", "wire", "phase", "module", "operator", "group")
    return "baseline -> now, per rank:\n" + text_table(columns, lines)


def _arrow(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def _text_of(name: str, value: float) -> str:
    return f"{value:g}" if name == "calls" else text_of_value(value, "bytes")


def test_name(item: pytest.Item) -> str:
    """Return a test's name in its file's baseline: `TestClass::test_name[parameters]`."""
    return item.nodeid.partition("::")[2]


def stale_entries(config: pytest.Config, items: Sequence[pytest.Item]) -> dict[str, list[str]]:
    """Return by baseline file the entries that no collected test has.

    Only test files collected as a whole are checked, since a test that was not selected still
    exists.
    """
    partly = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
        if "::" in argument
    }
    names: dict[Path, set[str]] = {}
    for item in items:
        names.setdefault(item.path, set()).add(test_name(item))
    folder, root = setting(config, "baseline_dir"), config.rootpath
    found = {}
    for file, known in names.items():
        path = path_of(file, folder, root)
        stale = [] if file.resolve() in partly else sorted({*read(path)} - known)
        if stale:
            inside = path.relative_to(root) if path.is_relative_to(root) else path
            found[inside.as_posix()] = stale
    return found
