"""A second reader of profiler traces, by other means than commtrace and without importing it.

It loads a file as JSON, finds a kernel's operator among all spans of the thread that are around its
launch, and measures overlap by counting, at each instant where a kernel begins or ends, how many
run. It is slow, and serves to check the importer.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMUNICATES = re.compile(r"nccl\w*Kernel|cross_device_reduce|multimem_\w+kernel")
KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "barrier": "barrier", "send": "send",
    "recv": "recv",
}  # fmt: skip
BYTES = {
    "float": 4, "int": 4, "bfloat16": 2, "half": 2, "byte": 1, "unsignedchar": 1, "long": 8,
    "longint": 8,
}  # fmt: skip
LATE_NS = 50_000


@dataclass
class Found:
    """A call that a kernel ran."""

    rank: int
    start_ns: int
    end_ns: int
    kind: str
    stream: int
    step: int
    issued_ns: int
    sent: int = -1
    received: int = -1
    itemsize: int = -1
    group: tuple[int, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Bytes as bandwidths count them."""
        if self.kind == "barrier":
            return 0
        sent, received, size = self.sent, self.received, len(self.group)
        elements = sent
        if self.kind == "all_gather":
            elements = received if received >= 0 else sent * size if size and sent >= 0 else -1
        elif self.kind == "recv":
            elements = max(sent, received)
        return elements * self.itemsize if elements >= 0 and self.itemsize > 0 else -1


