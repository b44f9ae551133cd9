from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analyze import load
from commtrace.figures.spans import call_spans, joined, phase_spans
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


def test_few_calls_stay_single() -> None:
    spans = call_spans(load(training_trace()))
    marks = joined(spans, len(spans))
    assert marks["row"].tolist() == spans["row"].tolist()
    assert set(marks["num_calls"]) == {1}


@pytest.fixture
def many() -> pd.DataFrame:
    kinds = ("all_reduce", "all_gather", "all_reduce")
    calls = [
        call(rank=place % 2, kind=kinds[place % 3], at=100 * place, until=100 * place + 50)
        for place in range(3000)
    ]
    return call_spans(run_of(calls))


@pytest.mark.parametrize("most", [10, 100, 1000])
def test_many_calls_become_few_marks_that_lose_none(many: pd.DataFrame, most: int) -> None:
    marks = joined(many, most)
    assert len(marks) <= most
    assert marks["num_calls"].sum() == len(many)
    for by in ("rank", "kind"):
        counts = marks.groupby(by)["num_calls"].sum().to_dict()
        assert counts == many.groupby(by).size().to_dict()


def test_a_mark_of_several_calls_spans_them_and_names_none(many: pd.DataFrame) -> None:
    marks = joined(many, 100)
    several = marks[marks["num_calls"] > 1]
    assert (several["row"] == -1).all()
    assert marks["start_ns"].min() == many["start_ns"].min()
    assert marks["end_ns"].max() == many["end_ns"].max()


def test_a_lonely_call_among_many_stays_single(many: pd.DataFrame) -> None:
    lonely = many.iloc[[0]].assign(row=99_999, start_ns=10**15 + START_NS, end_ns=10**15 + START_NS)
    marks = joined(pd.concat([many, lonely], ignore_index=True), 100)
    assert marks.loc[marks["row"] == 99_999, "num_calls"].tolist() == [1]


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
