"""Exposed communication of calls on a device: the time in which no kernel computes there."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.measures.intervals import blocked_intervals
from commtrace.event import CommEvent, KernelRow
from tests.commtrace.analyze.rows import START_NS, trace_of


def device_call(number: int, start: int, end: int, blocked: int, **fields: Any) -> Any:
    values = {"kind": "all_reduce", "device": "cuda:0", "stream": 20, "call_ns": 0, "step": -1}
    return CommEvent(
        rank=0, id=number, issue_ns=START_NS + start, complete_ns=START_NS + end,
        blocked_ns=blocked, **(values | fields),
    )  # fmt: skip


def kernel(number: int, start: int, end: int, device: str = "cuda:0", category: str = "compute"):
    return KernelRow(
        rank=0, id=number, category=category, device=device, stream=7, start_ns=START_NS + start,
        duration_ns=end - start,
    )  # fmt: skip


def intervals(calls: list[Any], kernels: list[Any]) -> list[tuple[int, int]]:
    frames = load(trace_of(calls, num_ranks=1, kernels=kernels))
    found = blocked_intervals(frames)
    return sorted(zip(found["start"].tolist(), found["end"].tolist(), strict=True))


BUSY = [kernel(0, 0, 20), kernel(1, 80, 90), kernel(2, 85, 100)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 100, [(20, 80)]),
        (10, 130, [(20, 80), (100, 130)]),
        (20, 80, [(20, 80)]),
        (5, 15, []),
        (81, 99, []),
        (30, 40, [(30, 40)]),
        (200, 300, [(200, 300)]),
    ],
)
def test_a_call_is_exposed_where_nothing_computes(
    start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    blocked = sum(last - first for first, last in expected)
    assert intervals([device_call(0, start, end, blocked)], BUSY) == expected


def test_concurrent_calls_are_exposed_once() -> None:
    """Placed at their ends, the exposed times of both would cover 100 ns."""
    calls = [device_call(0, 0, 100, 60), device_call(1, 30, 130, 80, stream=24, call_ns=50)]
    row = CATALOG["overlap"].function(load(trace_of(calls, num_ranks=1, kernels=BUSY))).iloc[0]
    assert (row["communication_ns"], row["exposed_ns"], row["overlapped_ns"]) == (130, 90, 40)


def test_computation_on_another_device_and_copies_hide_nothing() -> None:
    others = [kernel(0, 0, 50, "cuda:1"), kernel(1, 0, 50, category="memcpy")]
    assert intervals([device_call(0, 10, 40, 30)], others) == [(10, 40)]


def test_calls_whose_kernels_the_run_lacks_have_the_place_that_their_durations_tell() -> None:
    part = BUSY[:1]
    assert intervals([device_call(0, 0, 100, 60)], part) == [(40, 100)]
    on_host = device_call(0, 0, 100, 60, device="", stream=-1, call_ns=60)
    assert intervals([on_host], BUSY) == [(0, 60)]
