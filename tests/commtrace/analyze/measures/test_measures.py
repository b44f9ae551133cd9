from __future__ import annotations

import math

import pytest

from commtrace.analyze.measures.measures import MEASURES, measures, recorded_ns, steps_ns, totals
from tests.commtrace.analyze.by_hand import NAMES
from tests.commtrace.analyze.rows import LASTS_NS, START_NS, call, rank_row, run_of, step


def measured(frames, by="kind"):
    return measures(frames, totals(frames, [by])).to_dict("index")


def test_the_measures_are_as_documented() -> None:
    assert tuple(column.name for column in MEASURES) == NAMES
    frames = run_of([call()])
    assert tuple(measures(frames, totals(frames, ["kind"])).columns) == NAMES


def test_numbers_are_of_one_rank_and_bandwidths_of_all() -> None:
    # Two ranks, recorded for 1,000,000 ns each. Rank 0 moves 1000 bytes in 400 ns, then 3000 in
    # 600 ns; rank 1 moves 1000 in 1000 ns: 5000 bytes in 2000 ns are 2.5 GB/s. All-reduces of two
    # ranks have the factor 2 (2-1)/2 = 1. Blocked: 400 + 600 + 1000 of 2,000,000 ns.
    frames = run_of(
        [
            call(rank=0, at=0, until=400, payload_bytes=1000, wire_bytes=1000, blocked_ns=400),
            call(rank=0, at=500, until=1100, payload_bytes=3000, wire_bytes=3000, blocked_ns=600),
            call(rank=1, at=0, until=1000, payload_bytes=1000, wire_bytes=1000, blocked_ns=1000),
        ]
    )
    assert measured(frames)["all_reduce"] == pytest.approx(
        {
            "num_calls": 1.5,
            "calls_per_step": math.nan,
            "payload_bytes": 2500,
            "wire_bytes": 2500,
            "time_ns": 1000,
            "device_ns": math.nan,
            "blocked_ns": 1000,
            "num_untimed": 0,
            "share": 0.001,
            "share_of_steps": math.nan,
            "algbw_bytes_per_s": 2.5e9,
            "busbw_bytes_per_s": 2.5e9,
        },
        nan_ok=True,
    )


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)]
)
def test_busbw_is_algbw_times_the_factor_of_the_kind_in_a_group_of_four(
    kind: str, factor: float
) -> None:
    frames = run_of([call(kind=kind, at=0, until=1000, payload_bytes=4000)], num_ranks=4)
    found = measured(frames)[kind]
    assert found["algbw_bytes_per_s"] == pytest.approx(4e9)
    assert found["busbw_bytes_per_s"] == pytest.approx(factor * 4e9)


def test_what_is_not_known_is_left_out_of_a_sum() -> None:
    frames = run_of([call(payload_bytes=10, blocked_ns=-1), call(payload_bytes=-1, blocked_ns=-1)])
    found = measured(frames)["all_reduce"]
    assert found["payload_bytes"] == 5
    assert math.isnan(found["blocked_ns"])
    assert math.isnan(found["share"])
    assert math.isnan(found["algbw_bytes_per_s"])


def test_a_kind_or_group_that_is_not_known_has_an_algbw_but_no_busbw() -> None:
    moved = {"at": 0, "until": 10, "payload_bytes": 10}
    frames = run_of([call(kind="made_up", **moved), call(kind="send", group="other", **moved)])
    for kind in ("made_up", "send"):
        assert measured(frames)[kind]["algbw_bytes_per_s"] == pytest.approx(1e9)
        assert math.isnan(measured(frames)[kind]["busbw_bytes_per_s"])


def test_what_moves_nothing_has_no_bandwidth() -> None:
    frames = run_of([call(kind="barrier", at=0, until=10, payload_bytes=0)])
    assert math.isnan(measured(frames)["barrier"]["algbw_bytes_per_s"])
    assert math.isnan(measured(frames)["barrier"]["busbw_bytes_per_s"])


def test_calls_outside_of_steps_do_not_count_as_calls_per_step() -> None:
    steps = [step(rank, number, 0, 1) for rank in range(2) for number in range(2)]
    calls = [call(rank=rank, step=number) for rank in range(2) for number in (-1, 0, 0, 1, 1)]
    assert measured(run_of(calls, steps=steps))["all_reduce"]["calls_per_step"] == 2
    assert measured(run_of(calls, steps=steps))["all_reduce"]["num_calls"] == 5


def test_a_rank_that_called_nothing_counts_in_the_mean() -> None:
    assert measured(run_of([call(rank=1)], num_ranks=4))["all_reduce"]["num_calls"] == 0.25


def test_recorded_time_is_by_rank() -> None:
    ranks = [rank_row(0, start_ns=10, end_ns=40), rank_row(7, start_ns=10, end_ns=20)]
    assert recorded_ns(run_of(ranks=ranks)).to_dict() == {0: 30, 7: 10}


def test_time_that_is_not_known_to_begin_or_to_end_lasts_nothing() -> None:
    rows = [rank_row(0, start_ns=-1), rank_row(1, end_ns=-1), rank_row(2)]
    steps = [step(0, 0, 0, 9), step(0, 1, -START_NS - 1, 9), step(0, 2, 5, -START_NS - 1)]
    frames = run_of(ranks=rows, steps=steps, num_ranks=3)
    assert recorded_ns(frames).to_dict() == {0: 0, 1: 0, 2: LASTS_NS}
    assert steps_ns(frames).tolist() == [9, 0, 0]


@pytest.mark.parametrize(
    ("known", "time_ns"),
    [
        ({}, math.nan),
        ({"call_ns": 30, "is_async": True}, math.nan),
        ({"call_ns": 30, "until": 400}, 400),
        ({"call_ns": 30, "blocked_ns": 90}, 90),
        ({"call_ns": 30, "blocked_ns": 10}, 30),
    ],
)
def test_time_and_bandwidth_need_a_known_end(known: dict, time_ns: float) -> None:
    frames = run_of([call(at=0, payload_bytes=900, **known)], num_ranks=1)
    found = measured(frames)["all_reduce"]
    assert found["time_ns"] == pytest.approx(time_ns, nan_ok=True)
    bandwidth = 900 / (time_ns / 1e9)
    assert found["algbw_bytes_per_s"] == pytest.approx(bandwidth, nan_ok=True)
    assert found["num_untimed"] == ("blocked_ns" not in known)


def test_the_time_on_the_device_counts_where_no_other_one_is_known() -> None:
    known = call(at=0, until=1000, payload_bytes=4000, device_ns=300)
    found = measured(run_of([known, call(payload_bytes=1000, device_ns=250)], num_ranks=2))
    assert found["all_reduce"]["device_ns"] == 275
    assert found["all_reduce"]["time_ns"] == 500
    assert found["all_reduce"]["algbw_bytes_per_s"] == pytest.approx(5000 / 1250e-9)


def test_bandwidth_leaves_out_the_payload_of_calls_without_an_end() -> None:
    ended = call(at=0, until=1000, payload_bytes=4000)
    found = measured(run_of([ended, call(id=1, at=0, call_ns=5, payload_bytes=8000)], num_ranks=1))
    assert found["all_reduce"]["algbw_bytes_per_s"] == pytest.approx(4e9)
    assert found["all_reduce"]["payload_bytes"] == 12000
