"""Runs whose steps grow, and runs with a slow group, and those that only resemble them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import call, group, rank_row, step, trace_of

MS = 1_000_000


def growing(lengths_ms: Sequence[float], *, blocked_ms: Sequence[float] = ()) -> Trace:
    """Return a run of two ranks with steps of these lengths, and an all-reduce at the end of each.

    Args:
        lengths_ms: Lengths of the steps.
        blocked_ms: Times of the all-reduces; by default, 1 ms each.
    """
    comm, steps, begin = [], [], 0
    for number, length in enumerate(lengths_ms):
        lasts = round(MS * (blocked_ms[number] if blocked_ms else 1))
        end = begin + round(MS * length)
        for rank in range(2):
            at = end - lasts
            comm.append(
                call(
                    rank=rank, id=number, seq=number, step=number, at=at, until=end,
                    call_ns=lasts, blocked_ns=lasts, payload_bytes=1 << 20, wire_bytes=1 << 20,
                    dtype="float32", source_file="train.py", source_line=5, module="m",
                )
            )  # fmt: skip
            steps.append(step(rank, number, begin, end))
        begin = end
    return trace_of(comm, steps=steps)


def in_groups(
    times_ms: Sequence[float],
    *,
    num_bytes: int = 1 << 20,
    once_ms: float = 0.0,
    hosts: Sequence[str] = (),
) -> Trace:
    """Return a run of pairs of ranks, each of which all-reduces in its own group, in 6 steps.

    Args:
        times_ms: Time of an all-reduce, by group.
        num_bytes: Size of the messages.
        once_ms: Time of the third all-reduce of the last group; as the others by default.
        hosts: Hosts of the ranks.
    """
    comm, steps, num_ranks = [], [], 2 * len(times_ms)
    for rank in range(num_ranks):
        for number in range(6):
            begin, place = 20 * MS * number, rank // 2
            is_odd = once_ms and number == 2 and place == len(times_ms) - 1
            lasts = round(MS * (once_ms if is_odd else times_ms[place]))
            comm.append(
                call(
                    rank=rank, id=number, seq=number, step=number, at=begin + MS,
                    until=begin + MS + lasts, call_ns=lasts, blocked_ns=lasts, module="m",
                    payload_bytes=num_bytes, wire_bytes=num_bytes, group=f"dp{place}",
                    dtype="float32", source_file="train.py", source_line=5,
                )
            )  # fmt: skip
            steps.append(step(rank, number, begin, begin + 20 * MS))
    names = list(hosts) or ["node0"] * num_ranks
    ranks: list[Any] = [rank_row(rank, host=name) for rank, name in enumerate(names)]
    groups = [
        group(f"dp{place}", (2 * place, 2 * place + 1), mesh_axis="dp")
        for place in range(len(times_ms))
    ]
    return trace_of(comm, num_ranks=num_ranks, steps=steps, groups=groups, ranks=ranks)
