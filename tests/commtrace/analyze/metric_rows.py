"""Runs in which ranks collect a loss in each step, and runs that only resemble them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, group, op, step, trace_of

NUM_STEPS = 6
LENGTH = 10_000_000


def collected(
    *,
    needs: str = "4",
    begin_of_backward: str = "aten.ones_like.default",
    made_of_python: bool = False,
    reader: str = "",
    reader_phase: str = "other",
    operator: str = "aten.clone.default",
    has_details: bool = True,
    **columns: Any,
) -> Trace:
    """Return a run of two ranks that all-gather a loss of 4 bytes each, after the optimizer.

    In each step, a rank computes a loss, begins the backward pass, runs it and the optimizer, and
    then an operator that writes what is collected; maybe another one reads the result.

    Args:
        needs: What that operator has read: 4 back is the loss, 2 the backward pass.
        begin_of_backward: Operator that has read the loss.
        made_of_python: Python makes a tensor of a number, in place of the optimizer.
        reader: Operator that reads the result; none if empty.
        reader_phase: Its phase.
        operator: Operator that writes what is collected.
        has_details: Steps 0 and 1 have details.
        columns: Columns of the calls.
    """
    ops: list[Any] = []
    comm: list[Any] = []
    before = ("aten.lift_fresh.default", "aten.add_.Tensor")[not made_of_python]
    names = ["aten.mse_loss.default", begin_of_backward, "aten.mm.default", before, operator]
    names, phases = [*names, reader], ["other", "other", "backward", "optimizer", "other"]
    phases.append(reader_phase)
    phases[3] = "other" if made_of_python else "optimizer"
    times = (1.0, 1.5, 2.0, 3.0, 4.0, 7.0)
    num = len(names) - (not reader)
    for rank in range(2):
        for each in range(NUM_STEPS):
            begin, is_detailed = each * LENGTH, has_details and each < 2
            for place in range(num):
                at = begin + round(1_000_000 * times[place])
                read = {1: "1", 4: needs, 5: "c0"}.get(place, "")
                ops.append(
                    op(
                        rank=rank, id=num * each + place, parent=-1, op=names[place], at=at,
                        duration_ns=1000, level="local", phase=phases[place], step=each,
                        needs=read if is_detailed else "", bytes=4 if is_detailed else -1,
                    )
                )  # fmt: skip
            at = begin + 4_100_000 + 1_000_000 * rank  # rank 1 is late by 1 ms
            lasts = begin + 5_600_000 - at
            known: dict[str, Any] = {
                "kind": "all_gather", "dtype": "float32", "payload_bytes": 8, "wire_bytes": 4,
                "phase": "other", "source_file": "train.py", "source_line": 9,
                "data_op_id": num * each + 4, "at": at, "until": at + lasts, "call_ns": lasts,
                "blocked_ns": lasts, "data_ready_ns": START_NS + begin + 4_001_000,
            }  # fmt: skip
            comm.append(call(rank=rank, id=each, seq=each, step=each, **(known | columns)))
    steps = [
        step(rank, n, n * LENGTH, (n + 1) * LENGTH) for rank in (0, 1) for n in range(NUM_STEPS)
    ]
    return trace_of(comm, ops=ops, steps=steps, groups=[group(ranks=(0, 1))])


OTHERS: Sequence[dict[str, Any]] = (
    {"needs": "2"},  # a norm of gradients
    {"needs": "1"},  # what the optimizer has written
    {"begin_of_backward": "aten.mul.Tensor"},  # it is no loss
    {"made_of_python": True},  # a number of Python may have its memory
    {"needs": ""},  # of numbers that no recorded operator computed
    {"needs": "c1"},  # of what a call received
    {"operator": "aten.isnan.default"},  # a decision
    {"reader": "aten.mul.Tensor", "reader_phase": "forward"},
    {"reader": "aten.mul.Tensor", "reader_phase": "optimizer"},
    {"has_details": False},
    {"phase": "forward"},
    {"payload_bytes": 1 << 20},
    {"dtype": "int64"},
    {"carries": "gradients"},
    {"source_spec": "f32[] tp:P(sum)", "target_spec": "f32[] tp:R"},
    {"blocked_ns": 1000},  # too short to matter
    {"used_by_call_id": 0},
)
"""Values that training needs, or may need."""
