"""Each reason, in a run with known times: by how much it could be hidden, and behind what."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.findings import RULES, findings
from commtrace.analyze.overlap.overlap_lost.reasons import LOST, REASONS
from commtrace.analyze.overlap.overlap_lost.table import overlap_lost
from commtrace.units import text_of_duration
from tests.commtrace.analyze.overlap.overlap_lost import lossy
from tests.commtrace.analyze.overlap.overlap_lost.lossy import MIB, NUM_STEPS, STEP_US, US, Program


def rows(frames: Frames) -> list[dict[str, Any]]:
    """The rows of the table, with times in µs per step."""
    table = overlap_lost(frames)
    for name in ("exposed_ns", "transfer_ns", "hidden_ns", "could_hide_ns"):
        table[name] = table[name] / NUM_STEPS / US
    for name in ("early_ns", "slack_ns"):
        table[name] = table[name] / US
    return table.to_dict("records")


CASES: dict[str, tuple[Callable[[], Program], float, str]] = {
    "issued_late": (lossy.issued_late, 2_000, "aten.mm.default in layers.0"),
    # Work of the host counts with and without operators.
    "waited_at_once": (lossy.waited_at_once, 2_000, "aten.mm.default in layers.1"),
    # Rank 0 and rank 1 do the same: 2 ms of the second bucket, and nothing of the first.
    "bucket_order": (lossy.wrong_bucket_order, 2_000, "aten.mm.default in layers.0"),
    "prefetch_late": (lossy.late_prefetch, 2_000, "aten.mm.default in layers.0"),
    # Both messages take 2 ms after another, one of which would be hidden; on one rank of two.
    "blocked_by_receive": (lossy.serial_receives, 1_000, ""),
    "not_split": (lossy.gather_then_matmul, 1_500, ""),
    "bucket_too_large": (lossy.large_bucket, 1_500, ""),
    "one_stream": (lossy.one_stream, math.nan, ""),
}


@pytest.mark.parametrize("reason", CASES)
def test_a_loss_has_its_reason_and_its_time(reason: str) -> None:
    program, could_us, behind = CASES[reason]
    found = [row for row in rows(program().run()) if row["reason"] in LOST]
    assert [row["reason"] for row in found] == [reason]
    assert found[0]["could_hide_ns"] == pytest.approx(could_us, nan_ok=True)
    assert found[0]["behind"] == behind
    assert found[0]["advice"] == REASONS[reason].advice
    share = found[0]["share_of_steps"]
    assert share == pytest.approx(could_us / STEP_US, nan_ok=True)


def test_every_reason_of_a_loss_has_a_case() -> None:
    assert CASES.keys() | {"bucket_too_small"} == LOST.keys()


def test_small_buckets_but_the_longest_are_found_and_not_hidden_by_an_earlier_issue() -> None:
    program = lossy.small_buckets()
    program.calls[3]["until"] += 100  # the longest
    program.calls[4] |= {"at": program.calls[3]["until"], "ready": program.calls[3]["until"]}
    (row,) = [row for row in rows(program.run()) if row["reason"] == "bucket_too_small"]
    assert row["num_calls"] == 19 * NUM_STEPS
    assert row["could_hide_ns"] == 0


def test_times_of_a_row_are_means_over_ranks_and_calls() -> None:
    (row,) = rows(lossy.issued_late().run())
    assert row["num_calls"] == NUM_STEPS
    assert row["num_steps"] == NUM_STEPS
    assert (row["exposed_ns"], row["transfer_ns"], row["hidden_ns"]) == (2_000, 2_000, 0)
    assert (row["early_ns"], row["slack_ns"]) == (4_000, 0)
    assert (row["source_file"], row["source_line"], row["mesh_axis"]) == ("train.py", 7, "tp")


def test_a_healthy_run_has_no_loss_and_shows_behind_what_it_is_hidden() -> None:
    found = rows(lossy.overlapped().run())
    lost = {row["reason"]: row["could_hide_ns"] for row in found if row["reason"] in LOST}
    # A gather that ends 10 µs after the program begins to wait for it, in a step of 10 ms.
    assert lost == {"waited_at_once": 10}
    hidden = [row for row in found if row["reason"] == "hidden"]
    assert {row["behind"] for row in hidden} == {"aten.mm.default in layers.0"}
    assert sum(row["hidden_ns"] for row in hidden) == pytest.approx(1_500)


def test_unknown_dependencies_are_unknown_and_not_zero() -> None:
    (row,) = rows(lossy.of_unknown_dependencies().run())
    assert row["reason"] == "unknown"
    assert [math.isnan(row[name]) for name in ("could_hide_ns", "early_ns", "slack_ns")] == [
        True
    ] * 3
    assert row["exposed_ns"] == 2_000


def test_what_is_known_of_one_side_is_a_lower_bound() -> None:
    program = lossy.issued_late()
    program.calls[0] |= {"ready": 4_000, "used": -1}
    (row,) = rows(program.run())
    assert (row["reason"], row["could_hide_ns"]) == ("issued_late", 1_000)  # 4,000 to 5,000


def test_data_that_is_ready_at_the_issue_and_used_at_the_end_leaves_nothing_to_hide_behind() -> (
    None
):
    program = lossy.issued_late()
    program.calls[0] |= {"ready": 5_000}
    (row,) = rows(program.run())
    assert (row["reason"], row["could_hide_ns"]) == ("dependent", 0)


def with_a_late_rank(ready_us: float) -> Frames:
    """Rank 1 issues 1.95 ms late, and its data is as much later."""
    frames = lossy.issued_late().run()
    comm = frames.comm
    is_late = comm["rank"] == 1
    late = comm["issue_ns"] + 1_950 * US
    ready = comm["data_ready_ns"] + round(ready_us * US)
    return replace(
        frames,
        comm=comm.assign(
            issue_ns=comm["issue_ns"].mask(is_late, late),
            data_ready_ns=comm["data_ready_ns"].mask(is_late, ready),
            blocked_ns=comm["blocked_ns"].mask(is_late, 50 * US),
            call_ns=comm["call_ns"].mask(is_late, 50 * US),
        ),
    )


def test_the_wait_for_a_late_rank_is_no_lost_overlap() -> None:
    by_reason = overlap_lost(with_a_late_rank(5_950)).set_index("reason")
    assert by_reason["exposed_ns"].to_dict() == {
        "late_rank": NUM_STEPS * 2_000 * US / 2,
        "dependent": NUM_STEPS * 50 * US / 2,
    }
    assert by_reason["could_hide_ns"].to_dict() == {"late_rank": 0, "dependent": 0}


def test_the_transfer_behind_a_late_rank_is_hidden_if_that_could_have_issued_its_call_before() -> (
    None
):
    by_reason = overlap_lost(with_a_late_rank(0)).set_index("reason")
    each = NUM_STEPS * 50 * US / 2
    assert by_reason["could_hide_ns"].to_dict() == {"late_rank": each, "issued_late": each}


def test_calls_share_the_time_that_they_could_be_hidden_behind() -> None:
    program = Program()
    program.runs(0, 1_000)
    program.runs(1_000, 2_000, "aten.mm.default")
    for n in range(3):  # each could be hidden behind the same millisecond
        at = 2_000 + 1_000 * n
        program.sends(at, at + 1_000, ready=1_000, used=5_000)
    table = overlap_lost(program.run())
    assert table["could_hide_ns"].sum() == pytest.approx(NUM_STEPS * 1_000 * US)


def test_time_in_which_another_call_is_in_flight_hides_nothing() -> None:
    program = lossy.issued_late()
    program.sends(1_500, 4_500, waits=4_500, ready=1_400, used=4_500, module="other")
    lost = [row for row in rows(program.run()) if row["reason"] in LOST]
    assert lost == []


def test_without_operators_a_rank_computes_while_no_call_is_in_flight() -> None:
    program = lossy.waited_at_once()
    program.ops.clear()
    (row,) = rows(program.run())
    assert (row["reason"], row["could_hide_ns"], row["behind"]) == ("waited_at_once", 2_000, "")


def test_parameters_are_ready_since_the_optimizer_s_last_operator() -> None:
    program = lossy.late_prefetch()
    program.runs(4_000 - 500, 4_000 - 400, "aten._fused_adam_.default", phase="optimizer")
    (row,) = [row for row in rows(program.run()) if row["kind"] == "all_gather"]
    assert row["early_ns"] == 400
    assert row["could_hide_ns"] == 400


def test_small_gathers_are_not_to_be_split() -> None:
    program = lossy.gather_then_matmul()
    program.calls[0]["payload_bytes"] = 2 * MIB - 1
    (row,) = rows(program.run())
    assert row["reason"] == "dependent"


def test_a_receive_of_data_that_was_sent_later_is_not_serial() -> None:
    program = lossy.serial_receives()
    program.calls[1] |= {"sent": 3_000}
    assert not [row for row in rows(program.run()) if row["reason"] in LOST]


def test_data_that_waits_for_its_receive_is_late_by_what_ran_before() -> None:
    program = lossy.serial_receives()
    program.calls[1] |= {"sent": 3_000, "at": 4_000}
    program.runs(3_000, 4_000)
    (row,) = [row for row in rows(program.run()) if row["reason"] in LOST]
    assert (row["reason"], row["kind"]) == ("issued_late", "recv")
    assert row["could_hide_ns"] == 1_000 / 2  # on one of two ranks


def reported(frames: Frames) -> pd.DataFrame:
    table = findings(frames)
    return table[table["rule"] == "overlap_lost"]


@pytest.mark.parametrize("reason", [name for name in CASES if name != "one_stream"])
def test_a_loss_of_a_twentieth_of_the_steps_is_a_finding(reason: str) -> None:
    program, could_us, _ = CASES[reason]
    (row,) = reported(program().run()).to_dict("records")
    assert row["advice"] == LOST[reason].advice
    assert row["source"] == "train.py:7"
    assert text_of_duration(could_us * US) in row["title"]


@pytest.mark.parametrize("reason", ["issued_late", "waited_at_once"])
def test_overlap_of_a_call_that_something_else_could_hide_saves_all_of_its_time(
    reason: str,
) -> None:
    """2 ms behind 3 ms of the host's work, be it operators or not."""
    (row,) = reported(CASES[reason][0]().run()).to_dict("records")
    assert row["cost_ns"] == 2_000 * NUM_STEPS * US
    assert row["share"] == 2_000 / STEP_US
    assert row["change"] == "overlap where finding=1"


