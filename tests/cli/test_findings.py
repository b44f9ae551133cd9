"""`commtrace findings`: as people and as programs read it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from commtrace.tracefile import write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, step, trace_of


@pytest.fixture
def wasteful_json(tmp_path: Path) -> Path:
    """One rank that sends 20 small messages outside of its only module."""
    calls = [
        call(
            id=i, seq=i, step=0, at=100 * i, until=100 * i + 40, blocked_ns=40, payload_bytes=8,
            wire_bytes=8, source_file="a.py", source_line=9,
        )
        for i in range(20)
    ]  # fmt: skip
    calls.append(call(id=20, seq=20, module="m", source_spec="f32[8] tp:R"))
    trace = trace_of(calls, num_ranks=1, steps=[step(0, 0, 0, 3000)])
    return write_trace(trace, tmp_path / "wasteful.json")


def test_findings_have_their_cost_and_advice_and_what_was_not_judged_its_reason(
    commtrace: Commtrace, wasteful_json: Path
) -> None:
    ended = commtrace("findings", wasteful_json)
    assert ended.code == 0
    assert re.sub(" +\n", "\n", ended.out) == (
        "2 findings\n"
        "\n"
        "outside_modules  could save 800 ns (26.7% of the steps) and 160 B\n"
        "  20 calls of all_reduce in forward were made outside of any module, at a.py:9.\n"
        "  Move them into a module, so that they are planned and seen with it, or check\n"
        "  that they are meant.\n"
        "  at a.py:9\n"
        "\n"
        "small_messages  could save 760 ns (25.3% of the steps)\n"
        "  20 calls of all_reduce on tp in forward carry 8 B on average, less than a link\n"
        "  needs to reach its speed.\n"
        "  Send them together: coalesced or in buckets, or less often.\n"
        "  at a.py:9\n"
        "\n"
        "not judged: wide_types. No call carries a type of 16 bits. The trace has the\n"
        "types of what is sent, not of what is computed, so whether float32 is wider than\n"
        "the program's own type cannot be told.\n"
    )
    assert ended.err == f"next  commtrace explain {wasteful_json} 0:0\n"


def test_without_findings_the_page_comes_next(commtrace: Commtrace, tmp_path: Path) -> None:
    trace = write_trace(trace_of([call(id=0, module="m")], num_ranks=1), tmp_path / "fine.json")
    ended = commtrace("findings", trace)
    assert ended.out.startswith("0 findings\n")
    assert ended.err == f"next  commtrace report {trace}\n"


def test_rows_beyond_the_limit_are_counted(commtrace: Commtrace, wasteful_json: Path) -> None:
    ended = commtrace("findings", wasteful_json, "--rows", "1")
    assert "1 more: --rows 2" in ended.out
    assert "small_messages" not in ended.out


def test_json_and_csv_hold_exact_numbers(commtrace: Commtrace, wasteful_json: Path) -> None:
    rows = json.loads(commtrace("findings", wasteful_json, "--json").out)["findings"]["rows"]
    assert [row["cost_ns"] for row in rows] == [800, 760]
    ended = commtrace("findings", wasteful_json, "--csv")
    assert [row["rule"] for row in csv.DictReader(io.StringIO(ended.out))] == [
        "outside_modules",
        "small_messages",
    ]
