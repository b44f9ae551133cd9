"""Small hand-made runs, `run_of([call(rank=0, ...), ...])`, and random runs of any shape."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from commtrace.analyze import Frames, load
from commtrace.event import (
    CommEvent,
    FingerprintRow,
    GroupRow,
    KernelRow,
    OpEvent,
    RankRow,
    StepRow,
    SyncRow,
)
from commtrace.schema import COMMUNICATION, COMPUTE, MEMCPY, MEMSET, NUM_SKETCHES, STREAM_SYNC
from commtrace.tracefile import Trace, trace_of_rows

START_NS = 1_700_000_000_000_000_000
LASTS_NS = 1_000_000


def call(**columns: Any) -> Any:
    """A call with only the given fields known; `at` and `until` are relative to the run's start."""
    defaults: dict[str, Any] = {"rank": 0, "kind": "all_reduce", "group": "g", "phase": "forward"}
    for short, name in (("at", "issue_ns"), ("until", "complete_ns")):
        if short in columns:
            columns[name] = START_NS + columns.pop(short)
    return CommEvent(**(defaults | columns))


def step(rank: int, number: int, start: int, end: int) -> Any:
    return StepRow(rank, number, START_NS + start, START_NS + end)


def op(**columns: Any) -> Any:
    columns["start_ns"] = START_NS + columns.pop("at")
    return OpEvent(**({"rank": 0, "level": "dtensor"} | columns))


def kernel(**columns: Any) -> Any:
    """A kernel; `at`, `until` and `launched` are relative to the run's start."""
    start = START_NS + columns.pop("at")
    columns["duration_ns"] = START_NS + columns.pop("until") - start
    if "launched" in columns:
        columns["launch_ns"] = START_NS + columns.pop("launched")
    known = {"rank": 0, "category": COMPUTE, "name": "gemm", "device": "cuda:0", "stream": 7}
    return KernelRow(**(known | {"start_ns": start} | columns))


def sync(**columns: Any) -> Any:
    """A wait for a device; `at` and `until` are relative to the run's start."""
    start = START_NS + columns.pop("at")
    columns["duration_ns"] = START_NS + columns.pop("until") - start
    known = {"rank": 0, "kind": STREAM_SYNC, "device": "cuda:0", "stream": 7, "thread": 1}
    return SyncRow(**(known | {"at_ns": start} | columns))


def rank_row(rank: int, **columns: Any) -> Any:
    known = {
        "rank": rank,
        "host": "node0",
        "device": "cpu",
        "start_ns": START_NS,
        "end_ns": START_NS + LASTS_NS,
        "num_dropped": 0,
        "complete": True,
    }
    return RankRow(**(known | columns))


def group(name: str = "g", ranks: Sequence[int] = (0, 1), **columns: Any) -> Any:
    known = {"name": name, "ranks": ",".join(map(str, ranks)), "size": len(ranks)}
    return GroupRow(**(known | {"mesh_axis": "tp", "backend": "gloo"} | columns))


def trace_of(
    comm: Sequence[Any] = (),
    *,
    num_ranks: int = 2,
    ranks: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    steps: Sequence[Any] = (),
    ops: Sequence[Any] = (),
    kernels: Sequence[Any] = (),
    fingerprints: Sequence[Any] = (),
    sources: Sequence[Any] = (),
    host_events: Sequence[Any] = (),
    pipeline_actions: Sequence[Any] = (),
    later_waits: Sequence[Any] = (),
    syncs: Sequence[Any] = (),
    communicators: Sequence[Any] = (),
    removed_calls: Sequence[Any] = (),
    run: dict[str, Any] | None = None,
) -> Trace:
    """A run of `num_ranks` ranks that each last `LASTS_NS`, with a single group of all of them."""
    return trace_of_rows(
        {"world_size": num_ranks, "missing_ranks": [], **(run or {})},
        {
            "comm": comm,
            "ops": ops,
            "kernels": kernels,
            "fingerprints": fingerprints,
            "steps": steps,
            "sources": sources,
            "host_events": host_events,
            "pipeline_actions": pipeline_actions,
            "later_waits": later_waits,
            "syncs": syncs,
            "communicators": communicators,
            "removed_calls": removed_calls,
            "ranks": [rank_row(rank) for rank in range(num_ranks)] if ranks is None else ranks,
            "groups": [group(ranks=range(num_ranks))] if groups is None else groups,
        },
    )


