"""Runs in parts: every table, the check and the notices equal the whole run's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.consistency import compared
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.notices import notices_of
from commtrace.analyze.run.parts import PartedRun
from commtrace.analyze.waits.lateness import lateness
from commtrace.schema import EVENT_TABLES
from commtrace.tracefile import Trace
from tests.commtrace.analyze.device_rows import device_trace
from tests.commtrace.analyze.rows import call, kernel, late_in_turn, late_trace, op, run_of
from tests.commtrace.analyze.split_run import SplitRun
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES

NAMES = (
    "random0",
    "routed0",
    "layouts0",
    "device0",
    "flags",
    "size",
    "left out",
    "not received",
    "crossed",
)


@cache
def whole(name: str) -> Frames:
    return load((TRACES | FAULTY)[name])


@cache
def parted(name: str) -> SplitRun:
    return SplitRun(whole(name))


@pytest.mark.parametrize("trace", NAMES)
def test_every_table_is_that_of_the_run_as_a_whole(trace: str) -> None:
    for name, analysis in CATALOG.items():
        expected = analysis.function(whole(trace))
        found = analysis.function(parted(trace))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-12, obj=name)


@pytest.mark.parametrize("trace", NAMES)
def test_notices_and_the_extent_of_the_check_are_those_of_the_run_as_a_whole(trace: str) -> None:
    assert compared(parted(trace)) == compared(whole(trace))
    assert notices_of(parted(trace)) == notices_of(whole(trace))


def test_no_analysis_reads_a_table_of_all_calls() -> None:
    run = SplitRun(run_of([call(), call(rank=1)]))
    for table in EVENT_TABLES:
        with pytest.raises(AttributeError):
            getattr(run, table)


def test_calls_are_found_by_their_rows() -> None:
    run = SplitRun(run_of([call(id=5), call(rank=1, id=6), call(rank=1, id=7)]))
    assert run.calls_at([2, 0])["id"].tolist() == [7, 5]
    assert run.num_calls == 3


def test_the_start_is_that_of_the_first_event_of_any_part() -> None:
    events: dict[str, Any] = {
        "ops": [op(rank=1, at=-7)],
        "kernels": [kernel(rank=0, at=-5, until=1)],
    }
    frames = run_of([call(at=3)], ranks=[], **events)
    assert SplitRun(frames).start_ns == frames.start_ns == frames.ops["start_ns"].min()


def test_a_row_per_call_of_the_run_is_that_of_its_parts() -> None:
    run = SplitRun(load(late_trace(late_in_turn)))
    every = arrivals(run)
    pd.testing.assert_frame_equal(every, arrivals(whole_of(run)))


def whole_of(run: PartedRun) -> Frames:
    return run.__dict__["original"]


def test_of_very_many_calls_those_with_the_largest_skew_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace: Trace = late_trace(lambda n, rank: n * (rank == 1), num=40)
    whole, run = load(trace), SplitRun(load(trace))
    every = lateness(load(trace))
    monkeypatch.setattr("commtrace.analyze.waits.lateness.MOST_COMPARED", 20)
    few = lateness(whole)
    assert 1 <= len(few) < len(every)
    pd.testing.assert_frame_equal(few, every.loc[few.index])
    latest = whole.comm.loc[few.index, "seq"]
    assert latest.min() > whole.comm.loc[every.index.difference(few.index), "seq"].max()
    pd.testing.assert_frame_equal(lateness(run).sort_index(), few.sort_index())


def test_devices_are_compared_across_parts() -> None:
    frames = load(device_trace(1))
    pd.testing.assert_frame_equal(
        lateness(SplitRun(frames)).sort_index(), lateness(frames).sort_index()
    )
