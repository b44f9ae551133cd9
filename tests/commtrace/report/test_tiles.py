from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.findings import RULES, unanswered
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary
from commtrace.report.tiles import NOT_KNOWN, Tile, answer_tiles, extent, size_tiles
from tests.commtrace.analyze.rows import call, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace


def tiles_of(frames: Frames) -> list[Tile]:
    answers = Answers(frames)
    return [*answer_tiles(answers, consistency_summary(answers)), *size_tiles(answers)]


def texts(frames: Frames) -> dict[str, tuple[str, str]]:
    return {tile.title: (tile.value, tile.note) for tile in tiles_of(frames)}


def test_the_tiles_of_a_small_run() -> None:
    # Each rank is recorded for 1 ms. Rank 1 is 200 µs late to the only all-reduce.
    shared = {"seq": 0, "until": 400_000, "step": 0, "payload_bytes": 3000, "wire_bytes": 2000}
    frames = run_of(
        [
            call(rank=0, at=0, call_ns=400_000, blocked_ns=400_000, **shared),
            call(rank=1, at=200_000, call_ns=200_000, blocked_ns=200_000, **shared),
            call(rank=0, kind="barrier"),
        ],
        steps=[step(rank, number, 0, 500_000) for rank in range(2) for number in range(2)],
    )
    assert texts(frames) == {
        "Bytes sent": (*("4 kB", "by all ranks, for a payload of 6 kB, known for 2 of 3 calls"),),
        "Calls": ("3", "of 2 kinds; 1 to 2 per rank"),
        "Time blocked": ("300 µs", "per rank, of 1 ms recorded, known for 2 of 3 calls"),
        "Exposed communication": ("30.0%", "of a step of 500 µs"),
        "Waiting for late ranks": ("10.0%", "of step time, 100% of it for rank 1"),
        "Findings": ("0", f"no rule applies; 12 of {len(RULES)} lack data"),
        "Ranks consistent": (
            *("2 of 3 calls", "no fault among the 2 of 3 calls that could be compared"),
        ),
    }
    assert extent(Answers(frames)) == ["2 ranks on 1 host", "2 steps, median 500 µs"]


@pytest.mark.parametrize(
    ("late_to", "cause"),
    [
        ((3, 3, 2, 2), "no rank stands out as their cause"),
        ((6, 2, 1, 1), "60% of it for rank 0"),
    ],
)
def test_a_rank_causes_the_waits_from_one_and_a_half_times_its_even_share_on(
    late_to: tuple[int, ...], cause: str
) -> None:
    """Four ranks, each late by the same time to some of ten collectives."""
    late = [rank for rank, num in enumerate(late_to) for _ in range(num)]
    calls = [
        call(rank=r, id=n, seq=n, at=100 * n + 40 * (late[n] == r), until=100 * n + 50,
             call_ns=50 - 40 * (late[n] == r), blocked_ns=50 - 40 * (late[n] == r))
        for n in range(10) for r in range(4)
    ]  # fmt: skip
    value, note = texts(run_of(calls, num_ranks=4))["Waiting for late ranks"]
    # 10 calls, three ranks of four wait 40 ns each, of 1 ms recorded by each.
    assert (value, note) == ("0.0%", f"of the recorded time, {cause}")


def test_without_steps_the_share_is_of_the_recorded_time() -> None:
    found = texts(run_of([call(at=0, blocked_ns=100_000)]))
    assert found["Exposed communication"] == ("5.0%", "of the recorded time")
    assert found["Waiting for late ranks"][0] == NOT_KNOWN


def test_the_tiles_of_calls_that_were_neither_timed_nor_sized_nor_compared() -> None:
    calls = [call(rank=rank, id=n, at=9 * n) for rank in range(2) for n in range(32)]
    steps = [step(rank, 0, 0, 500_000) for rank in range(2)]
    unknown = "not known for 64 of 64 calls"
    for marked, in_step in (([], -1), (steps, 0)):
        frames = run_of([each._replace(step=in_step) for each in calls], steps=marked)
        assert texts(frames) == {
            "Bytes sent": (NOT_KNOWN, unknown),
            "Calls per rank": ("32", "of 1 kind; 64 in all"),
            "Time blocked": (NOT_KNOWN, unknown),
            "Exposed communication": (NOT_KNOWN, unknown),
            "Waiting for late ranks": (NOT_KNOWN, f"no known waits between ranks, {unknown}"),
            "Findings": (
                "0",
                f"no rule applies; {len(unanswered(frames))} of {len(RULES)} lack data",
            ),
            "Ranks consistent": (NOT_KNOWN, "not compared: 64 calls of 2 ranks"),
        }
        assert not any(tile.has_meter or tile.mood for tile in tiles_of(frames))


