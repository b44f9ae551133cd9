"""A made-up training on devices, with kernels on three streams and a late rank."""

from __future__ import annotations

from typing import Any

from commtrace.schema import COMMUNICATION, MEMCPY
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, kernel, op, rank_row, step, trace_of

MICRO = 1_000
STEP_NS = 1000 * MICRO
COMPUTING, SENDING, COPYING = 7, 20, 22
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def device_trace(num_steps: int = 2, num_ranks: int = 2, num_kernels: int = 4) -> Trace:
    """In each step, a rank copies, computes, and reduces twice; the last rank is late to both.

    Each step of 1 ms begins with a copy of 40 µs. Kernels of 50 µs follow each other after 10 µs.
    The first reduction begins while the last kernel runs; the second is exposed.
    """
    comm: list[Any] = []
    kernels: list[Any] = []
    ops: list[Any] = []
    for rank in range(num_ranks):
        late = 30 * MICRO * (rank == num_ranks - 1)
        made: list[Any] = []
        for number in range(num_steps):
            begin = number * STEP_NS
            known = {"rank": rank, "device": f"cuda:{rank}"}
            made.append(
                kernel(
                    at=begin, until=begin + 40 * MICRO, launched=begin, category=MEMCPY,
                    name="Memcpy HtoD", stream=COPYING, **known,
                )
            )  # fmt: skip
            for place in range(num_kernels):
                at = begin + 50 * MICRO + 60 * MICRO * place
                made.append(
                    kernel(
                        at=at, until=at + 50 * MICRO, launched=begin + MICRO * (place + 1),
                        name=f"gemm_{place % 3}", stream=COMPUTING, **known,
                    )
                )  # fmt: skip
            last = begin + 50 * MICRO + 60 * MICRO * num_kernels
            sent = (
                (last - 30 * MICRO, last + 60 * MICRO),
                (last + 100 * MICRO, last + 400 * MICRO),
            )
            for seq, (at, end) in enumerate(sent):
                issue, number_of = at + late, 2 * number + seq
                beside = max(last - 10 * MICRO - issue, 0)  # until the last kernel ends
                comm.append(
                    call(
                        rank=rank, id=number_of, seq=number_of, at=issue, until=end,
                        call_ns=end - issue, blocked_ns=end - issue - beside, payload_bytes=4096,
                        step=number, device=f"cuda:{rank}", stream=SENDING, thread=1,
                    )
                )  # fmt: skip
                made.append(
                    kernel(
                        at=issue, until=end, launched=begin + 20 * MICRO, category=COMMUNICATION,
                        name=NCCL, stream=SENDING, call_id=number_of, **known,
                    )
                )  # fmt: skip
            ops.append(
                op(
                    rank=rank, id=number, op="aten.mm.default", at=begin, phase="forward",
                    duration_ns=100 * MICRO, thread=1, step=number,
                )
            )  # fmt: skip
        made.sort(key=lambda each: each.start_ns)
        kernels += [each._replace(id=number) for number, each in enumerate(made)]
    steps = [
        step(rank, number, number * STEP_NS, (number + 1) * STEP_NS)
        for rank in range(num_ranks)
        for number in range(num_steps)
    ]
    ranks = [
        rank_row(rank, device="cuda", end_ns=START_NS + num_steps * STEP_NS)
        for rank in range(num_ranks)
    ]
    return trace_of(comm, num_ranks=num_ranks, ranks=ranks, steps=steps, ops=ops, kernels=kernels)