def run_of(comm: Sequence[Any] = (), **more: Any) -> Frames:
    return load(trace_of(comm, **more))


_KINDS = (
    "all_reduce",
    "all_gather",
    "broadcast",
    "scatter",
    "reduce",
    "gather",
    "barrier",
    "send",
    "recv",
    "made_up",
)
_TOWARDS = {"send": 1, "recv": -1}
_MODULES = ("", "layers", "layers.0", "layers.0.attention", "layers.10.attention", "output")
_LAYOUTS = tuple(
    f"{tensor} tp:{placement}"
    for tensor in ("f32[5,16]", "bf16[8,16]")
    for placement in ("S(0)", "S(1)", "R", "P(sum)")
)


def _what_is_reported(chance: random.Random) -> dict[str, Any]:
    """Random values of fields that are known for some calls only: layouts, parameters, lines."""
    reported: dict[str, Any] = {"dtype": chance.choice(("", "float32", "float32", "bfloat16"))}
    reported["thread"] = chance.choice((7, 7, 8))
    if chance.random() < 0.7:
        source, target = chance.sample(_LAYOUTS, 2)
        reported |= {"source_spec": source, "target_spec": target, "argument": "self"}
    if chance.random() < 0.7:
        reported |= {"carries": "parameters", "parameters": chance.choice(("w", "w,b", "v"))}
    if chance.random() < 0.7:
        reported |= {"source_file": "train.py", "source_line": chance.choice((3, 4))}
        reported |= {"source_function": "step", "region": chance.choice(("", "warm-up"))}
        reported |= {"via": chance.choice(("", "trainer/loop.py:7 train"))}
    return reported


def random_fingerprints(
    chance: random.Random, num_ranks: int = 3, num_tensors: int = 40
) -> list[Any]:
    """Fingerprints of tensors in random layouts; some lack a rank or differ on a rank."""
    found: list[Any] = []
    ids = [0] * num_ranks
    members = ",".join(map(str, range(num_ranks)))
    for number in range(num_tensors):
        letter = chance.choice(("R", "R", "S(0)", "P(sum)", "P(avg)", "P(max)", "", ""))
        is_alike = letter == "R" or (letter == "" and chance.random() < 0.5)
        role = chance.choice(("output", "gradient", "result"))
        alike = [chance.uniform(-1, 1) for _ in range(NUM_SKETCHES + 3)]
        absent, odd = (chance.choice((-1, -1, -1, num_ranks - 1)) for _ in range(2))
        for rank in range(num_ranks):
            if rank == absent:
                continue
            facts = alike if is_alike else [chance.uniform(-1, 1) for _ in alike]
            if rank == odd:
                facts = [each + 0.5 for each in facts]
            found.append(
                FingerprintRow(
                    rank, ids[rank], role, "" if role == "output" else "w",
                    "aten.mm.default" if role == "result" else "",
                    START_NS + 1000 * number + rank, number % 3 - 1,
                    ("forward", "backward")[number % 2], "", _MODULES[number % len(_MODULES)],
                    "Linear", number % 2, 7, "train.py", 42, "main", "float32", "[6,4]",
                    f"tp={num_ranks}:{members}" if letter else "", letter,
                    *facts[:-2], abs(facts[-2]), abs(facts[-1]), 0, rank % 2,
                )
            )  # fmt: skip
            ids[rank] += 1
    return found


