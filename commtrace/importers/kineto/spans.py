"""Events of a profiled rank, classified: spans of its threads, work of gloo and of devices.

    c10d::allreduce_            C10D: an operator that communicates, on any backend
    record_param_comms          PARAMS: the description of a call
    nccl:all_reduce             NOTE: the annotation of a call
    PythonDispatchMode          PYTHON: Python that runs an operator and may call it again
    gloo:all_reduce             WORKER: the work of a call, on a thread of gloo
    ProfilerStep#7              STEP
    ncclDevKernel_AllReduce...  work of a device that communicates

Releases differ in the spelling of categories, threads and streams. Until 2021, annotations had the
category of operators; an event's name therefore decides its type. `calls` makes calls of the
spans.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.device_kernels import DEVICES, UNKNOWN, Kernel, is_check
from commtrace.errors import NotATraceError
from commtrace.importers.kineto.sync_calls import (
    RECORD_KINDS,
    SyncCall,
    SyncRecord,
    sync_kind,
)
from commtrace.schema import COMMUNICATION, COMPUTE, MEMCPY, MEMSET
from commtrace.torch_names import COALESCED, NOT_KNOWN, is_library, kind_of
from commtrace.tracefile.reading import is_int

FRAME, MODULE, BACKWARD, OPTIMIZER, OP, C10D, PARAMS, NOTE, LAUNCH, PYTHON, STEP, WORKER = range(12)

EventFields = Mapping[str, Any]
Span = tuple[int, int, int, str, Mapping[str, Any]]
"""Start, minus end (so that outer spans sort first), type, name, arguments."""

_STEP, _MODULE, _ENGINE = "ProfilerStep#", "nn.Module: ", "autograd::engine::evaluate_function"
_OPTIMIZER_STEP, _DESCRIPTION, COLLECTIVES = "Optimizer.step#", "record_param_comms", "c10d::"
COLLECTIVE_NAME = "Collective name"
DISPATCH_MODE = "PythonDispatchMode"
_IN_PYTHON = frozenset({DISPATCH_MODE, "PythonSubclass", "PythonTLSSnapshot"})
_HOST_BACKENDS = ("gloo", "mpi", "ucc")
_DEVICE_BACKENDS = frozenset({*DEVICES, "hccl"})


@dataclass(slots=True)
class Work:
    """One kernel or copy on a device; times in ns of the rank's clock."""

    start: int
    end: int
    category: str
    name: str
    device: int
    stream: int
    correlation: int
    operator: Any
    """Id of the operator that launched it; None if unknown."""


@dataclass(slots=True)
class CommunicationWork(Work):
    """One communication kernel."""

    kernel: Kernel
    args: Mapping[str, Any]


@dataclass(slots=True)
class Gathered:
    """Classified events of a rank; times in ns of its clock."""

    recognized: Callable[[str], Kernel | None]
    spans: dict[int, list[Span]] = field(default_factory=dict)
    workers: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = field(default_factory=dict)
    kernels: list[CommunicationWork] = field(default_factory=list)
    other_work: list[Work] = field(default_factory=list)
    """Kernels that do not communicate, and copies."""
    launches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Thread and time of the launch of each kernel or copy, by correlation."""
    sync_calls: list[SyncCall] = field(default_factory=list)
    """Calls that record events or wait, and copies."""
    sync_records: list[SyncRecord] = field(default_factory=list)
    event_streams: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Device and stream in which a call recorded an event, by correlation; -1 if contradictory."""
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    start: int = 0
    end: int = 0
    num_invalid: int = 0
    """Number of events with invalid times, or that end before they begin."""
    num_known: int = 0
    """Number of events of categories that torch.profiler writes."""
    processes: set[str] = field(default_factory=set)
    """Names that the trace gives its processes."""
    launchers: set[str] = field(default_factory=set)
    """Categories and functions of the launches."""

    def copies(self) -> set[int]:
        """Return the correlations of the copies."""
        copies = {work.correlation for work in self.other_work if work.category == MEMCPY}
        return copies - {NOT_KNOWN}

    def take(self, correlations: Set[int], operators: Set[Any]) -> None:
        """Reclassify work that calls launched as communication, whatever its name.

        Args:
            correlations: Numbers of copies that executed calls, and of kernels that calls launched.
            operators: Ids of calls, by which kernels without a known launch refer to them.
        """
        every, self.other_work = self.other_work, []
        for work in every:
            is_of_call = work.correlation in correlations or (
                work.category == COMPUTE
                and work.operator in operators
                and work.operator != work.correlation
                and work.correlation not in self.launches
                and not is_check(work.name)
            )
            if is_of_call:
                fields: dict[str, Any] = asdict(work) | {"category": COMMUNICATION}
                args = {"External id": work.operator} if work.operator is not None else _NO_ARGS
                self.kernels.append(CommunicationWork(**fields, kernel=Kernel(UNKNOWN), args=args))
            else:
                self.other_work.append(work)


_ASCEND = frozenset({"Ascend Hardware", "CANN", "HCCL"})