def test_the_tiles_of_calls_that_are_known_in_part() -> None:
    # Rank 0 knows 5 of its 8 calls and rank 1 none; all of them are in a step of 1 µs.
    calls = [
        call(
            rank=rank, id=n, seq=n, step=0, at=100 * n,
            **({"until": 100 * n + 40, "blocked_ns": 40, "wire_bytes": 6} if rank + n < 5 else {}),
        )
        for rank, num in ((0, 5), (1, 5))
        for n in range(num)
    ]  # fmt: skip
    calls = [each._replace(blocked_ns=-1) if each.rank else each for each in calls]
    frames = run_of(calls, steps=[step(rank, 0, 0, 1000) for rank in range(2)])
    found = texts(frames)
    assert found["Bytes sent"] == ("54 B", "by all ranks, known for 9 of 10 calls")
    assert found["Time blocked"] == (
        *("200 ns", "per rank, of 1 ms recorded, known for 5 of 10 calls"),
    )
    # Of rank 1, the exposed time is unknown, so its step is no part of the whole.
    assert found["Exposed communication"] == (
        *("20.0%", "of a step of 1 µs, known for 5 of 10 calls"),
    )


@pytest.mark.parametrize(
    "more",
    [
        {"run": {"imported_from": "torch.profiler"}},
        {"ranks": [rank_row(0), rank_row(1, complete=False)]},
        {"run": {"world_size": 8}},
    ],
)
def test_a_trace_without_calls_that_is_not_whole_has_no_times_of_0(more: dict[str, Any]) -> None:
    steps = [step(rank, 0, 0, 1000) for rank in range(2)]
    found = texts(run_of(steps=steps, **more))
    assert found.pop("Calls") == ("0", "no call is in the trace")
    assert found.pop("Ranks consistent") == (NOT_KNOWN, "not compared: there is no call")
    assert {value for value, _ in found.values()} == {NOT_KNOWN}
    whole = texts(run_of(steps=steps))
    assert (whole["Time blocked"][0], whole["Exposed communication"][0]) == ("0 ns", "0.0%")


def test_missing_ranks_and_hosts_are_counted() -> None:
    ranks = [rank_row(0, host="a"), rank_row(1, host="b")]
    frames = run_of([call()], ranks=ranks, run={"missing_ranks": [2]})
    assert extent(Answers(frames)) == ["2 ranks on 2 hosts, 1 missing", "no steps marked"]


def test_a_trace_without_ranks_has_tiles_too() -> None:
    found = texts(run_of(num_ranks=0, groups=[]))
    assert found["Calls"] == ("0", "no rank was recorded")
    assert found["Time blocked"] == (NOT_KNOWN, "no rank was recorded")


@pytest.mark.parametrize("late_rank", [0, 3])
def test_the_rank_that_was_made_late_is_found(late_rank: int) -> None:
    frames = load(training_trace(late_rank=late_rank))
    assert texts(frames)["Waiting for late ranks"][1].endswith(f" of it for rank {late_rank}")


def test_only_shares_have_a_meter() -> None:
    metered = [tile for tile in tiles_of(load(training_trace())) if tile.has_meter]
    assert [tile.title for tile in metered] == ["Exposed communication", "Waiting for late ranks"]
    assert all(tile.value == f"{tile.percent:.1f}%" for tile in metered)


def test_ranks_that_disagree_are_a_fault() -> None:
    shared = {"seq": 0, "blocked_ns": 1}
    frames = run_of([call(rank=0, at=0, **shared), call(rank=1, at=5, kind="barrier", **shared)])
    assert texts(frames)["Ranks consistent"][0] == "1 fault"


def test_steps_whose_duration_is_not_known_have_no_median() -> None:
    frames = run_of([call(at=0, until=5, blocked_ns=5, step=0)])
    assert extent(Answers(frames))[1] == "1 step"
