"""Kernels on the lanes of the timeline."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.figures.kernel_bars import LEAST_OPACITY
from commtrace.figures.kernel_lanes import (
    MOST_LANES,
    MOST_OF_A_RANK,
    kernel_lanes,
    lane_marks,
)
from commtrace.figures.theme import DARK, LIGHT
from commtrace.figures.timeline import timeline
from commtrace.figures.timeline_rows import TimelineRows
from commtrace.schema import COMMUNICATION, MEMCPY
from tests.commtrace.analyze.devices.devices import COMPUTING, COPYING, NCCL, SENDING, device_trace
from tests.commtrace.analyze.rows import START_NS, call, kernel, random_trace, run_of

HOSTILE = "<script>alert(1)</script>"


def kernels_of(figure: Any) -> dict[str, Any]:
    """The traces of kernels, by name."""
    return {trace.name: trace for trace in figure.data if trace.meta["part"] == "kernel"}


def test_each_stream_is_a_lane_below_the_calls_computation_first() -> None:
    frames = load(device_trace())
    lanes = kernel_lanes(frames, [0, 1]).lanes
    titles = [f"stream {number}" for number in (COMPUTING, COPYING, SENDING)]
    assert lanes["title"].tolist() == titles * 2
    figure = timeline(frames)
    axis = figure.layout.yaxis
    assert list(axis.ticktext) == ["rank 0", "rank 1", *titles, *titles]
    at = dict(zip(axis.ticktext[2:5], axis.tickvals[2:5], strict=True))
    rows = TimelineRows.of(2, 3)
    assert -0.5 < axis.tickvals[0] < -0.5 + rows.calls < min(at.values())
    assert max(at.values()) + rows.lane_height / 2 < 0.5
    drawn = kernels_of(figure)
    assert set(drawn) == {"computing", "copying", "all_reduce"}
    assert set(drawn["computing"].y) == {at["stream 7"], at["stream 7"] + 1}
    assert set(drawn["all_reduce"].y) == {at["stream 20"], at["stream 20"] + 1}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_kernel_is_a_bar_from_start_to_end_in_the_colour_of_its_work(theme: Any) -> None:
    frames = load(device_trace(num_steps=1))
    drawn = kernels_of(timeline(frames, theme=theme))
    table = frames.kernels
    for name, category, colour in (
        ("computing", "compute", theme.device["compute"]),
        ("copying", "memcpy", theme.device["copy"]),
        ("all_reduce", "communication", theme.kinds["all_reduce"]),
    ):
        rows = table[table["category"] == category].sort_values(["rank", "start_ns"])
        assert list(drawn[name].base) == ((rows["start_ns"] - START_NS) / 1e6).tolist()
        assert list(drawn[name].x) == (rows["duration_ns"] / 1e6).tolist()
        assert drawn[name].marker.color == colour
        assert drawn[name].marker.opacity == 1


def test_a_kernel_s_text_names_it_its_stream_and_its_launch() -> None:
    drawn = kernels_of(timeline(load(device_trace())))
    assert drawn["computing"].hovertext[0] == (
        "<b>gemm_0</b><br>rank 0, stream 7<br>computing, 50 µs<br>launched 49 µs before"
    )
    assert NCCL.replace("<", "&lt;").replace(">", "&gt;") in drawn["all_reduce"].hovertext[0]
    unknown = run_of([call(at=0, until=5)], kernels=[kernel(at=0, until=5, name=HOSTILE)])
    (text,) = kernels_of(timeline(unknown))["computing"].hovertext
    assert "launched" not in text
    assert HOSTILE not in text


def test_calls_and_steps_keep_their_height_above_the_lanes() -> None:
    frames = load(device_trace())
    with_lanes, plain = timeline(frames), timeline(run_of([call(at=0, until=1)], num_ranks=2))
    rows = TimelineRows.of(2, 3)
    for figure, calls in ((with_lanes, rows.calls), (plain, 1.0)):
        bar = next(trace for trace in figure.data if trace.meta["part"] == "transfer")
        assert bar.width[0] == pytest.approx(0.58 * calls)
        assert bar.y[0] == pytest.approx((calls - 1) / 2)
    (steps,) = [trace for trace in with_lanes.data if trace.meta["part"] == "step"]
    assert steps.y[0] == pytest.approx(-0.5 - 0.4 * rows.calls)
    assert with_lanes.layout.height > 2 * (46 + 3 * 15)


@pytest.mark.parametrize("most", [1, 3, 7, 20])
@pytest.mark.parametrize("seed", range(3))
def test_merged_kernels_keep_their_busy_time_and_their_number(seed: int, most: int) -> None:
    frames = load(random_trace(seed))
    lanes = kernel_lanes(frames, [0, 1, 2])
    marks = lane_marks(lanes, most)
    assert marks.groupby("lane").size().max() <= most
    for lane, kernels in lanes.kernels.groupby("lane"):
        of_lane = marks[marks["lane"] == lane]
        assert of_lane["num_kernels"].sum() == len(kernels)
        covered = {
            at
            for start, end in zip(kernels["start_ns"], kernels["end_ns"], strict=True)
            for at in range(start, end)
        }
        assert of_lane["is_merged"].nunique() == 1
        if of_lane["is_merged"].all():
            assert of_lane["busy_ns"].sum() == len(covered)
            for bar in of_lane.itertuples(index=False):
                inside = sum(bar.start_ns <= at < bar.end_ns for at in covered)
                assert inside == bar.busy_ns
        assert of_lane["start_ns"].min() >= kernels["start_ns"].min()
        assert of_lane["end_ns"].max() <= kernels["end_ns"].max()


def test_merged_kernels_are_as_opaque_as_their_lane_is_busy() -> None:
    kernels = [kernel(at=100 * n, until=100 * n + (90 if n < 500 else 1)) for n in range(1000)]
    figure = timeline(run_of([call(at=0, until=5)], kernels=kernels), max_marks=10)
    bar = kernels_of(figure)["computing"]
    assert len(bar.x) == 10
    assert list(bar.marker.opacity) == pytest.approx([0.9] * 5 + [LEAST_OPACITY] * 5, abs=0.01)
    assert bar.hovertext[0] == (
        "<b>100 kernels begin here</b><br>rank 0, stream 7<br>"
        "90.1% of 9.99 µs is busy<br>most of it computing: gemm"
    )


def test_a_rank_with_many_streams_has_a_lane_for_the_others() -> None:
    kernels = [
        kernel(at=10 * n, until=10 * n + 5, stream=stream)
        for stream in range(12)
        for n in range(1 + stream)
    ]
    lanes = kernel_lanes(run_of(kernels=kernels, num_ranks=1), [0])
    assert lanes.lanes["title"].tolist() == [f"stream {n}" for n in range(5, 12)] + [
        "5 other streams"
    ]
    assert lanes.most_of_a_rank == MOST_OF_A_RANK
    assert lanes.kernels.groupby("lane").size().tolist() == [
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        1 + 2 + 3 + 4 + 5,
    ]


@pytest.mark.parametrize(
    ("num_ranks", "per_rank"), [(64, 3), (256, 2), (MOST_LANES, 1), (MOST_LANES + 1, 0)]
)
def test_the_number_of_lanes_is_bounded(num_ranks: int, per_rank: int) -> None:
    kernels = [
        kernel(rank=rank, at=0, until=9, stream=stream)
        for rank in range(num_ranks)
        for stream in range(3)
    ]
    frames = run_of([call(at=0, until=9)], kernels=kernels, num_ranks=num_ranks)
    lanes = kernel_lanes(frames, list(range(num_ranks)))
    assert len(lanes.lanes) == num_ranks * per_rank <= MOST_LANES
    assert set(lanes.lanes["title"]) <= {"stream 0", "stream 1", "stream 2"} or per_rank < 3
    if per_rank == 1:
        assert set(lanes.lanes["title"]) == {"3 streams"}
    figure = timeline(frames)
    assert bool(kernels_of(figure)) == (per_rank > 0)


def test_only_the_kernels_of_chosen_ranks_and_of_the_window_are_drawn() -> None:
    frames = load(device_trace(num_steps=3))
    figure = timeline(frames, ranks=[1], window_ns=(0, 900_000))
    bars = kernels_of(figure)["computing"]
    assert len(bars.x) == 4
    assert set(bars.y) == {TimelineRows.of(1, 3).lane(0)}
    assert figure.layout.yaxis.ticktext[0] == "rank 1"


def test_kernels_without_a_call_are_drawn_in_a_trace_without_calls() -> None:
    frames = run_of(kernels=[kernel(at=0, until=9, category=COMMUNICATION, name="nccl")])
    assert set(kernels_of(timeline(frames))) == {"other"}


def test_streams_of_several_devices_name_them() -> None:
    kernels = [kernel(at=0, until=9, device=f"cuda:{n}", category=MEMCPY) for n in range(2)]
    unknown = kernel(at=0, until=9, stream=-1, device="cuda:0", category="")
    lanes = kernel_lanes(run_of(kernels=[*kernels, unknown], num_ranks=1), [0]).lanes
    assert lanes["title"].tolist() == [
        "stream 7, cuda:0", "stream 7, cuda:1", "stream ?, cuda:0"
    ]  # fmt: skip


def test_kernels_of_no_length_are_merged_too() -> None:
    frames = run_of(kernels=[kernel(id=n, at=5, until=5) for n in range(9)], num_ranks=1)
    (bar,) = lane_marks(kernel_lanes(frames, [0]), 4).to_dict("records")
    assert (bar["num_kernels"], bar["busy_ns"], bar["end_ns"] - bar["start_ns"]) == (9, 0, 0)
    assert len(kernels_of(timeline(frames, max_marks=4))["computing"].x) == 1


def test_an_empty_run_has_no_lanes() -> None:
    frames: Frames = run_of()
    lanes = kernel_lanes(frames, [0, 1])
    assert lanes.most_of_a_rank == 0
    assert lane_marks(lanes, 5).empty
