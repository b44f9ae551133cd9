from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.excerpts.time_window import of_steps, window_of_steps, within
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.errors import UsageError
from tests.commtrace.analyze.rows import START_NS, call, group, op, run_of, step, sync
from tests.commtrace.analyze.training import training_trace


def test_steps_have_what_happened_in_them() -> None:
    frames = load(training_trace(num_steps=4))
    part = of_steps(frames, 1, 2)
    assert set(part.comm["step"]) == {1, 2}
    assert len(part.comm) == (frames.comm["step"].isin((1, 2))).sum()
    table, full = (CATALOG["by_step"].function(each) for each in (part, frames))
    chosen = full[full["step"].isin((1, 2))]
    pd.testing.assert_frame_equal(table.reset_index(drop=True), chosen.reset_index(drop=True))
    assert part.run["part"] == "steps 1 to 2"


def test_waits_equal_those_of_the_entire_run() -> None:
    frames = load(training_trace(num_steps=4))
    full = arrivals(frames).assign(step=frames.comm["step"])
    expected = full[full["step"] == 3].drop(columns="step").to_dict("list")
    assert arrivals(of_steps(frames, 3, 3)).to_dict("list") == expected


def test_a_collective_is_in_a_window_with_all_of_its_members_or_not_at_all() -> None:
    frames = run_of(
        [
            call(rank=0, id=0, seq=0, at=0, until=100, blocked_ns=100),
            call(rank=1, id=0, seq=0, at=90, until=100, blocked_ns=10),
            call(rank=0, id=1, seq=1, at=200, until=300, blocked_ns=100),
            call(rank=1, id=1, seq=1, at=200, until=300, blocked_ns=100),
        ],
        ops=[op(at=0, duration_ns=20), op(at=40, duration_ns=20)],
        syncs=[sync(id=n, at=20 * n, until=20 * n + 10) for n in range(4)],
        steps=[step(0, 0, 0, 150), step(0, 1, 150, 400)],
    )
    part = within(frames, (20, 60))
    assert part.comm[["rank", "id"]].to_numpy().tolist() == [[0, 0], [1, 0]]
    assert (part.ranks["end_ns"] - part.ranks["start_ns"]).tolist() == [40, 40]
    assert part.ops["start_ns"].sub(frames.start_ns).tolist() == [40]
    assert part.syncs["id"].tolist() == [1, 2]
    assert part.steps["step"].tolist() == [0]


def test_numbers_of_collectives_beside_transfers_stay_known() -> None:
    sends = [
        call(rank=0, id=0, seq=0, kind="send", peer=1, at=0, until=9, blocked_ns=9),
        call(rank=1, id=0, seq=0, kind="recv", peer=0, at=4, until=9, blocked_ns=5),
    ]
    later = [
        call(rank=rank, id=1, seq=1, at=100 + 30 * rank, until=200, blocked_ns=100 - 30 * rank)
        for rank in range(3)
    ]
    later[2] = later[2]._replace(seq=0, id=0)
    frames = run_of([*sends, *later], num_ranks=3, groups=[group(ranks=range(3))])
    found = arrivals(within(frames, (100, 200)))
    assert found["last_rank"].tolist() == [2, 2, 2]
    assert found["wait_ns"].tolist() == [60, 30, 0]


def test_what_is_not_there_is_refused() -> None:
    frames = load(training_trace(num_steps=2))
    with pytest.raises(UsageError, match="no step from 5 to 6\n  found: steps 0 to 1"):
        of_steps(frames, 5, 6)
    with pytest.raises(UsageError, match="no communication from 5 s to 6 s"):
        within(frames, (5_000_000_000, 6_000_000_000))
    with pytest.raises(UsageError, match="no steps"):
        of_steps(run_of([call()]), 0, 0)


def test_steps_without_a_known_beginning_stretch_no_window() -> None:
    steps = [step(0, 0, -START_NS - 1, 50), step(0, 1, 50, 90)]
    frames = run_of([call(at=60, until=70)], steps=steps)
    assert window_of_steps(frames, 0, 1) == (50, 90)
    with pytest.raises(UsageError, match="no step from 0 to 0"):
        window_of_steps(frames, 0, 0)
