"""Runs with communication in each step that changes nothing, and with receives in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commtrace.schema import COPIED
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, group, step, trace_of

NUM_STEPS = 6
LENGTH = 10_000_000
SPANS = [step(rank, n, n * LENGTH, (n + 1) * LENGTH) for rank in (0, 1) for n in range(NUM_STEPS)]


def in_steps(per_step: Sequence[dict[str, Any]], steps: Sequence[int] = range(NUM_STEPS)) -> Trace:
    """Return a run of two ranks that make these calls in some of 6 steps, a millisecond each."""
    rows: list[Any] = []
    for rank in range(2):
        number = 0
        for each in range(NUM_STEPS):
            made = [
                columns for columns in per_step if each in steps or columns["kind"] == "all_reduce"
            ]
            for place, columns in enumerate(made):
                at = each * LENGTH + 1_000_000 * (place + 1)
                ends = {"until": at + 1_000_000, "blocked_ns": 1_000_000, "call_ns": 1_000_000}
                line = {"source_file": "train.py", "source_line": 10 + place}
                known = {"rank": rank, "id": number, "seq": number, "step": each, "at": at}
                known |= {"module_call": each}
                rows.append(call(**(known | ends | line | columns)))
                number += 1
    return trace_of(rows, steps=SPANS)


REDUCE: dict[str, Any] = {"kind": "all_reduce", "source_line": 99}
OBJECTS = [{"kind": "all_gather", "carries": "objects", "source_line": 5}] * 2 + [REDUCE]
BARRIER = [{"kind": "barrier", "source_line": 5, "wire_bytes": 0}, REDUCE]


BUFFERS: list[dict[str, Any]] = [
    {
        "kind": "broadcast", "root": 0, "payload_bytes": 4096, "wire_bytes": 4096,
        "module_class": "DistributedDataParallel", "phase": "forward", "source_line": 5,
    },
    REDUCE,
]  # fmt: skip
"""Buffers that DistributedDataParallel broadcasts before its forward pass."""


_BLOCKS = "layers.0.w,layers.1.w,layers.2.norm.w,head.w"
UNIT: list[dict[str, Any]] = [
    {
        "kind": "all_gather", "carries": "parameters", "phase": "forward", "parameters": _BLOCKS,
        "payload_bytes": 4096, "wire_bytes": 2048, "source_line": 5,
    },
    {
        "kind": "reduce_scatter", "carries": "gradients", "phase": "backward", "source_line": 6,
        "parameters": _BLOCKS, "payload_bytes": 4096, "wire_bytes": 2048,
    },
]  # fmt: skip
"""Parameters and gradients of a model that is a single unit of FSDP."""

COPIES: list[dict[str, Any]] = [
    {
        "kind": "all_reduce", "carries": "gradients", "phase": "backward", "reason": COPIED,
        "payload_bytes": 40_000_000, "wire_bytes": 40_000_000, "source_line": 5,
    },
] * 2  # fmt: skip
"""Two buckets of DistributedDataParallel that gradients are copied into."""


def broadcasts(*, written_on: Sequence[int] = ()) -> Trace:
    """Return a run with a broadcast in each step, of a tensor that some ranks write to before."""
    trace_rows: list[Any] = []
    for rank in range(2):
        for each in range(NUM_STEPS):
            at = each * LENGTH + 2_000_000
            ready = at - 1_000_000 if rank in written_on or not each else at - LENGTH + 1_000_000
            trace_rows.append(
                call(
                    rank=rank, id=each, seq=each, step=each, at=at, until=at + 1_000_000,
                    kind="broadcast", root=0, dtype="float32", payload_bytes=4096, wire_bytes=4096,
                    blocked_ns=1_000_000, call_ns=1_000_000, source_file="train.py", source_line=7,
                    data_ready_ns=START_NS + ready,
                )
            )  # fmt: skip
    return trace_of(trace_rows, steps=SPANS)


def reduced_to_root(*, used_ns: int = 1_000_000, **columns: Any) -> Trace:
    """Return a run that reduces to rank 0 in each step, and broadcasts as much from there.

    A time after the reduction began, rank 0 uses its result.
    """
    both = {"root": 0, "dtype": "float32", "payload_bytes": 400_000, "wire_bytes": 400_000}
    trace = in_steps([{"kind": "reduce", **both}, {"kind": "broadcast", **both, **columns}])
    comm = trace.tables["comm"]
    used = [
        at + used_ns if (rank, kind) == (0, "reduce") and used_ns >= 0 else -1
        for rank, kind, at in zip(comm["rank"], comm["kind"], comm["issue_ns"], strict=True)
    ]
    return replace(
        trace,
        tables={
            **trace.tables,
            "comm": {**comm, "result_used_ns": used, "used_shard": [0] * len(used)},
        },
    )


def received(late: int, *, num: int = 5, is_posted_ahead: bool = False) -> Trace:
    """Return a run in which rank 0 receives from ranks 1, 2 and 3; one sends late.

    A round takes 100 ms. All send 10 ms after its begin, the late one 60 ms after it.
    """
    ms = 1_000_000
    rows: list[Any] = []
    for each in range(num):
        begin = 100 * ms * each
        sends = {rank: begin + (60 if rank == late else 10) * ms for rank in (1, 2, 3)}
        at = begin
        for place, (rank, sent) in enumerate(sends.items()):
            issued = begin + place if is_posted_ahead else at
            end = max(at, sent) + ms
            line = {"source_file": "train.py", "source_line": 3 if rank else 9}
            rows += [
                call(
                    rank=0, id=3 * each + place, kind="recv", peer=rank, at=issued, until=end,
                    call_ns=end - issued, blocked_ns=end - issued, **line,
                ),
                call(
                    rank=rank, id=each, kind="send", peer=0, at=sent, until=end,
                    call_ns=end - sent, blocked_ns=end - sent,
                ),
            ]  # fmt: skip
            at = end
    return trace_of(rows, num_ranks=4, groups=[group(ranks=range(4))])


def shifted(*, num: int = 5, is_dependent: bool = False, is_together: bool = False) -> Trace:
    """Return a run in which four ranks shift a tensor around a ring, each transfer for 10 ms.

    Rank 0 sends first; every other rank receives, and then sends what it had before, or what
    depends on what it has received, or both together.
    """
    ms = 1_000_000
    rows: list[Any] = []
    for each in range(num):
        begin, ended = 100 * ms * each, 100 * ms * each
        for rank in range(4):
            to, source = (rank + 1) % 4, (rank - 1) % 4
            received = ended
            ready = received if is_dependent else begin
            issued = begin if is_together or rank == 0 else received
            sent = issued + 10 * ms
            last = begin + (10 if is_together else 40) * ms  # of rank 0's receive
            end, receives = (last, sent if rank == 0 else begin) if rank == 0 else (received, begin)
            if is_together:
                end, receives = begin + 10 * ms, begin
            rows += [
                call(
                    rank=rank, id=2 * each + (rank == 0), kind="recv", peer=source, at=receives,
                    until=end, call_ns=end - receives, blocked_ns=end - receives, step=each,
                ),
                call(
                    rank=rank, id=2 * each + (rank != 0), kind="send", peer=to, at=issued,
                    until=sent, call_ns=sent - issued, blocked_ns=sent - issued, step=each,
                    source_file="train.py", source_line=7,
                )._replace(data_ready_ns=START_NS + ready),
            ]  # fmt: skip
            ended = sent
    steps = [
        step(rank, each, 100 * ms * each, 100 * ms * (each + 1))
        for rank in range(4)
        for each in range(num)
    ]
    return trace_of(rows, num_ranks=4, groups=[group(ranks=range(4))], steps=steps)
