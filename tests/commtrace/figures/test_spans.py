from __future__ import annotations

import itertools

import pandas as pd
import pytest

from commtrace.analyze import load
from commtrace.figures.spans import call_spans, marks, phase_spans
from tests.commtrace.analyze.rows import START_NS, call, op, run_of
from tests.commtrace.analyze.training import training_trace


def lanes(times: list[tuple[int, int]]) -> list[int]:
    calls = [call(at=start, until=end) for start, end in times]
    return call_spans(run_of(calls)).sort_values("row")["lane"].tolist()


def test_calls_that_do_not_overlap_share_a_lane() -> None:
    assert lanes([(0, 10), (10, 20), (25, 30)]) == [0, 0, 0]


def test_calls_that_overlap_lie_in_lanes_of_their_own_and_lanes_are_used_again() -> None:
    assert lanes([(0, 100), (10, 20), (15, 40), (20, 30), (100, 110)]) == [0, 1, 2, 1, 0]


def test_ranks_have_lanes_of_their_own() -> None:
    calls = [call(rank=rank, at=0, until=10) for rank in (1, 0, 0)]
    spans = call_spans(run_of(calls))
    assert list(zip(spans["rank"], spans["lane"], strict=True)) == [(0, 0), (0, 1), (1, 0)]


def test_no_two_calls_in_a_lane_overlap_on_any_run() -> None:
    starts = [(7 * place * place) % 997 for place in range(200)]
    calls = [call(at=start, until=start + 1 + start % 40) for start in starts]
    spans = call_spans(run_of(calls))
    assert spans["lane"].max() > 2
    for _, lane in spans.groupby("lane"):
        lane = lane.sort_values("start_ns")
        assert (lane["start_ns"].to_numpy()[1:] >= lane["end_ns"].to_numpy()[:-1]).all()


def test_a_call_is_ready_when_its_last_peer_came() -> None:
    shared = {"seq": 0, "until": 100}
    calls = [
        call(rank=0, at=0, call_ns=100, blocked_ns=100, **shared),
        call(rank=1, at=60, call_ns=40, blocked_ns=40, **shared),
        call(rank=1, at=200, until=230),
    ]
    ready = call_spans(run_of(calls))["ready_ns"] - START_NS
    assert ready.tolist() == [60, 60, 200]


def test_a_window_keeps_what_touches_it() -> None:
    calls = [call(at=start, until=start + 10) for start in (0, 20, 40, 60)]
    spans = call_spans(run_of(calls), (START_NS + 30, START_NS + 45))
    assert spans["row"].tolist() == [1, 2]


def test_a_call_without_a_time_is_not_drawn() -> None:
    assert call_spans(run_of([call(), call(at=0)]))["row"].tolist() == [1]


def test_few_calls_are_drawn_one_by_one_in_two_parts() -> None:
    spans = call_spans(load(training_trace()))
    drawn, is_single = marks(spans, 10_000)
    assert is_single
    transfers = drawn[drawn["part"] == "transfer"]
    assert transfers["row"].tolist() == spans["row"].tolist()
    assert transfers["start_ns"].tolist() == spans["ready_ns"].tolist()
    waits = drawn[drawn["part"] == "wait"]
    waited = spans[spans["ready_ns"] > spans["start_ns"]]
    assert waits["row"].tolist() == waited["row"].tolist()
    assert waits["busy_ns"].tolist() == (waited["ready_ns"] - waited["start_ns"]).tolist()
    assert set(drawn["top"]) == {0}
    assert set(drawn["height"]) == {1}


def test_lanes_share_the_height_of_their_rank() -> None:
    calls = [call(at=0, until=10), call(at=5, until=15), call(rank=1, at=0, until=10)]
    drawn, _ = marks(call_spans(run_of(calls)), 100)
    assert list(zip(drawn["rank"], drawn["top"], drawn["height"], strict=True)) == [
        (0, 0, 0.5),
        (0, 0.5, 0.5),
        (1, 0, 1),
    ]