@pytest.mark.parametrize("reason", ["not_split", "bucket_too_large"])
def test_what_a_replay_cannot_change_saves_an_unknown_time(reason: str) -> None:
    (row,) = reported(CASES[reason][0]().run()).to_dict("records")
    assert math.isnan(row["cost_ns"])
    assert row["change"] == ""


def test_a_finding_says_what_happened_by_how_much_and_behind_what() -> None:
    (row,) = reported(lossy.issued_late().run()).to_dict("records")
    assert row["title"] == (
        "all_reduce in forward, whose input was ready 4 ms before they were issued: 2 ms per step "
        "exposed, which could run behind aten.mm.default in layers.0."
    )


@pytest.mark.parametrize("program", [lossy.overlapped, lossy.one_stream, lossy.small_buckets])
def test_healthy_and_unknown_calls_give_no_finding(program: Callable[[], Program]) -> None:
    assert reported(program().run()).empty


def test_a_loss_below_the_threshold_or_in_one_step_of_many_is_no_finding() -> None:
    program = lossy.issued_late()
    program.ops[1]["until"] = 5_000
    program.calls[0] |= {"ready": 4_510}  # 490 µs of 10 ms
    assert reported(program.run()).empty
    program.calls[0] |= {"ready": 4_490}
    assert len(reported(program.run())) == 1
    frames = lossy.issued_late().run(num_steps=5)
    comm = frames.comm
    late = comm["step"] < 2  # 4 ms of 50 ms
    comm = comm.assign(data_ready_ns=comm["data_ready_ns"].where(late, comm["issue_ns"]))
    assert reported(replace(frames, comm=comm)).empty


def test_the_threshold_is_a_setting() -> None:
    frames = lossy.issued_late().run()
    strict = replace(frames.settings, thresholds={"overlap_share": 0.21})
    assert reported(frames.with_settings(strict)).empty
    assert {rule.name for rule in RULES} >= {"overlap_lost"}