def require_profile(found: Gathered, about: Mapping[str, Any], summary: str) -> None:
    """Raise NotATraceError if events come from a program other than torch.profiler.

    torch.profiler states the version of its format, or writes categories of events.
    """
    if found.processes & _ASCEND:
        raise NotATraceError(
            summary,
            found="a trace_view.json of torch_npu's profiler (Ascend)",
            why="its HCCL operations are events without categories, which no importer reads",
            attempt="MindStudio Insight, which reads it",
        )
    if not found.num_known and not {"schemaVersion", "distributedInfo"} & about.keys():
        processes = f" of {', '.join(sorted(found.processes)[:3])}" if found.processes else ""
        raise NotATraceError(
            summary,
            found=f"a chrome trace{processes} without an event of torch.profiler",
            why="chrome traces of other programs have no calls that could be read",
            attempt="the file that torch.profiler's export_chrome_trace wrote",
        )


def gather(events: Iterable[EventFields], recognized: Callable[[str], Kernel | None]) -> Gathered:
    """Collect the events of interest; `recognized` knows the kernels that communicate."""
    found = Gathered(recognized)
    first, last = _FAR_NS, -_FAR_NS
    for event in events:
        if event.get("ph") != "X" or event.get("ts") is None:
            if event.get("name") == "process_name":
                found.processes.add(str((event.get("args") or _NO_ARGS).get("name"))[:80])
            continue
        handler = _handler(str(event.get("cat", "")).lower())
        if handler is None:
            continue
        found.num_known += 1
        times = _times_of(event)
        if times is None:
            found.num_invalid += 1
            continue
        start, end = times
        first, last = min(first, start), max(last, end)
        # A trace has many events of few names.
        handler(found, event, sys.intern(str(event.get("name", ""))), start, end)
    if first <= last:
        found.start, found.end = first, last
    return found


def _times_of(event: EventFields) -> tuple[int, int] | None:
    """Return begin and end in ns; None if the event's times are invalid."""
    begins, lasts = event["ts"], event.get("dur") or 0
    try:
        start, length = _ns(begins), _ns(lasts)
    except (TypeError, ValueError, OverflowError):
        return None
    return (start, start + length) if 0 <= length < _FAR_NS and abs(start) < _FAR_NS else None


def _ns(microseconds: Any) -> int:
    """Return nanoseconds; exact for numbers that a float's product with 1000 would round."""
    if type(microseconds) is int:
        return microseconds * 1000
    number = float(microseconds)
    integer = int(number)
    return integer * 1000 + round((number - integer) * 1000)


# The sum of two such times is a 64-bit integer.
_FAR_NS = 1 << 61


@lru_cache(maxsize=65536)
def _meaning(name: str) -> tuple[int, str]:
    """Return the type of an operator or annotation, and the part of its name that identifies it."""
    if name == _DESCRIPTION:
        return PARAMS, name
    if name in _IN_PYTHON:
        return PYTHON, name
    if name.startswith(COLLECTIVES) and kind_of(name.removeprefix(COLLECTIVES)) in KINDS:
        return C10D, name
    for beginning, span_type in _BEGINNINGS.items():
        if name.startswith(beginning):
            return span_type, name.removeprefix(beginning)
    backend, _, work = name.partition(" ")[0].partition(":")  # `nccl:send 0->1`
    kind = kind_of(work)
    if backend in _HOST_BACKENDS and kind in KINDS:
        return WORKER, kind
    if backend in _DEVICE_BACKENDS and (kind in KINDS or kind in COALESCED):
        return NOTE, work
    return OP, name


_BEGINNINGS = {_ENGINE: BACKWARD, _STEP: STEP, _OPTIMIZER_STEP: OPTIMIZER}
_ANNOTATIONS = frozenset({STEP, OPTIMIZER, WORKER, NOTE})


