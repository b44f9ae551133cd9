"""Waits of every call compared with a second computation, plain loops over its peers."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.tracefile import Trace
from tests.commtrace.analyze.by_hand import TRANSFERS, rows, waits_of
from tests.commtrace.analyze.rows import random_trace
from tests.commtrace.analyze.training import training_trace

TRACES = [random_trace(seed) for seed in range(6)] + [training_trace()]


@pytest.mark.parametrize("trace", TRACES, ids=[*(f"random{seed}" for seed in range(6)), "training"])
def test_the_wait_of_every_call_agrees_with_loops(trace: Trace) -> None:
    comm = rows(trace, "comm")
    found: list[dict[str, Any]] = arrivals(load(trace)).to_dict("records")
    known = 0
    for call, arrival, expected in zip(comm, found, waits_of(trace), strict=True):
        assert (arrival["rank"], arrival["id"]) == (call.rank, call.id)
        if expected is None:
            unknown = [arrival[name] for name in ("wait_ns", "transfer_ns", "last_rank")]
            assert unknown == [-1, -1, -1]
            continue
        known += 1
        wait, last = expected
        assert (arrival["wait_ns"], arrival["last_rank"]) == (wait, last)
        assert arrival["transfer_ns"] == call.blocked_ns - wait
    assert known


def test_the_random_traces_have_transfers_whose_wait_is_known() -> None:
    assert any(
        wait is not None and call.kind in TRANSFERS
        for trace in TRACES
        for call, wait in zip(rows(trace, "comm"), waits_of(trace), strict=True)
    )
