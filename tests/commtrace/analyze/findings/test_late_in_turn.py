"""Delays by changing ranks: of uneven work, of ranks without a core, and of an unknown cause."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from tests.commtrace.analyze.rows import late_at_every_other, late_in_turn, late_trace, stalled_once


def found(*args: Any, **more: Any) -> list[dict[Any, Any]]:
    return findings(load(late_trace(*args, **more))).to_dict("records")


@pytest.mark.parametrize(
    ("cores", "rule", "said", "change"),
    [
        (None, "load_imbalance", "The cause is unknown.", "even"),
        (True, "load_imbalance", "Mostly for longer work: it is not even among ranks.", "even"),
        (
            False,
            "shared_cores",
            "Ranks were ready to run but had no core for 13% of the time, ",
            "cores",
        ),
    ],
    ids=["unknown", "with cores", "without cores"],
)
def test_the_cause_of_delays_by_changing_ranks_is_their_reason(
    cores: bool | None, rule: str, said: str, change: str
) -> None:
    (row,) = found(late_in_turn, cores=cores)
    assert row["rule"] == rule
    assert said in row["title"]
    assert row["change"] == f"{change} where finding=1"
    # Work that moves is shared by three ranks. The first call has nothing before it.
    saved = 4_000 * (20 if rule == "shared_cores" else 19 * 2 / 3)
    assert row["cost_ns"] == pytest.approx(saved, abs=20)


@pytest.mark.parametrize("lateness", [late_at_every_other, stalled_once])
def test_a_rank_without_a_core_is_no_culprit(lateness: Any) -> None:
    (row,) = found(lateness, cores=True)
    assert row["rule"] in ("straggler", "stall")
    assert {row["rule"] for row in found(lateness, cores=False)} <= {"shared_cores"}


def test_no_rank_is_named_that_does_not_stand_out() -> None:
    (row,) = found(late_in_turn, cores=True)
    assert "(no rank stands out)" in row["title"]


def test_delays_of_a_single_call_are_none_of_changing_ranks() -> None:
    def stopped(number: int, rank: int) -> int:
        return 8_000 if (number, rank) == (15, 0) else 0

    assert "load_imbalance" not in {row["rule"] for row in found(stopped)}


def test_time_without_a_core_counts_once_and_from_the_beginning_of_its_step() -> None:
    frames = load(late_trace(late_in_turn, cores=False))
    # As of threads that have waited for cores since long before the step, all at once.
    frames.comm["run_delay_ns"] = 10_000_000
    (row,) = findings(frames).to_dict("records")
    assert row["rule"] == "shared_cores"
    share = int(row["title"].split("no core for ")[1].split("%")[0])
    assert 50 < share <= 100