def random_trace(seed: int, num_ranks: int = 3, num_collectives: int = 40) -> Trace:
    """A run in which everything varies and many values are unknown.

    The calls of one phase, and the last rank's calls in one step, have no known time but their
    issue. The last call of a thread has an end, without which it would hang.
    """
    chance = random.Random(seed)

    def perhaps(value: int) -> int:
        return value if chance.random() < 0.9 else -1

    comm = []
    clocks = [1000 * rank for rank in range(num_ranks)]
    ids = [0] * num_ranks
    seqs: dict[tuple[int, str], int] = {}
    for _ in range(num_collectives):
        kind = chance.choice(_KINDS)
        name = chance.choice(("g",) * 8 + ("part", "unknown"))
        members = range(num_ranks - (name == "part"))  # one never arrives
        root = chance.randrange(num_ranks)
        shared = {
            "kind": kind,
            "group": name,
            "root": root if kind in ("broadcast", "scatter", "reduce", "gather") else -1,
            "phase": chance.choice(("forward", "backward", "optimizer", "strange")),
            "module": chance.choice(_MODULES),
            "op": chance.choice(("", "aten.mm.default", "aten.add.Tensor")),
            "step": chance.choice((-1, 0, 1)),
            **_what_is_reported(chance),
        }
        for rank in members:
            clocks[rank] += chance.randrange(1, 900)
            lasts = chance.randrange(10, 700)
            in_call = lasts if chance.random() < 0.6 else chance.randrange(1, lasts)
            ends = perhaps(clocks[rank] + lasts)
            blocked = perhaps(chance.randrange(in_call, lasts + 1))
            # Some tables have rows of such calls only.
            if shared["phase"] == "strange" or (rank, shared["step"]) == (num_ranks - 1, 1):
                ends = blocked = -1
            comm.append(
                call(
                    rank=rank,
                    id=ids[rank],
                    seq=seqs.get((rank, name), 0),
                    at=clocks[rank],
                    complete_ns=START_NS + ends if ends >= 0 else -1,
                    payload_bytes=perhaps(chance.randrange(1 << 20)),
                    wire_bytes=perhaps(chance.randrange(1 << 20)),
                    call_ns=in_call,
                    blocked_ns=blocked,
                    device_ns=-1 if ids[rank] % 3 else lasts // 2,
                    peer=(rank + _TOWARDS[kind]) % num_ranks if kind in _TOWARDS else -1,
                    **shared,
                )
            )
            ids[rank] += 1
            seqs[rank, name] = seqs.get((rank, name), 0) + 1
            clocks[rank] += lasts
    steps = [
        step(rank, number, 300 * number, 300 * number + 200 + rank)
        for rank in range(num_ranks)
        for number in range(2)
    ]
    last = {(each.rank, each.thread): place for place, each in enumerate(comm)}
    for place in last.values():
        each = comm[place]
        ends = max(each.complete_ns, each.issue_ns + max(each.call_ns, each.blocked_ns))
        comm[place] = each._replace(complete_ns=ends)
    chance.shuffle(comm)
    groups = [group(name, range(num_ranks)) for name in ("g", "part")]
    comm = with_random_dependencies(seed, comm)
    kernels = random_kernels(seed, comm)
    fingerprints = random_fingerprints(random.Random(seed), num_ranks)
    return trace_of(
        comm,
        num_ranks=num_ranks,
        steps=steps,
        groups=groups,
        kernels=kernels,
        fingerprints=fingerprints,
    )


def with_random_dependencies(seed: int, comm: Sequence[Any]) -> list[Any]:
    """The calls with random times at which their data was ready and used, some of them unknown."""
    chance = random.Random(seed + 2000)
    found = []
    for each in comm:
        ends = max(each.complete_ns, each.issue_ns)
        ready = max(each.issue_ns - chance.randrange(900), START_NS)
        used = ends + chance.randrange(-50, 900)
        known = {
            "data_ready_ns": ready,
            "result_used_ns": max(used, each.issue_ns),
            "run_delay_ns": chance.choice((0, chance.randrange(400))),
            "cast_dtype": chance.choice(("", "", "bfloat16")),
            "callers": chance.choice(("", "train.py:9 main", "train.py:9 main\ntrain.py:5 step")),
        }
        found.append(
            each._replace(**{name: at for name, at in known.items() if chance.random() < 0.8})
        )
    return found