def test_a_column_is_shared_by_what_happens_in_it() -> None:
    # Two columns of 100. Rank 0: five all-reduces in the first quarter of the first column and an
    # all-gather across the border. Rank 1: two concurrent calls throughout the second column.
    calls = [
        *(call(kind="all_reduce", at=at, until=at + 5) for at in range(0, 25, 5)),
        call(kind="all_gather", at=90, until=150),
        call(rank=1, kind="all_reduce", at=100, until=150),
        call(rank=1, kind="all_reduce", at=150, until=200),
        call(rank=1, kind="all_gather", at=100, until=200),
    ]
    drawn, is_single = marks(call_spans(run_of(calls)), 8)
    assert not is_single
    found = {
        (row.rank, row.kind, row.start_ns - START_NS): (row.busy_ns, row.height, row.num_calls)
        for row in drawn.itertuples(index=False)
    }
    assert found == {
        (0, "all_reduce", 0): (25, 0.25, 5),
        (0, "all_gather", 0): (10, 0.10, 1),
        (0, "all_gather", 100): (50, 0.50, 0),
        (1, "all_reduce", 100): (100, 0.5, 2),
        (1, "all_gather", 100): (100, 0.5, 1),
    }
    assert set(drawn["end_ns"] - drawn["start_ns"]) == {100}


@pytest.fixture
def many() -> pd.DataFrame:
    return call_spans(load(training_trace(num_steps=40)))


@pytest.mark.parametrize("most", [40, 400, 2000])
def test_many_calls_become_few_marks_that_lose_no_call_and_no_time(
    many: pd.DataFrame, most: int
) -> None:
    drawn, is_single = marks(many, most)
    assert not is_single
    assert len(drawn) <= most
    assert (drawn["row"] == -1).all()
    assert drawn["num_calls"].sum() == len(many)
    assert drawn["busy_ns"].sum() == (many["end_ns"] - many["start_ns"]).sum()
    for rank, of_rank in many.groupby("rank"):
        waited = (of_rank["ready_ns"] - of_rank["start_ns"]).sum()
        found = drawn[(drawn["rank"] == rank) & (drawn["part"] == "wait")]
        assert found["busy_ns"].sum() == waited


def test_the_shares_of_a_column_lie_on_each_other_and_fill_at_most_the_row(
    many: pd.DataFrame,
) -> None:
    drawn, _ = marks(many, 400)
    for _, cell in drawn.groupby(["rank", "start_ns"]):
        edges = sorted(zip(cell["top"], cell["top"] + cell["height"], strict=True))
        assert edges[0][0] > -1e-9
        assert edges[-1][1] == pytest.approx(1)
        for (_, bottom), (top, _) in itertools.pairwise(edges):
            assert bottom == pytest.approx(top)


def test_phases_are_stretches_of_outer_operators() -> None:
    ops = [
        op(id=0, at=0, duration_ns=10, phase="forward"),
        op(id=1, at=2, duration_ns=5, phase="recompute", parent=0),
        op(id=2, at=20, duration_ns=10, phase="forward"),
        op(id=3, at=40, duration_ns=10, phase="backward"),
        op(id=4, at=60, duration_ns=10, phase="forward"),
        op(id=0, at=5, duration_ns=1, phase="forward", rank=1),
    ]
    spans = phase_spans(run_of(ops=ops))
    found = [
        (row.rank, row.phase, row.start_ns - START_NS, row.end_ns - START_NS)
        for row in spans.itertuples(index=False)
    ]
    assert found == [
        (0, "forward", 0, 30),
        (0, "backward", 40, 50),
        (0, "forward", 60, 70),
        (1, "forward", 5, 6),
    ]


def test_without_operators_there_are_no_phases() -> None:
    assert phase_spans(run_of([call(at=0)])).empty
