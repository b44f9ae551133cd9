"""Calls on a device: an accelerator runs them; the processor is none."""

from __future__ import annotations

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.measures.device import on_device
from tests.commtrace.analyze.rows import call, step, trace_of

MS = 1_000_000


@pytest.mark.parametrize(
    ("device", "stream", "expected"),
    [("", -1, False), ("cpu", -1, False), ("cpu", 7, True), ("", 7, True), ("cuda:1", -1, True)],
)
def test_a_call_is_on_a_device_if_an_accelerator_or_a_stream_runs_it(
    device: str, stream: int, expected: bool
) -> None:
    run = load(trace_of([call(device=device, stream=stream)]))
    assert on_device(run).tolist() == [expected]


@pytest.mark.parametrize(("device", "exposed_ms"), [("cpu", [20, 0]), ("cuda:0", [10, 10])])
def test_a_call_of_the_processor_counts_in_the_step_that_issued_it(
    device: str, exposed_ms: list[int]
) -> None:
    run = load(
        trace_of(
            [call(device=device, at=10 * MS, until=30 * MS, blocked_ns=20 * MS, step=0)],
            num_ranks=1,
            steps=[step(0, 0, 0, 20 * MS), step(0, 1, 20 * MS, 40 * MS)],
        )
    )
    table = CATALOG["overlap"].function(run).set_index("step")["exposed_ns"]
    assert [table.get(number, 0) / MS for number in range(2)] == exposed_ms
