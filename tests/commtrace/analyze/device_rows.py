"""Runs on devices whose kernels are known: injected runs, and random runs of any shape."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from commtrace.schema import SYNC_KINDS
from commtrace.tracefile import Trace
from tests.commtrace.analyze import rows
from tests.commtrace.analyze.rows import call, group, trace_of

COMPUTE_STREAM, COPY_STREAM, CALL_STREAM = 7, 22, 20


def kernel(category: str = "compute", **columns: Any) -> Any:
    """A kernel on the stream of its category; times are as in `rows.kernel`."""
    streams = {"compute": COMPUTE_STREAM, "communication": CALL_STREAM}
    known = {"category": category, "name": f"{category}_kernel"}
    return rows.kernel(**known | {"stream": streams.get(category, COPY_STREAM)} | columns)


def numbered(kernels: Sequence[Any]) -> list[Any]:
    """The kernels with ids in order of start, as an importer writes them."""
    nums: dict[int, int] = {}
    found = []
    for each in sorted(kernels, key=lambda each: each.start_ns):
        nums[each.rank] = nums.get(each.rank, -1) + 1
        found.append(each._replace(id=nums[each.rank]))
    return found


def device_trace(seed: int, num_ranks: int = 3, num_collectives: int = 30) -> Trace:
    """A run in which devices compute, copy, idle and communicate at random."""
    chance = random.Random(seed)
    comm: list[Any] = []
    kernels: list[Any] = []
    clocks = [1000 + 100 * rank for rank in range(num_ranks)]
    seqs = {"g": 0, "h": 0}
    for number in range(num_collectives):
        name = chance.choice(("g", "g", "h"))
        kind = chance.choice(("all_reduce", "all_gather", "broadcast"))
        is_on_device = chance.random() < 0.9
        for rank in range(num_ranks):
            known = {"rank": rank, "device": f"cuda:{rank}"}
            begun = clocks[rank]
            for _ in range(chance.randrange(4)):
                at = begun + chance.randrange(600)
                stream = chance.choice((COMPUTE_STREAM,) * 3 + (CALL_STREAM,))
                more = chance.choice(
                    ({}, {}, {"category": "memcpy"}, {"category": "communication"})
                )
                streams = {} if more else {"stream": stream}
                until = at + chance.randrange(500)
                kernels.append(kernel(at=at, until=until, **more, **streams, **known))
            clocks[rank] = begun + chance.randrange(1200)
        arrivals = list(clocks)
        for rank, at in enumerate(arrivals):
            lasts = max(arrivals) - at + chance.randrange(1, 300)
            has_kernel = is_on_device and chance.random() < 0.98
            own = {"device": f"cuda:{rank}", "algorithm": "RING", "protocol": chance.choice("AB")}
            comm.append(
                call(
                    rank=rank, id=number, seq=seqs[name], kind=kind, group=name, at=at,
                    until=at + lasts, call_ns=lasts, payload_bytes=chance.randrange(1 << 20),
                    blocked_ns=lasts if chance.random() < 0.9 else -1,
                    root=1 if kind == "broadcast" else -1, **(own if has_kernel else {}),
                )
            )  # fmt: skip
            if has_kernel:
                launch = {"launched": at - chance.randrange(800)} if chance.random() < 0.95 else {}
                stream = CALL_STREAM + (name == "h")
                for part in range(chance.choice((1, 1, 2))):
                    at_part = at + part * lasts // 2
                    kernels.append(
                        kernel(
                            "communication", rank=rank, device=f"cuda:{rank}", call_id=number,
                            stream=stream, at=at_part, until=at + lasts, **launch,
                        )
                    )  # fmt: skip
            clocks[rank] = at + lasts
        seqs[name] += 1
    groups = [group(name, range(num_ranks), mesh_axis=name) for name in ("g", "h")]
    kernels = numbered(kernels)
    syncs = random_syncs(seed, kernels)
    return trace_of(comm, num_ranks=num_ranks, groups=groups, kernels=kernels, syncs=syncs)


def random_syncs(seed: int, kernels: Sequence[Any]) -> list[Any]:
    """Events and waits of each rank, some of them for a kernel, and some of unknown stream."""
    chance = random.Random(seed + 2000)
    made = []
    for each in kernels:
        if chance.random() < 0.5:
            at = each.start_ns - rows.START_NS
            known = {"kernel_id": each.id, "device": each.device, "stream": each.stream}
            unknown = {"device": "", "stream": -1}
            made.append(
                rows.sync(
                    rank=each.rank, kind=chance.choice(SYNC_KINDS), at=at,
                    until=at + chance.randrange(900), **chance.choice((known, known, unknown)),
                )
            )  # fmt: skip
    made.sort(key=lambda each: (each.rank, each.at_ns))
    first = {rank: len([e for e in made if e.rank < rank]) for rank in {e.rank for e in made}}
    return [each._replace(id=place - first[each.rank]) for place, each in enumerate(made)]