_KERNELS = {
    COMPUTE: ("gemm", "void my_lib::fastAllReduce<float>(float*)", "deep_ep_wait", "x::multimem"),
    COMMUNICATION: ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_SendRecv(x)", "opaque"),
    MEMCPY: ("Memcpy HtoD",),
    MEMSET: ("Memset",),
}


def random_kernels(seed: int, comm: Sequence[Any], num: int = 60) -> list[Any]:
    """Kernels of each rank that overlap within a stream, between streams and between devices.

    Some have no length, and some an unknown launch or stream. Kernels of communication lie around
    calls of their rank, some of them unknown.
    """
    chance = random.Random(seed + 1000)
    found = []
    for rank in sorted({each.rank for each in comm}):
        calls = [each for each in comm if each.rank == rank]
        made = []
        for _ in range(num):
            call_of = chance.choice(calls)
            category = chance.choice((COMPUTE,) * 3 + (COMMUNICATION,) * 3 + (MEMCPY, MEMSET))
            early = 0 if category == COMMUNICATION else -100  # no kernel precedes its call
            at = max(call_of.issue_ns - START_NS + chance.randrange(early, 200), 0)
            known = {"launched": max(at - chance.randrange(600), 0)}
            made.append(
                kernel(
                    rank=rank,
                    category=category,
                    name=chance.choice(_KERNELS[category]),
                    device=f"cuda:{chance.choice((rank, rank, rank, 7))}",
                    stream=chance.choice((7, 7, 20, 22, -1)),
                    at=at,
                    until=at + chance.choice((0, chance.randrange(1, 60), chance.randrange(900))),
                    call_id=call_of.id
                    if category == COMMUNICATION and chance.random() < 0.8
                    else -1,
                    **(known if chance.random() < 0.85 else {}),
                )
            )
        made.sort(key=lambda each: each.start_ns)
        found += [each._replace(id=number) for number, each in enumerate(made)]
    return found


def layouts_trace(seed: int, num_ranks: int = 2, num_calls: int = 120) -> Trace:
    """A run of small calls between few known layouts, so that redistributions repeat and revert."""
    chance = random.Random(seed)
    layouts = [f"f32[8,16] tp:{placement}" for placement in ("S(0)", "R", "P(sum)")]
    comm = []
    for number in range(num_calls):
        source, target = chance.sample(layouts, 2)
        reported = {
            "kind": chance.choice(("all_gather", "all_gather", "all_reduce")),
            "source_spec": source,
            "target_spec": target,
            "module": chance.choice(("layers.0", "layers.1")),
            "op": "redistribute",
            "carries": "parameters",
            "parameters": f"w{chance.randrange(20)}",
            "step": 2 * number // num_calls,
            "phase": chance.choice(("forward",) * 4 + ("backward",)),
            "payload_bytes": 8 * 16 * 4,
            "wire_bytes": 8 * 16 * 2,
            "thread": 7,
            # Some results are used in part.
            "used_shard": (0, 0, -1, 1, 2)[number % 5] if number % 3 else 0,
        }
        sent = chance.randrange(-1, 12)
        for rank in range(num_ranks):
            own = chance.randrange(12) if chance.random() < 0.1 else sent
            at = 5000 * number + chance.randrange(900)
            lasts = chance.randrange(10, 4000)
            comm.append(
                call(
                    rank=rank, id=number, seq=number, at=at, until=at + lasts, call_ns=lasts,
                    blocked_ns=lasts, sent_id=own, **reported,
                )
            )  # fmt: skip
    steps = [
        step(rank, number, 300_000 * number, 300_000 * (number + 1))
        for rank in range(num_ranks)
        for number in range(2)
    ]
    return trace_of(comm, num_ranks=num_ranks, steps=steps)