def _of_operator(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    if isinstance(event.get("pid"), int):
        found.pids.add(event["pid"])
    _take(found, event, _meaning(name), start, end)


def _of_annotation(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    meaning = _meaning(name)
    if meaning[0] in _ANNOTATIONS:
        _take(found, event, meaning, start, end)


def _take(
    found: Gathered, event: EventFields, meaning: tuple[int, str], start: int, end: int
) -> None:
    span_type, name = meaning
    if span_type == STEP:
        if name.isdecimal():
            found.steps[int(name)] = (start, end)
    elif span_type == WORKER:
        found.workers.setdefault(name, []).append((start, end, event.get("args") or _NO_ARGS))
    else:
        _add(found, event, span_type, name, start, end)


def _of_python(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    if name.startswith(_MODULE):
        _add(found, event, MODULE, name[len(_MODULE) :], start, end)
    elif not is_library(name.rpartition("(")[0]):
        _add(found, event, FRAME, name, start, end)


def _of_kernel(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    args = event.get("args") or _NO_ARGS
    kernel = found.recognized(name)
    if kernel is None and COLLECTIVE_NAME in args:
        kernel = Kernel(UNKNOWN)
    if kernel is None:
        found.other_work.append(Work(start, end, COMPUTE, name, *_placed(event)))
    else:
        placed = _placed(event)
        work = CommunicationWork(start, end, COMMUNICATION, name, *placed, kernel, args)
        found.kernels.append(work)


def _of_memory(
    category: str, found: Gathered, event: EventFields, name: str, start: int, end: int
) -> None:
    found.other_work.append(Work(start, end, category, name, *_placed(event)))


def _placed(event: EventFields) -> tuple[int, int, int, Any]:
    """Return the device, the stream, the correlation and the operator of an event of a device."""
    args = event.get("args") or _NO_ARGS
    device, stream = _index(args.get("device")), _index(args.get("stream"))
    # Without the argument, the thread is the stream: `7`, or `stream 7`.
    stream = stream if stream >= 0 else _index(event.get("tid"))
    return device, stream, _correlation(args), id_of(args)


def id_of(args: Mapping[str, Any]) -> Any:
    """Return the id that an operator's event shares with what it ran, if any."""
    number = args.get("External id", args.get("external id"))
    return number if isinstance(number, (int, str)) else None


def _index(value: Any) -> int:
    """Return a device, stream or thread, which may be a text, `stream 7`; -1 if it is none."""
    if isinstance(value, str):
        found = _LAST_NUMBER.fullmatch(value)
        value = int(found[1]) if found else NOT_KNOWN
    return value if is_int(value) and 0 <= value < _FAR_NS else NOT_KNOWN


_LAST_NUMBER = re.compile(r"(?:stream )?(\d{1,18})", re.ASCII)


def _correlation(args: Mapping[str, Any]) -> int:
    """Return the number that a launch shares with the work it launches; -1 if unknown.

    Early releases of ROCm's tracer give all communication kernels 0.
    """
    number = args.get("correlation")
    return number if is_int(number) and 0 < number < _FAR_NS else NOT_KNOWN


def _of_runtime(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    correlation = _correlation(event.get("args") or _NO_ARGS)
    if correlation >= 0:
        found.launches[correlation] = _index(event.get("tid")), start
        found.launchers.add(str(event.get("cat")).lower())
        found.launchers.add(name)
    if kind := sync_kind(name):
        thread = _index(event.get("tid"))
        found.sync_calls.append(SyncCall(kind, start, end, thread, correlation))


def _of_sync(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    kind = RECORD_KINDS.get(name)
    if kind is None:
        return
    args = event.get("args") or _NO_ARGS
    device, of_stream = _index(args.get("device")), _stream(args.get("wait_on_stream"))
    recorded = args.get("wait_on_cuda_event_record_corr_id")
    recorded = recorded if is_int(recorded) and 0 < recorded < _FAR_NS else NOT_KNOWN
    if recorded >= 0 and of_stream >= 0:
        _recorded_in(found, recorded, (device, of_stream))
    stream = _stream(args.get("stream"))
    record = SyncRecord(kind, start, end, _correlation(args), device, stream, of_stream, recorded)
    found.sync_records.append(record)


def _of_event(found: Gathered, event: EventFields, name: str, start: int, end: int) -> None:
    args = event.get("args") or _NO_ARGS
    correlation, stream = _correlation(args), _stream(args.get("stream"))
    if correlation >= 0 and stream >= 0:
        _recorded_in(found, correlation, (_index(args.get("device")), stream))


def _recorded_in(found: Gathered, correlation: int, place: tuple[int, int]) -> None:
    if found.event_streams.setdefault(correlation, place) != place:
        found.event_streams[correlation] = NOT_KNOWN, NOT_KNOWN


def _stream(value: Any) -> int:
    """Return a stream; -1 for none, for which CUPTI sets all bits."""
    stream = _index(value)
    return stream if stream != _NO_STREAM else NOT_KNOWN


_NO_STREAM = (1 << 32) - 1


_HANDLERS: dict[str, Callable[[Gathered, EventFields, str, int, int], None]] = {
    **dict.fromkeys(("cpu_op", "operator"), _of_operator),
    "python_function": _of_python,
    "user_annotation": _of_annotation,
    "kernel": _of_kernel,
    **dict.fromkeys(("gpu_memcpy", "memcpy"), partial(_of_memory, MEMCPY)),
    **dict.fromkeys(("gpu_memset", "memset"), partial(_of_memory, MEMSET)),
    "runtime": _of_runtime,
    "cuda_sync": _of_sync,
    "cuda_event": _of_event,
}


@lru_cache(maxsize=1024)
def _handler(category: str) -> Callable[[Gathered, EventFields, str, int, int], None] | None:
    """Return the handler of a category; each type of device has runtimes and drivers of its own."""
    is_runtime = category.endswith(("_runtime", "_driver"))
    return _of_runtime if is_runtime else _HANDLERS.get(category)


def _add(
    found: Gathered, event: EventFields, span_type: int, name: str, start: int, end: int
) -> None:
    spans = found.spans.setdefault(_index(event.get("tid")), [])
    # Arguments of an operator are read only if it describes communication.
    args = event.get("args") or _NO_ARGS if span_type in _READ else _NO_ARGS
    spans.append((start, -end, span_type, name, args))


_READ = frozenset({C10D, PARAMS, NOTE})
_NO_ARGS: Mapping[str, Any] = {}
