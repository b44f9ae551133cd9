from __future__ import annotations

import json
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.report import tables as module
from commtrace.report.answers import Answers
from commtrace.report.call_store import call_store
from commtrace.report.tables import TOPICS, tables
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace


def by_name(frames: Frames) -> dict[str, dict[str, Any]]:
    return {table["name"]: table for table in tables(Answers(frames), call_store(frames))}


def column(table: dict[str, Any], name: str) -> list[Any]:
    data = table["data"][name]
    return [data["strings"][code] for code in data["codes"]] if isinstance(data, dict) else data


@pytest.mark.parametrize("frames", [load(training_trace()), load(random_trace(2)), run_of()])
def test_every_value_arrives_and_what_is_not_known_is_null(frames: Frames) -> None:
    for name, table in by_name(frames).items():
        if name == "calls":
            continue
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
    text = json.dumps(list(by_name(load(random_trace(4))).values()), allow_nan=False)
    numbers = [value for table in json.loads(text) for value in table["data"].values()]
    assert all(abs(v) < 2**53 for n in numbers if isinstance(n, list) for v in n if v is not None)


def test_what_is_shown_exists() -> None:
    for analysis in CATALOG.values():
        assert {column.name for column in analysis.columns} >= set(analysis.shown.split())
        assert bool(analysis.topic) == bool(analysis.shown)


def test_every_analysis_is_on_the_page() -> None:
    elsewhere = {"findings", "consistency", "divergences", "facts", "activity"}
    assert {each.topic for each in CATALOG.values()} == {*TOPICS, ""}
    assert {name for name, each in CATALOG.items() if each.topic} == set(CATALOG) - elsewhere


def test_step_minus_one_is_a_step_and_not_something_unknown() -> None:
    assert column(by_name(run_of([call(step=-1)]))["by_step"], "step") == [-1]


def test_a_table_that_is_too_long_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    found = by_name(load(random_trace(4)))
    assert found["by_rank"]["num_rows"] == 2
    assert found["by_rank"]["num_left_out"] == 1
    assert found["calls"]["num_left_out"] == 0