def late_trace(
    lateness: Callable[[int, int], int],
    num_ranks: int = 3,
    num: int = 20,
    *,
    cores: bool | None = None,
) -> Trace:
    """All-reduces every 10 µs, with the given lateness in ns of each rank at the nth call.

    They complete 9 µs after the first rank arrives, and half of them make a step. It is not known
    whether late ranks had `cores`, or they had them, or they had none.
    """
    delay = {None: -1, True: 0, False: 1}[cores]
    comm = []
    for n in range(num):
        for rank in range(num_ranks):
            at = lateness(n, rank)
            comm.append(
                call(
                    rank=rank, id=n, seq=n, at=10_000 * n + at, until=10_000 * n + 9_000,
                    call_ns=9_000 - at, blocked_ns=9_000 - at, module="m", source_file="train.py",
                    source_line=3, phase="forward", step=2 * n // num,
                    run_delay_ns=delay * at if delay > 0 else delay,
                )
            )  # fmt: skip
    steps = [
        step(rank, number, 5_000 * num * number, 5_000 * num * (number + 1))
        for rank in range(num_ranks)
        for number in range(2)
    ]
    ranks = [rank_row(rank, end_ns=START_NS + 10_000 * num) for rank in range(num_ranks)]
    return trace_of(comm, num_ranks=num_ranks, ranks=ranks, steps=steps)


def stalled_once(n: int, rank: int) -> int:
    """Rank 1 is late once; otherwise the ranks are slightly late in turn."""
    return 8_000 if (n, rank) == (15, 1) else 10 * ((n + rank) % 3)


def late_in_turn(n: int, rank: int) -> int:
    """Each rank is late to every third call."""
    return 4_000 * (n % 3 == rank)


def late_at_every_other(n: int, rank: int) -> int:
    """Rank 2 is late to every second call."""
    return 3_000 * (rank == 2 and n % 2) + 10 * (n % 3 == rank)


def accumulated(num_passes: int = 2, *, by_hand: bool = False, num_steps: int = 2) -> list[Any]:
    """Calls of a rank that reduces two buckets per pass, in several passes a step.

    `by_hand` adds four reductions outside of backward to each step.
    """
    comm: list[Any] = []

    def reduces(**columns: Any) -> None:
        n = len(comm)
        times = {"at": 100 * n, "until": 100 * n + 50, "call_ns": 50, "blocked_ns": 50}
        known = {"id": n, "seq": n, "module": "m", "source_file": "train.py", "wire_bytes": 12}
        comm.append(call(**known, **times, **columns))

    for number in range(num_steps):
        for _ in range(num_passes):
            for names in ("w,b", "v"):
                reduces(
                    step=number, payload_bytes=16, carries="gradients", parameters=names,
                    phase="backward", source_line=3,
                )  # fmt: skip
        for _ in range(4 * by_hand):
            reduces(step=number, payload_bytes=8, phase="other", source_line=5)
        reduces(step=number, payload_bytes=8, phase="other", source_line=6)  # for example a loss
    return comm


def flagged(reasons: Sequence[str]) -> list[Any]:
    """Passes of a rank that reduces a bucket and then the flags, with a reason for each."""
    known = {"phase": "backward", "module_class": "DistributedDataParallel", "call_ns": 50}
    comm = []
    for n, reason in enumerate(reasons):
        sent = {"id": 2 * n, "seq": 2 * n, "at": 200 * n, "until": 200 * n + 50, "blocked_ns": 50}
        gradients = {"carries": "gradients", "parameters": "w", "payload_bytes": 900}
        comm.append(call(**known, **sent, **gradients, step=n))
        sent = {"id": 2 * n + 1, "seq": 2 * n + 1, "at": 200 * n + 60, "until": 200 * n + 80}
        flags = {"carries": "flags", "dtype": "int32", "payload_bytes": 8, "wire_bytes": 12}
        comm.append(call(**known, **sent, **flags, blocked_ns=20, reason=reason, step=n))
    return comm
