"""Repeated findings of a rule at a line are merged, with their total cost."""

from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analyze.findings import by_missing_data, findings, grouped
from tests.commtrace.analyze.rows import call, run_of, step

PADDED = {
    "phase": "optimizer",  # outside of passes, where calls outside of modules are no finding
    "kind": "all_gather",
    "payload_bytes": 40,
    "wire_bytes": 20,
    "source_spec": "f32[9] tp:S(0)",
}


def padded(modules: list[str], lines: list[int]) -> pd.DataFrame:
    """Findings of nine-element gathers in ten places, 100 ns the first, each 10 ns less."""
    calls = [
        call(
            id=i, seq=i, step=0, at=200 * i, until=200 * i + 100 - 10 * i, blocked_ns=100 - 10 * i,
            module=module, source_file="a.py", source_line=line, **PADDED,
        )
        for i, (module, line) in enumerate(zip(modules, lines, strict=True))
    ]  # fmt: skip
    table = findings(run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 1000)]))
    return table[table["rule"] == "padded_shards"]


def test_findings_of_one_line_become_one_with_the_costs_of_all() -> None:
    table = padded(["a", "b", "c"], [7, 7, 7])
    assert len(table) == 3
    (one,) = grouped(table).to_dict("records")
    assert one["title"] == f"{table['title'].iloc[0]} The same in b, c."
    assert one["cost_ns"] == pytest.approx(table["cost_ns"].sum())
    assert one["share"] == pytest.approx(table["share"].sum()) == pytest.approx(0.027)
    assert one["num_calls"] == 3
    assert one["evidence"] == "0:0,0:1,0:2"
    assert (one["module"], one["kind"]) == ("", "all_gather")


@pytest.mark.parametrize(
    ("modules", "likewise"),
    [
        (["a", "b", "c", "d", "e", "f"], "The same in b, c, d and 2 more."),
        (["", "a"], "The same in a."),
        (["a", ""], "The same 1 more time at this line."),
    ],
)
def test_where_else_it_is_so_is_reported(modules: list[str], likewise: str) -> None:
    (title,) = grouped(padded(modules, [7] * len(modules)))["title"]
    assert title.endswith(f" {likewise}")


def test_other_lines_and_rules_stay_apart_and_in_order() -> None:
    table = padded(["a", "b", "c"], [7, 8, 8])
    assert grouped(table)["source"].tolist() == ["a.py:8", "a.py:7"]
    assert grouped(table).columns.tolist() == table.columns.tolist()
    assert grouped(table.head(0)).empty


def test_rules_are_reported_by_what_they_lack() -> None:
    reported = by_missing_data(
        {
            "ping_pong": "no layouts",
            "float32_messages": "no halves",
            "replication_fallback": "no layouts",
        }
    )
    assert reported == {
        "no layouts": ["ping_pong", "replication_fallback"],
        "no halves": ["float32_messages"],
    }
