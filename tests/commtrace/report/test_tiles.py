from __future__ import annotations

import pytest

from commtrace.analyze import Frames, load
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary
from commtrace.report.tiles import NOT_KNOWN, Tile, extent, tiles
from tests.commtrace.analyze.rows import call, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace


def tiles_of(frames: Frames) -> list[Tile]:
    answers = Answers(frames)
    return tiles(answers, consistency_summary(answers))


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
        "Bytes sent": ("4 kB", "by all ranks, for a payload of 6 kB"),
        "Calls": ("3", "of 2 kinds; 1 to 2 per rank"),
        "Time blocked": ("300 µs", "per rank, of 1 ms recorded"),
        "Exposed": ("30.0%", "of step time is exposed communication"),
        "Worst rank": ("rank 1", "others waited 200 µs for it, 100% of the total wait"),
        "Findings": ("0", "no rule applies"),
        "Ranks consistent": ("yes", "all ranks agree in kind, size and order"),
    }
    assert extent(Answers(frames)) == ["2 ranks on 1 host", "2 steps, median 500 µs"]


def test_without_steps_the_share_is_of_the_recorded_time() -> None:
    found = texts(run_of([call(blocked_ns=100_000)]))
    assert found["Exposed"] == ("5.0%", "of the recorded time is exposed communication")
    assert found["Worst rank"][0] == NOT_KNOWN


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
    assert texts(frames)["Worst rank"][0] == f"rank {late_rank}"


def test_only_a_share_has_a_meter() -> None:
    frames = load(training_trace())
    (metered,) = [tile for tile in tiles_of(frames) if tile.has_meter]
    assert metered.title == "Exposed"
    assert metered.value == f"{metered.percent:.1f}%"


def test_ranks_that_disagree_are_a_fault() -> None:
    shared = {"seq": 0, "blocked_ns": 1}
    frames = run_of([call(rank=0, at=0, **shared), call(rank=1, at=5, kind="barrier", **shared)])
    assert texts(frames)["Ranks consistent"][0] == "1 fault"


def test_steps_whose_duration_is_not_known_have_no_median() -> None:
    frames = run_of([call(at=0, until=5, blocked_ns=5, step=0)])
    assert extent(Answers(frames))[1] == "1 step"
