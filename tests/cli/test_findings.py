"""`commtrace findings`: for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from commtrace.analyze.findings import RULES
from commtrace.tracefile import write_trace
from tests.cli.conftest import Commtrace
from tests.commtrace.analyze.rows import call, step, trace_of


@pytest.fixture
def wasteful_json(tmp_path: Path) -> Path:
    """A trace of a rank that sends 20 small messages outside of its only module."""
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


def test_findings_have_their_cost_and_advice_and_unevaluated_rules_a_reason(
    commtrace: Commtrace, wasteful_json: Path
) -> None:
    ended = commtrace("findings", wasteful_json)
    assert ended.code == 0
    assert re.sub(" +\n", "\n", ended.out) == (
        "2 findings\n"
        "\n"
        "small_messages  could save at most 760 ns\n"
        "  20 calls of all_reduce on tp in forward carry 8 B on average, too small for\n"
        "  the full bandwidth of a link.\n"
        "  Coalesce them or use buckets, or send less often.\n"
        "  replayed: merge where finding=1\n"
        "  at a.py:9\n"
        "\n"
        "outside_modules\n"
        "  20 calls of all_reduce in forward are outside of any module, at a.py:9.\n"
        "  Move them into a module, so that they are attributed to it, or check that they\n"
        "  are intended.\n"
        "  at a.py:9\n"
        "\n"
        "not evaluated: all_reduce_then_shard. The trace does not state which part of a\n"
        'result operators used (recorded with detail="op", on the CPU).\n'
        "\n"
        "not evaluated: float32_messages. No call carries a 16-bit type. The trace does\n"
        'not state whether data was cast for its call (recorded with detail="op", on the\n'
        "CPU).\n"
        "\n"
        "not evaluated: repeated_reduction. No reduction names the parameters of its\n"
        "gradients (DistributedDataParallel's and FSDP's do), so repeated reductions\n"
        "cannot be identified.\n"
        "\n"
        "not evaluated: shared_cores. The trace does not state for how long ranks had no\n"
        "core (recorded on Linux).\n"
        "\n"
        "not evaluated: overlap_lost, dependent_communication. The trace does not state\n"
        'when data was ready or used (recorded with detail="op", on the CPU).\n'
        "\n"
        "not evaluated: gathered_logits, sums_apart. The trace does not state which\n"
        'operators used the results of calls (recorded with detail="op", on the CPU).\n'
    )
    assert ended.err == f"next  commtrace explain {wasteful_json} 0:0\n"


@pytest.fixture
def warming_up_json(tmp_path: Path) -> Path:
    """A trace of four steps with small messages outside of modules, the first 20 times as long."""
    calls = [
        call(
            id=n, seq=n, step=n // 20, at=1000 * n, until=1000 * n + 400, blocked_ns=400,
            payload_bytes=8, wire_bytes=8, source_file="a.py", source_line=9,
        )
        for n in range(80)
    ]  # fmt: skip
    calls.append(call(id=80, seq=80, at=80_000, until=80_100, module="m", step=3))
    steps = [step(0, n, 20_000 * n - 400_000 * (n == 0), 20_000 * (n + 1)) for n in range(4)]
    trace = trace_of(calls, num_ranks=1, steps=steps)
    return write_trace(trace, tmp_path / "warming_up.json")


def test_the_step_that_savings_leave_out_is_named(
    commtrace: Commtrace, warming_up_json: Path
) -> None:
    ended = commtrace("findings", warming_up_json)
    assert "Savings refer to steady steps: step 0 left out: 21 × the median." in ended.out
    assert "small_messages  could save at most 22.8 µs\n" in ended.out


def test_findings_of_a_range_of_steps_are_those_of_its_calls(
    commtrace: Commtrace, warming_up_json: Path
) -> None:
    whole, part = (
        json.loads(commtrace("findings", warming_up_json, "--json", *steps).out)["findings"]["rows"]
        for steps in ((), ("--steps", "0:1"))
    )
    calls = [
        {each["rule"]: each["num_calls"] for each in rows}["small_messages"]
        for rows in (whole, part)
    ]
    assert calls == [80, 40]
    assert "left out" not in commtrace("findings", warming_up_json, "--steps", "0:1").out
    ended = commtrace("findings", warming_up_json, "--steps", "7")
    assert ended.code == 2
    assert ended.err == "error: no step from 7 to 7\n  found: steps 0 to 3\n  try: other steps\n"


def test_without_findings_the_page_comes_next(commtrace: Commtrace, tmp_path: Path) -> None:
    trace = write_trace(trace_of([call(id=0, module="m")], num_ranks=1), tmp_path / "fine.json")
    ended = commtrace("findings", trace)
    assert re.match(rf"0 findings\n\d+ of {len(RULES)} rules could be evaluated\n", ended.out)
    assert ended.err == f"next  commtrace report {trace}\n"


def test_rows_beyond_the_limit_are_counted(commtrace: Commtrace, wasteful_json: Path) -> None:
    ended = commtrace("findings", wasteful_json, "--rows", "1")
    assert "1 more: --rows 2" in ended.out
    assert "outside_modules" not in ended.out


def test_json_and_csv_hold_exact_numbers(commtrace: Commtrace, wasteful_json: Path) -> None:
    rows = json.loads(commtrace("findings", wasteful_json, "--json").out)["findings"]["rows"]
    assert [(row["cost_ns"], row["most_ns"]) for row in rows] == [(0, 760), (0, 0)]
    assert [row["change"] for row in rows] == ["merge where finding=1", ""]
    ended = commtrace("findings", wasteful_json, "--csv")
    assert [row["rule"] for row in csv.DictReader(io.StringIO(ended.out))] == [
        "small_messages",
        "outside_modules",
    ]


@pytest.mark.parametrize(
    ("requested", "code"),
    [
        (["outside_modules"], 1),
        (["any"], 1),
        (["stall", "small_messages"], 1),
        (["repeated_all_gather"], 0),
        ([], 0),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_fail_on_ends_with_1_where_the_rule_has_found_something(
    commtrace: Commtrace, wasteful_json: Path, requested: list[str], code: int, form: list[str]
) -> None:
    options = [part for name in requested for part in ("--fail-on", name)]
    assert commtrace("findings", wasteful_json, *options, *form).code == code


def test_fail_on_a_rule_that_was_not_evaluated_is_reported(
    commtrace: Commtrace, wasteful_json: Path
) -> None:
    ended = commtrace("findings", wasteful_json, "--fail-on", "float32_messages", "--json")
    assert ended.code == 0
    assert ended.err.startswith(
        "note: float32_messages could not be evaluated: No call carries a 16-bit type"
    )


def test_fail_on_accepts_former_names(commtrace: Commtrace, wasteful_json: Path) -> None:
    ended = commtrace("findings", wasteful_json, "--fail-on", "wide_types", "--json")
    assert ended.code == 0
    assert ended.err.startswith("note: float32_messages could not be evaluated")


def test_fail_on_a_rule_that_there_is_not_is_refused(
    commtrace: Commtrace, wasteful_json: Path
) -> None:
    ended = commtrace("findings", wasteful_json, "--fail-on", "stal")
    assert ended.code == 2
    assert "no rule 'stal'" in ended.err
    assert "try: stall" in ended.err


MUTED = """
[[tool.commtrace.muted]]
rule = "outside_modules"
source = "a.py:*"
reason = "the loss"
"""


def test_a_muted_finding_is_reported_with_its_reason_and_fails_nothing(
    commtrace: Commtrace, wasteful_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(MUTED)
    monkeypatch.chdir(tmp_path)
    ended = commtrace("findings", wasteful_json, "--fail-on", "outside_modules")
    assert ended.code == 0
    assert "1 finding\n" in ended.out
    text = " ".join(ended.out.split())
    assert "muted: 1 finding of outside_modules. the loss (" in text
    document = json.loads(commtrace("findings", wasteful_json, "--json").out)
    assert document["muted"] == [
        {"rule": "outside_modules", "reason": "the loss", "num_findings": 1}
    ]
    assert set(document["unanswered"]) == {
        "all_reduce_then_shard", "float32_messages", "overlap_lost", "repeated_reduction",
        "shared_cores", "dependent_communication", "gathered_logits", "sums_apart",
    }  # fmt: skip


def test_a_mistake_in_the_settings_is_reported(
    commtrace: Commtrace, wasteful_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.commtrace]\nmute = []")
    monkeypatch.chdir(tmp_path)
    ended = commtrace("findings", wasteful_json)
    assert ended.code == 2
    assert "no setting 'mute' in [tool.commtrace]" in ended.err
