"""Repeated findings of a rule at a line are merged, with their changes replayed together."""

from __future__ import annotations

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.findings import by_missing_data, findings, grouped
from commtrace.analyze.whatif.asked import what_if
from tests.commtrace.analyze.rows import call, run_of, step

PADDED = {
    "phase": "optimizer",  # outside of passes, where calls outside of modules are no finding
    "kind": "all_gather",
    "payload_bytes": 40,
    "wire_bytes": 20,
    "source_spec": "f32[9] tp:S(0)",
}


def padded(modules: list[str], lines: list[int]) -> Frames:
    """Nine-element gathers in ten places, a tenth padding: 1000 ns the first, each 100 ns less."""
    calls = [
        call(
            id=i, seq=i, step=0, at=2000 * i, until=2000 * i + lasts, call_ns=lasts,
            blocked_ns=lasts, module=module, source_file="a.py", source_line=line, **PADDED,
        )
        for i, (module, line) in enumerate(zip(modules, lines, strict=True))
        for lasts in [1000 - 100 * i]
    ]  # fmt: skip
    return run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 20_000)])


def test_findings_of_one_line_become_one_with_the_saving_of_all() -> None:
    frames = padded(["a", "b", "c"], [7, 7, 7])
    table = findings(frames)
    assert table["rule"].tolist() == ["padded_shards"] * 3
    assert table["cost_ns"].tolist() == [100, 90, 80]
    (one,) = grouped(frames).to_dict("records")
    assert one["title"] == f"{table['title'].iloc[0]} The same in b, c."
    assert (one["cost_ns"], one["cost_bytes"]) == (270, 3 * 2)
    assert one["share"] == 270 / 20_000
    assert one["change"] == "shrink *0.9 where finding=1,2,3"
    assert what_if(frames, [one["change"]]).saved_ns == (270, 270)
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
    frames = padded(["a", "b", "c"], [7, 8, 8])
    assert grouped(frames)["source"].tolist() == ["a.py:8", "a.py:7"]
    assert grouped(frames).columns.tolist() == findings(frames).columns.tolist()
    assert grouped(run_of(num_ranks=1)).empty


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
