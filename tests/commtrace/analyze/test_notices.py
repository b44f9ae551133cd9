from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.analyze.notices import EVERYTHING, MINOR_RULES, RULES, notices_on
from tests.commtrace.analyze.rows import call, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace


def texts(frames: Frames) -> str:
    return "\n".join(notice.text for notice in notices_of(frames) if not notice.is_minor)


def test_a_complete_run_has_no_notices() -> None:
    assert texts(load(training_trace())) == ""


def test_a_run_without_communication_says_only_so() -> None:
    assert texts(run_of()) == (
        "No communication was recorded: the program issued no collective and no point-to-point "
        "call while recording was on."
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"run": {"imported_from": "torch.profiler"}},
            "the files imported from torch.profiler contain no calls",
        ),
        ({"run": {"world_size": 4}}, "2 of 4 ranks left no recording"),
        (
            {"ranks": [rank_row(0), rank_row(1, complete=False)]},
            "1 rank did not close the recording",
        ),
        ({"ranks": [rank_row(0, num_dropped=7), rank_row(1)]}, "7 calls were dropped"),
        ({"run": {"part": "step 3"}}, "only a part of the run is shown"),
    ],
)
def test_a_trace_without_calls_shows_that_none_was_issued_only_if_it_is_whole(
    more: dict[str, Any], reason: str
) -> None:
    found = texts(run_of(**more))
    assert "issued no collective" not in found
    assert found.splitlines()[0] == (
        f"No communication was recorded, though the program may have communicated: {reason}."
    )


def test_calls_that_were_not_timed_or_sized_are_counted_with_their_kinds() -> None:
    known = {"module": "a", "op": "b", "blocked_ns": 5, "wire_bytes": 8}
    calls = [call(id=n, at=9 * n, until=9 * n + 5, **known) for n in range(2)]
    calls.append(call(id=2, kind="broadcast", at=30, until=40, module="a", wire_bytes=8))
    calls.append(call(id=3, kind="send", at=50, module="a", blocked_ns=1))
    calls.append(call(id=4, kind="send", at=60, module="a"))
    found = texts(run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 5)]))
    assert (
        "The blocked time is known for 3 of 5 calls, and sums of blocked time lack the others "
        "(broadcast, send): 1 without a known end, 1 without a recorded wait."
    ) in found
    assert (
        "The number of bytes sent is known for 3 of 5 calls, and sums lack the others (send)."
    ) in found
    untimed = texts(run_of([each._replace(blocked_ns=-1) for each in calls], num_ranks=1))
    assert "The blocked time is not known for 5 of 5 calls (all_reduce, broadcast, send)" in untimed
    assert ": 2 without a known end, 3 without a recorded wait." in untimed
    assert "It is unknown how much communication is exposed." in untimed


def test_waits_that_are_known_for_a_part_of_the_calls_are_counted() -> None:
    both = {"seq": 0, "at": 0, "until": 5, "blocked_ns": 5}
    calls = [call(rank=rank, **both) for rank in range(2)]
    alone = call(id=1, seq=1, kind="all_gather", at=9, until=19, blocked_ns=10)
    found = [notice.text for notice in notices_of(run_of([*calls, alone]), "wait_states")]
    expected = "The wait for a peer is known for 2 of 3 calls. The others (all_gather) "
    assert [text for text in found if text.startswith(expected)]


def test_a_run_of_one_rank_has_no_peers() -> None:
    assert "The run had one rank" in texts(run_of([call(module="a", op="b")], num_ranks=1))


def test_one_rank_of_many_is_distinguished_from_a_run_of_one() -> None:
    frames = run_of([call(module="a", op="b")], num_ranks=1, run={"world_size": 8})
    assert "Only one of 8 ranks is in this trace" in texts(frames)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ([3], "Rank 3 left no recording: means are over the 2 recorded ranks"),
        ([2, 3], "Ranks 2, 3 left no recording"),
        (list(range(2, 20)), "Ranks 2-19 left no recording"),
    ],
)
def test_missing_ranks_are_named(missing: list[int], message: str) -> None:
    frames = run_of([call(module="a", op="b")], run={"missing_ranks": missing})
    assert message in texts(frames)


def test_a_run_that_no_rank_recorded_is_said_to_be_so() -> None:
    frames = run_of(num_ranks=0, groups=[], run={"missing_ranks": [0, 1]})
    assert "None of the 2 ranks left a recording." in texts(frames)


def test_an_interrupted_rank_is_named() -> None:
    ranks = [rank_row(0), rank_row(1, complete=False)]
    assert "Rank 1 did not close the recording" in texts(run_of([call()], ranks=ranks))


def test_dropped_calls_are_counted() -> None:
    ranks = [rank_row(0, num_dropped=4), rank_row(1, num_dropped=3)]
    assert "7 calls were dropped" in texts(run_of([call()], ranks=ranks))


def test_what_an_unknown_source_lacks_is_reported() -> None:
    run = {"lacks": ["reasons of calls", "modules"]}
    expected = "Imported from another tool, which lacks: reasons of calls; modules."
    assert expected in texts(run_of([call()], run=run))


def test_a_program_without_calls_in_modules_is_told_so_beside_their_table_only() -> None:
    frames = run_of([call()])
    said = notices_on("by_module", notices_of(frames))
    assert any(text.startswith("No call was made in a module") for text in said)
    assert "module" not in texts(frames)


def test_steps_operators_and_matches_are_missed_one_by_one() -> None:
    bare = texts(run_of([call()]))
    for message in (
        "No steps were marked",
        "Operators were not recorded",
        "No collective could be matched across its ranks",
    ):
        assert message in bare
    shared = {"seq": 0, "at": 0, "until": 5, "blocked_ns": 5, "module": "a", "op": "b"}
    shared |= {"payload_bytes": 4, "wire_bytes": 4}
    calls = [call(rank=rank, **shared) for rank in range(2)]
    assert texts(run_of(calls, steps=[step(0, 0, 0, 5)])) == ""


def test_clocks_of_several_hosts_are_mentioned() -> None:
    frames = run_of([call()], run={"clock": "wall clocks of several hosts"})
    assert "hosts with separate clocks" in texts(frames)


def test_a_notice_is_reported_where_it_matters() -> None:
    timed = call(module="a", at=0, until=5, blocked_ns=5, wire_bytes=4)
    message = notices_of(run_of([timed], run={"missing_ranks": [3]}))
    missing = next(notice.text for notice in message if notice.limits == (EVERYTHING,))
    steps = next(notice.text for notice in message if "by_step" in notice.limits)
    assert notices_on("by_kind", message) == [missing]
    assert steps in notices_on("by_step", message)


def test_notices_limit_only_what_exists() -> None:
    known = {*CATALOG, "flame", "timeline", EVERYTHING}
    assert {name for limits, _ in RULES + MINOR_RULES for name in limits} <= known


def test_calls_of_the_outermost_module_are_in_a_module() -> None:
    reported = [notice.text for notice in notices_of(run_of([call(module_class="Net")]))]
    assert not any("in a module" in text for text in reported)
