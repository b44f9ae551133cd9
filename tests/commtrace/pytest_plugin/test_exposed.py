"""The expectation `exposed`: a bound on the part of the time in which calls block a rank."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.errors import UsageError
from commtrace.pytest_plugin.expectation import claims_of
from commtrace.pytest_plugin.mismatch import check
from commtrace.pytest_plugin.observed import OWN, observed_in
from commtrace.tracefile import Trace
from tests.commtrace.analyze.overlap.overlap_lost.lossy import Program, issued_late, overlapped
from tests.commtrace.analyze.rows import call, trace_of

pytest_plugins = ["pytester"]


def verdict(trace: Trace, **arguments: Any) -> str:
    failure = check(claims_of(arguments, caller=""), observed_in({OWN: trace}), caller="the test")
    return str(failure) if failure else ""


@pytest.mark.parametrize("limit", ["20%", 0.2, " 20.0 % ", "100%", 1])
def test_time_up_to_the_limit_passes(limit: Any) -> None:
    assert verdict(issued_late().trace(), exposed=limit) == ""


def test_more_fails_with_both_numbers_and_the_reasons() -> None:
    assert verdict(issued_late().trace(), exposed="5%").splitlines() == [
        "the test does not hold",
        "  found: exposed 20%, expected <= 5%",
        "  try: see the source lines of the calls below; --comms-report=DIR saves the trace",
        "",
        "  expected       found        on ranks",
        "  exposed <= 5%  exposed 20%  all 2",
        "",
        "why it was not hidden:",
        "  exposed  could hide  reason       kind        phase    module  line",
        "     6 ms        6 ms  issued_late  all_reduce  forward          train.py:7",
        "",
        "recorded, per rank, of 2 ranks:",
        "  calls  kind        payload  wire  phase    group  line",
        "      3  all_reduce  3.15 MB   0 B  forward  tp     train.py:7",
    ]


def test_what_is_hidden_does_not_count() -> None:
    # 10 µs, 300 µs and 100 µs of 10 ms.
    assert verdict(overlapped().trace(), exposed="4.1%") == ""
    assert "exposed 4.1%, expected <= 4%" in verdict(overlapped().trace(), exposed="4%")


def test_a_least_share_can_be_expected() -> None:
    assert verdict(issued_late().trace(), min_exposed="20%") == ""
    assert "exposed 20%, expected >= 30%" in verdict(issued_late().trace(), min_exposed="30%")


def test_without_steps_it_is_a_part_of_the_recorded_time() -> None:
    blocked = [call(at=0, until=100_000, call_ns=100_000, blocked_ns=100_000, step=-1)]
    assert "exposed 10%, expected <= 5%" in verdict(trace_of(blocked, num_ranks=1), exposed="5%")


def test_a_rank_without_calls_is_not_exposed() -> None:
    program = Program()
    program.runs(0, 10)
    assert verdict(program.trace(), exposed="0%") == ""


def test_unknown_times_are_no_success() -> None:
    text = verdict(trace_of([call(at=0, step=-1)], num_ranks=1), exposed="5%")
    assert text == (
        "the test cannot be checked\n"
        "  found: 0\n"
        "  why: the time of these ranks, or for how long calls blocked them, is unknown\n"
        "  try: wait for asynchronous calls in the body of the test"
    )


@pytest.mark.parametrize("value", ["5", 5, -0.1, "5 ms", "101%", True, None, "<=5%"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UsageError) as error:
        claims_of({"exposed": value}, caller="@pytest.mark.comms")
    assert str(error.value) == (
        f"@pytest.mark.comms: exposed={value!r}\n"
        "  found: no share of the time between 0 and 100%\n"
        "  why: exposed takes a part of the steps' time, in percent or as a fraction\n"
        '  try: a form like "5%" or 0.05'
    )


@pytest.mark.parametrize("filters", [{"module": "m"}, {"ranks": "sum"}])
def test_it_takes_no_filters(filters: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="bounds exposed of some calls only"):
        claims_of({"exposed": "5%", **filters}, caller="")


def test_the_marker_takes_it(project: Any) -> None:
    program = """
@pytest.mark.comms(exposed="{limit}")
@on_threads(2)
def test_it():
    torch.ones(4).add(1)
    reduce(3)
"""
    project.passes(program.format(limit="100%"))
    text = project.failure(program.format(limit="0%"))
    assert "expected <= 0%" in text
    assert "why it was not hidden:" in text
