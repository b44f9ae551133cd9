"""The time of steps that were not recorded on purpose is neither recorded time nor work."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.comparisons.diff import differences_of_runs
from commtrace.analyze.consistency import consistency
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.measures.unrecorded import unrecorded
from commtrace.analyze.notices import notices_of
from commtrace.analyze.overlap.overlap import overlap
from commtrace.analyze.traffic.by_step import by_step
from commtrace.analyze.waits.activity import activity
from commtrace.analyze.waits.collectives import member_calls
from commtrace.analyze.waits.time_before import preceding, previous_end, uses_before
from tests.commtrace.analyze.rows import LASTS_NS, call, run_of, step

EVERY = 10


def run(*, every: int | None = EVERY, first: int = 0) -> Frames:
    """Two ranks; set-up until 100, then steps of 50 ns at 100, 1100 and 2100, a call in each.

    Rank 1 issues each call 5 ns later, and both complete 10 ns after that.
    """
    starts = [100, 1100, 2100]
    calls = [
        call(
            rank=rank, id=n, seq=n, step=EVERY * (n + first), at=start + 20 + 5 * rank,
            until=start + 35, call_ns=1, blocked_ns=15 - 5 * rank, payload_bytes=8, wire_bytes=8,
        )
        for rank in range(2)
        for n, start in enumerate(starts)
    ]  # fmt: skip
    steps = [
        step(rank, EVERY * (n + first), start, start + 50)
        for rank in range(2)
        for n, start in enumerate(starts)
    ]
    facts: dict[str, Any] = {} if every is None else {"every": every}
    return run_of(calls, steps=steps, run=facts)


def test_it_lies_between_steps_and_after_the_last_one() -> None:
    of_a_rank = [(150, 1100), (1150, 2100), (2150, LASTS_NS)]
    assert unrecorded(run()).to_numpy().tolist() == [
        [rank, *gap] for rank in range(2) for gap in of_a_rank
    ]
    assert unrecorded(run(first=1)).to_numpy().tolist()[0] == [0, 0, 100]
    assert unrecorded(run(every=None)).empty


def test_it_is_no_recorded_time() -> None:
    assert recorded_ns(run()).tolist() == [250, 250]
    assert recorded_ns(run(first=1)).tolist() == [150, 150]
    assert recorded_ns(run(every=None)).tolist() == [LASTS_NS, LASTS_NS]


@pytest.mark.parametrize(("every", "lasts"), [(EVERY, 100), (None, LASTS_NS - 100)])
def test_what_is_outside_of_steps_lasts_until_the_first_one(every: int | None, lasts: int) -> None:
    calls = [call(rank=rank, id=9, step=-1, at=10, until=12, blocked_ns=2) for rank in range(2)]
    steps = [step(rank, n, 100 + 1000 * n, 150 + 1000 * n) for rank in range(2) for n in (0, 10)]
    frames = run_of(calls, steps=steps, run={} if every is None else {"every": every})
    for table in (by_step(frames), overlap(frames)):
        assert set(table.loc[table["step"] < 0, "duration_ns"]) == {lasts}
        assert set(table.loc[table["step"] >= 0, "duration_ns"]) == {50}
        assert table["step"].unique().tolist() == [-1, 0, 10]


def test_no_rank_works_in_it() -> None:
    table = activity(run())
    works = table[table["activity"] == "working"].groupby("rank")["duration_ns"]
    assert works.sum().tolist() == [2 * (15 + 20), 2 * (15 + 25)]
    assert activity(run(every=None))["duration_ns"].max() > 900


def test_the_time_before_a_call_begins_with_its_step() -> None:
    frames = run()
    assert previous_end(frames).tolist()[1:3] == [1100, 2100]
    later = member_calls(frames)["number"] > 0
    assert _begin(frames)[later].tolist() == [1100, 2100] * 2
    assert _begin(run(every=None))[later].max() < 1200


def _begin(frames: Frames) -> pd.Series:
    members = member_calls(frames)
    return uses_before(frames, members.join(preceding(frames, members)))["begin"]


def test_calls_between_are_not_blamed_on_a_ring_buffer() -> None:
    calls = [call(rank=rank, id=3 * n, seq=3 * n, at=9 * n) for rank in range(2) for n in (0, 1)]
    frames = run_of(calls, run={"every": 3})
    (problem,) = consistency(frames).to_dict("records")
    assert problem["problem"] == "lost calls"
    assert "not every step was recorded" in problem["explanation"]


def test_a_notice_and_a_comparison_say_so() -> None:
    (notice,) = [each for each in notices_of(run()) if "every" in each.text]
    assert notice.text == (
        "Only every 10th step was recorded: counts, bytes and times cover the 3 recorded "
        "steps and what precedes the first step, not the whole run."
    )
    assert not [each for each in notices_of(run(every=None)) if "every" in each.text]
    notes = differences_of_runs(run(every=None), run())
    assert "Of the second run, only every 10th step was recorded." in notes
