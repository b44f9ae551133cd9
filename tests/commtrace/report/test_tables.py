from __future__ import annotations

import json
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.report import tables as module
from commtrace.report.tables import SHOWN, TITLES, tables
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace


def by_name(frames: Frames) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in tables(frames)}


def column(table: dict[str, Any], name: str) -> list[Any]:
    data = table["data"][name]
    return [data["strings"][code] for code in data["codes"]] if isinstance(data, dict) else data


@pytest.mark.parametrize("frames", [load(training_trace()), load(random_trace(2)), run_of()])
def test_every_value_arrives_and_what_is_not_known_is_null(frames: Frames) -> None:
    for name, table in by_name(frames).items():
        wanted = CATALOG[name].function(frames)
        assert table["num_rows"] == len(wanted)
        for described in CATALOG[name].columns:
            found = column(table, described.name)
            for value, original in zip(found, wanted[described.name], strict=True):
                if value is None:
                    assert original in (-1,) or original != original
                elif described.unit == "unix ns":
                    assert value + frames.start_ns == original
                else:
                    assert value == original


def test_tables_are_json_that_a_browser_reads() -> None:
    text = json.dumps(tables(load(random_trace(4))), allow_nan=False)
    numbers = [value for table in json.loads(text) for value in table["data"].values()]
    assert all(abs(v) < 2**53 for n in numbers if isinstance(n, list) for v in n if v is not None)


def test_what_is_shown_exists_and_has_a_title() -> None:
    for name, shown in SHOWN.items():
        known = {column.name for column in CATALOG[name].columns}
        assert known >= set(shown), name
        assert set(shown) <= set(TITLES), name


def test_step_minus_one_is_a_step_and_not_something_unknown() -> None:
    assert column(by_name(run_of([call(step=-1)]))["by_step"], "step") == [-1]


def test_of_too_many_calls_those_that_block_longest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CALLS", 2)
    frames = run_of([call(id=number, blocked_ns=time) for number, time in enumerate([1, 9, 3, 7])])
    table = by_name(frames)["calls"]
    assert column(table, "id") == [1, 3]
    assert column(table, "row") == [1, 3]
    assert (table["num_rows"], table["num_left_out"]) == (2, 2)