@dataclass
class File:
    """The events of a rank, sorted out; times in ns since 1970."""

    rank: int
    world: int
    groups: dict[str, tuple[int, ...]]
    spans: dict[Any, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    kernels: list[dict[str, Any]] = field(default_factory=list)
    launches: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps: list[tuple[int, int, int]] = field(default_factory=list)


def read(path: Path) -> File:
    """Read a file."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    about, base = document["distributedInfo"], document.get("baseTimeNanoseconds") or 0
    file = File(about["rank"], about["world_size"], {})
    for config in about.get("pg_config", ()):
        file.groups[config["pg_name"]] = _ranks(config["ranks"])
    for event in document["traceEvents"]:
        if event["ph"] != "X":
            continue
        start = base + _exact_ns(event["ts"])
        event |= {"start": start, "end": start + _exact_ns(event["dur"])}
        event.setdefault("args", {})
        category = event["cat"].lower()
        if category == "kernel":
            file.kernels.append(event)
        elif category in ("runtime", "cuda_runtime", "cuda_driver", "hip_runtime"):
            file.launches[event["args"]["correlation"]] = event
        elif event["name"].startswith("ProfilerStep#"):
            file.steps.append((event["start"], event["end"], int(event["name"][13:])))
        elif category in ("cpu_op", "operator", "user_annotation"):
            file.spans[event["tid"]].append(event)
    for spans in file.spans.values():
        for event in spans:
            args = event["args"]
            name = args.get("Process Group Name")
            if name is not None and not file.groups.get(name):
                file.groups[name] = _described_ranks(args)
    return file


def _exact_ns(microseconds: float) -> int:
    whole, _, part = f"{microseconds:.3f}".partition(".")
    return int(whole) * 1000 + int(part)


def _ranks(ranks: Any) -> tuple[int, ...]:
    if isinstance(ranks, str):
        return () if "..." in ranks else tuple(json.loads(ranks))
    return tuple(ranks)


def _described_ranks(args: dict[str, Any]) -> tuple[int, ...]:
    first, stride = args["Global rank start"], args["Global rank stride"]
    return tuple(range(first, first + stride * args["Group size"], stride))


def calls_of(file: File) -> list[Found]:
    """Return the calls that communication kernels ran."""
    found: list[Found] = []
    taken: set[int] = set()
    for event in sorted(file.kernels, key=lambda each: each["start"]):
        if COMMUNICATES.search(event["name"]):
            found += _calls_of_kernel(file, event, taken)
    return found


def _calls_of_kernel(file: File, event: dict[str, Any], taken: set[int]) -> Iterable[Found]:
    around, issued = _around(file, event)
    inner = [span for span in around if _role(span)]
    stream = event["args"].get("stream", event["tid"])
    stream = int(str(stream).split()[-1])
    step = next((n for start, end, n in file.steps if start <= issued < end), -1)
    base = Found(file.rank, event["start"], event["end"], "unknown", stream, step, issued)
    if inner and "coalesced" in inner[0]["name"]:
        for span in _batch_before(file, inner[0], taken):
            inside = [each for each in file.spans[span["tid"]] if _is_inside(each, span)]
            yield _filled(file, base, event, [span, *inside])
        return
    yield _filled(file, base, event, inner)


def _around(file: File, event: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the spans around the launch of a kernel, outermost first, and the launch's time."""
    launch = file.launches.get(event["args"].get("correlation", -1))
    if launch is not None:
        on_thread = file.spans[launch["tid"]]
        inside = [span for span in on_thread if span["start"] <= launch["start"] < span["end"]]
        return sorted(inside, key=lambda span: span["start"] - span["end"]), launch["start"]
    external = event["args"].get("External id", event["args"].get("external id"))
    for spans in file.spans.values():
        for span in spans:
            if external is not None and span["args"].get("External id") == external:
                around = [each for each in spans if _is_inside(span, each)]
                return sorted(around, key=lambda each: each["start"] - each["end"]), span["start"]
    return [], event["start"]


def _is_inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return outer["start"] <= inner["start"] and inner["end"] <= outer["end"]


def _role(span: dict[str, Any]) -> str:
    name = span["name"]
    if name.startswith(("c10d::", "nccl:")) or name == "record_param_comms":
        return name
    return ""


def _batch_before(file: File, closing: dict[str, Any], taken: set[int]) -> list[dict[str, Any]]:
    """Return the operators before the end of a batch within which nothing was launched."""
    thread = closing["tid"]
    launched = sorted(
        launch["start"] for launch in file.launches.values() if launch["tid"] == thread
        and launch["start"] < closing["start"]
    )  # fmt: skip
    after = max([at for at in launched if _of_nccl(file, thread, at)], default=0)
    return [
        span
        for span in sorted(file.spans[thread], key=lambda span: span["start"])
        if span["name"].startswith("c10d::") and after < span["start"] < closing["start"]
    ]


def _of_nccl(file: File, thread: Any, at: int) -> bool:
    return any(span["start"] <= at < span["end"] for span in file.spans[thread] if _role(span))


def _filled(
    file: File, base: Found, event: dict[str, Any], spans: Sequence[dict[str, Any]]
) -> Found:
    """Return the call with the facts of the spans around it and of the kernel's arguments."""
    found = Found(base.rank, base.start_ns, base.end_ns, base.kind, base.stream, base.step,
                  base.issued_ns)  # fmt: skip
    kinds = [_kind(span) for span in spans] + [_kind_in_name(event["name"])]
    found.kind = next((kind for kind in kinds if kind), "unknown")
    described = next((s["args"] for s in spans if "Collective name" in s["args"]), event["args"])
    if "In msg nelems" in described:
        found.sent, found.received = described["In msg nelems"], described["Out msg nelems"]
        found.itemsize = _bytes(described["dtype"])
        found.group = file.groups[described["Process Group Name"]]
        return found
    for span in spans:
        dims = span["args"].get("Input Dims") or []
        sizes = [_product(each) for each in dims if each]
        known = [_bytes(name) for name in span["args"].get("Input type") or [] if _bytes(name) > 0]
        if not sizes or not known:
            continue
        if span["name"].startswith("c10d::"):
            found.received, found.sent = sizes[0], sizes[-1]
        else:
            found.sent = sum(sizes)
        found.itemsize = known[0]
        break
    return found


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _bytes(name: str) -> int:
    return BYTES.get(name.lower().removeprefix("c10::").replace(" ", ""), -1)


def _kind(span: dict[str, Any]) -> str:
    name = span["args"].get("Collective name") or span["name"].split(" ")[0].split(":")[-1]
    plain = name.replace("_", "").removesuffix("base").removesuffix("v")
    return KINDS.get("recv" if plain == "rec" else plain, "")


def _kind_in_name(name: str) -> str:
    if "cross_device_reduce" in name or "multimem_all_reduce" in name:
        return "all_reduce"
    found = re.search(r"Kernel_([A-Za-z]+)", name)
    return KINDS.get(found[1].lower(), "") if found else ""


def with_groups(ranks: Sequence[list[Found]]) -> None:
    """Give calls without a stated group one: the ranks whose kernels on a stream end together."""
    streams = {call.stream for calls in ranks for call in calls}
    for stream in streams:
        by_rank = [[call for call in calls if call.stream == stream] for calls in ranks]
        by_rank = [sorted(calls, key=lambda call: call.issued_ns) for calls in by_rank]
        kinds = {tuple(call.kind for call in calls) for calls in by_rank}
        if len(kinds) > 1:
            continue
        for calls in by_rank:
            group = tuple(
                other[0].rank
                for other in by_rank
                if all(
                    abs(a.end_ns - b.end_ns) < LATE_NS for a, b in zip(calls, other, strict=True)
                )
            )
            for call in calls:
                call.group = call.group or group


def overlap_of(file: File) -> dict[int, tuple[int, int]]:
    """Return the time of communication, and of exposed communication, of each step in ns.

    A kernel belongs to the step in which it was launched.
    """
    computing: list[tuple[int, int, int]] = []
    changes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for event in file.kernels:
        if COMMUNICATES.search(event["name"]):
            _, issued = _around(file, event)
            step = next((n for start, end, n in file.steps if start <= issued < end), -1)
            changes[step] += [(event["start"], 1, True), (event["end"], -1, True)]
        else:
            computing += [(event["start"], 1, False), (event["end"], -1, False)]
    return {step: _swept([*own, *computing]) for step, own in changes.items()}


def _swept(changes: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    running, since, total, exposed = [0, 0], 0, 0, 0
    for instant, change, communicates in sorted(changes):
        if running[1]:
            total += instant - since
            exposed += instant - since if not running[0] else 0
        running[communicates] += change
        since = instant
    return total, exposed
