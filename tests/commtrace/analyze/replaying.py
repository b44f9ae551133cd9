"""Small run for replays: steps of 100 ms with a barrier that a rank is late to, and a sum."""

from __future__ import annotations

from typing import Any

from commtrace.analyze import Frames, load
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, rank_row, step, trace_of

MS = 1_000_000
STEP_NS = 100 * MS
NUM_STEPS = 4


def barrier_trace(
    num_steps: int = NUM_STEPS, *, num_marked: int | None = None, **more: Any
) -> Trace:
    """Two ranks with a barrier, which ends at 50 ms of each step, and an all-reduce at 60 ms."""
    calls, steps = [], []
    for number in range(num_steps):
        for rank, begin in enumerate((20, 40)):
            base = STEP_NS * number
            calls += [
                _timed(2 * number, rank, base, begin, 50, "barrier", number),
                _timed(
                    2 * number + 1, rank, base, 60, 80, "all_reduce", number, payload_bytes=4000,
                    wire_bytes=4000, dtype="float32",
                ),
            ]  # fmt: skip
            steps.append(step(rank, number, base, base + STEP_NS))
    end_ns = START_NS + STEP_NS * num_steps
    more = {"ranks": [rank_row(rank, end_ns=end_ns) for rank in range(2)]} | more
    return trace_of(calls, steps=steps if num_marked is None else steps[:num_marked], **more)


def barrier_run(num_steps: int = NUM_STEPS, **more: Any) -> Frames:
    """That run, loaded."""
    return load(barrier_trace(num_steps, **more))


def _timed(
    number: int, rank: int, base: int, begin: int, end: int, kind: str, step: int, **more: Any
) -> Any:
    lasts = MS * (end - begin)
    return call(
        id=number, seq=number, rank=rank, kind=kind, at=base + MS * begin,
        until=base + MS * end, call_ns=lasts, blocked_ns=lasts, step=step, source_file="train.py",
        source_line=7 if kind == "barrier" else 9, **more,
    )  # fmt: skip
