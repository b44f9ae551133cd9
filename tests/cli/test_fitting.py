"""Columns fit a terminal; numbers are shown in full or left out, and omissions are counted."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from commtrace_cli.fitting import Fitted, fitted, omissions
from tests.cli.conftest import Commtrace

HEADINGS = {name: name for name in ("module", "kind", "wire", "blocked")}
TEXTS = {
    "module": ["a.very.long.path.to.a.module.attention", "  b"],
    "kind": ["all_reduce", "send"],
    "wire": ["13.8 kB", "2 B"],
    "blocked": ["4.26 ms", "–"],
}
NUMBERS = ("wire", "blocked")


def of_width(width: int) -> Fitted:
    importance = ("module", "blocked")
    return fitted(HEADINGS, TEXTS, width=width, numbers=NUMBERS, importance=importance)


def drawn(found: Fitted, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(found.table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_all_is_shown_where_there_is_room() -> None:
    found = of_width(80)
    assert (found.left_out, found.num_truncated) == ((), 0)
    assert drawn(found, 80)[0].split() == list(HEADINGS)


@pytest.mark.parametrize("width", range(8, 80))
def test_numbers_are_complete_and_omitted_columns_are_counted(width: int) -> None:
    found = of_width(width)
    lines = drawn(found, width)
    assert max(map(len, lines)) <= width
    shown = lines[0].split()
    assert {*shown, *found.left_out} >= {*HEADINGS} - {"module"}
    for name in NUMBERS:
        if name not in found.left_out:
            assert all(text in line for text, line in zip(TEXTS[name], lines[1:], strict=True))
    assert (
        sum("…" in line for line in lines[1:]) == min(found.num_truncated, 1)
        or found.num_truncated > 1
    )


def test_a_path_keeps_its_end_and_what_is_important_stays() -> None:
    found = of_width(40)
    assert found.left_out == ("wire",)
    assert found.num_truncated == 1
    assert drawn(found, 40)[1].startswith("…")
    assert "attention" in drawn(found, 40)[1]


def test_what_is_missing_is_reported_in_a_sentence() -> None:
    assert omissions([], 0, "with --csv") == ""
    assert omissions([str(n) for n in range(10)], 1, "with --csv") == (
        "10 columns omitted (0, 1, 2, 3, 4, 5, 6, 7, ...), 1 cell truncated: in a wider terminal, "
        "or with --csv"
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
@pytest.mark.parametrize(
    "command",
    [
        *("summary", "timeline", "flame", "findings", "check", "info"),
        *("table by_source", "table calls", "table wait_states", "dump comm", "explain longest"),
    ],
)
def test_no_command_writes_past_the_edge_or_truncates_a_number(
    commtrace: Commtrace, run_json: Path, command: str, columns: int
) -> None:
    name, *rest = command.split()
    ended = commtrace(name, run_json, *rest, columns=columns)
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= columns
    assert not re.search(r"\d(\.\d*)? ?…", ended.out)
    if "…" in ended.out:
        assert re.search(r"\d+\s+(cells?|names?)\s+truncated", ended.out)
