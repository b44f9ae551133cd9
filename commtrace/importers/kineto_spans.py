"""Events of a profiled rank that describe communication, located in the program.

`gather` classifies the events of one file. `calls_of` walks each thread's nested spans, makes a
`HostCall` of each communication call, and rows of table `ops` of the operators around them. A call
is counted once, however many events describe it:

    c10d::allreduce_            the operator, on any backend: shapes, flags, roots
      record_param_comms        its description: group, number, sizes (NCCL and its like)
    gloo:all_reduce             its work on a thread of gloo: when it began and ended
    nccl:all_reduce             its sizes, in traces without a description
    ncclDevKernel_AllReduce...  its work on the device, with a copy of the description
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.importers.device_kernels import UNKNOWN, Kernel
from commtrace.importers.names import NO_COMMUNICATION, NOT_KNOWN, is_library, kind_of
from commtrace.schema import COMMUNICATION, COMPUTE, MEMCPY, MEMSET
from commtrace.tracefile.reading import is_int

FRAME, MODULE, BACKWARD, OPTIMIZER, OP, C10D, PARAMS, NOTE, LAUNCH = range(9)

Span = tuple[int, int, int, str, Mapping[str, Any]]
"""Start, minus end (so that outer spans sort first), type, name, arguments."""

_STEP, _MODULE, _ENGINE = "ProfilerStep#", "nn.Module: ", "autograd::engine::evaluate_function"
_OPTIMIZER_STEP, _DESCRIPTION, _COLLECTIVES = "Optimizer.step#", "record_param_comms", "c10d::"
COLLECTIVE_NAME = "Collective name"
_HOST_BACKENDS, _DEVICE_BACKENDS = ("gloo", "mpi", "ucc"), ("nccl", "rccl", "xccl")


@dataclass(slots=True)
class HostCall:
    """One communication call on the host; `work` is the period in which gloo or a device ran it.

    Of its arguments, `args` are those of the operator, `described` those of the description,
    `noted` those of the annotation, and `worker_args` those of gloo's work.
    """

    start: int
    end: int
    thread: int
    name: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    noted: Mapping[str, Any] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    op: str = ""
    op_id: int = NOT_KNOWN
    work: tuple[int, int] | None = None
    is_on_device: bool = False
    worker_args: Mapping[str, Any] = field(default_factory=dict)
    kernel_work: CommunicationWork | None = None

    @property
    def kind(self) -> str:
        """Kind of the call by its description, its operator, or its kernel."""
        kind = kind_of(str(self.described.get(COLLECTIVE_NAME) or self.name))
        return kind if kind in KINDS or self.kernel is None else self.kernel.kind

    @property
    def kernel(self) -> Kernel | None:
        """Facts about the last of the call's kernels, as its name states them."""
        return self.kernel_work.kernel if self.kernel_work is not None else None


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


@dataclass(slots=True)
class CommunicationWork(Work):
    """One communication kernel; `call` is the call that it belongs to."""

    kernel: Kernel
    args: Mapping[str, Any]
    call: HostCall | None = None


@dataclass(slots=True)
class Gathered:
    """Classified events of one rank; times in ns of its clock."""

    recognized: Callable[[str], Kernel | None]
    spans: dict[int, list[Span]] = field(default_factory=dict)
    workers: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = field(default_factory=dict)
    kernels: list[CommunicationWork] = field(default_factory=list)
    other_work: list[Work] = field(default_factory=list)
    """Kernels that do not communicate, and copies."""
    launches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Thread and time of the launch of each kernel or copy, by correlation."""
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    start: int = -1
    end: int = -1
    num_invalid: int = 0
    """Number of events with invalid times, or that end before they begin."""


def gather(
    events: Iterable[Mapping[str, Any]], recognized: Callable[[str], Kernel | None]
) -> Gathered:
    """Collect the events of interest; `recognized` knows the kernels that communicate."""
    found = Gathered(recognized)
    for event in events:
        if event.get("ph") != "X" or event.get("ts") is None:
            continue
        handler = _HANDLERS.get(str(event.get("cat", "")).lower())
        if handler is None:
            continue
        times = _times_of(event)
        if times is None:
            found.num_invalid += 1
            continue
        start, end = times
        found.start = start if found.start < 0 else min(found.start, start)
        found.end = max(found.end, end)
        handler(found, event, str(event.get("name", "")), start, end)
    return found


def _times_of(event: Mapping[str, Any]) -> tuple[int, int] | None:
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


def _of_operator(
    found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int
) -> None:
    if name == _DESCRIPTION:
        span_type = PARAMS
    elif name.startswith(_COLLECTIVES) and kind_of(name[len(_COLLECTIVES) :]) in KINDS:
        span_type = C10D
    elif name.startswith(_ENGINE):
        span_type = BACKWARD
    else:
        span_type = OP
    if isinstance(event.get("pid"), int):
        found.pids.add(event["pid"])
    _add(found, event, span_type, name, start, end)


def _of_python(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
    if name.startswith(_MODULE):
        _add(found, event, MODULE, name[len(_MODULE) :], start, end)
    elif not is_library(name.rpartition("(")[0]):
        _add(found, event, FRAME, name, start, end)


def _of_annotation(
    found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int
) -> None:
    backend, _, work = name.partition(" ")[0].partition(":")  # `nccl:send 0->1`
    if name.startswith(_STEP):
        number = name[len(_STEP) :]
        if number.isdigit():
            found.steps[int(number)] = (start, end)
    elif name.startswith(_OPTIMIZER_STEP):
        _add(found, event, OPTIMIZER, name, start, end)
    elif backend in _HOST_BACKENDS and kind_of(work) in KINDS:
        of_kind = found.workers.setdefault(kind_of(work), [])
        of_kind.append((start, end, event.get("args") or {}))
    elif backend in _DEVICE_BACKENDS and kind_of(work) in KINDS:
        _add(found, event, NOTE, work, start, end)


def _of_kernel(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
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


def _of_copy(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
    found.other_work.append(Work(start, end, MEMCPY, name, *_placed(event)))


def _of_fill(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
    found.other_work.append(Work(start, end, MEMSET, name, *_placed(event)))


def _placed(event: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the device, the stream and the correlation of an event of a device."""
    args = event.get("args") or _NO_ARGS
    device, stream = _index(args.get("device")), _index(args.get("stream"))
    return device, stream, _index(args.get("correlation"))


def _index(value: Any) -> int:
    """Return a device, stream or correlation; -1 if it is none."""
    return value if is_int(value) and 0 <= value < _FAR_NS else NOT_KNOWN


def _of_runtime(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
    correlation, thread = (event.get("args") or {}).get("correlation"), event.get("tid")
    if is_int(correlation) and is_int(thread):
        found.launches[correlation] = thread, start


_HANDLERS = {
    "cpu_op": _of_operator,
    "operator": _of_operator,
    "python_function": _of_python,
    "user_annotation": _of_annotation,
    "kernel": _of_kernel,
    "gpu_memcpy": _of_copy,
    "memcpy": _of_copy,
    "gpu_memset": _of_fill,
    "memset": _of_fill,
    "cuda_runtime": _of_runtime,
    "cuda_driver": _of_runtime,
    "hip_runtime": _of_runtime,
    "runtime": _of_runtime,
}


def _add(
    found: Gathered, event: Mapping[str, Any], span_type: int, name: str, start: int, end: int
) -> None:
    thread = event.get("tid")
    spans = found.spans.setdefault(thread if isinstance(thread, int) else NOT_KNOWN, [])
    # Arguments of an operator are read only if it describes communication.
    args = event.get("args") or _NO_ARGS if span_type in _READ else _NO_ARGS
    spans.append((start, -end, span_type, name, args))


_READ = frozenset({C10D, PARAMS, NOTE})
_NO_ARGS: Mapping[str, Any] = {}


Op = tuple[int, int, str, int, int, Mapping[str, Any], int]
"""Number, parent's number, name, start, end, place, thread."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Communication calls of one rank, and the operators around them.

    Attributes:
        issued: The calls that the host shows, in order of issue.
        by_id: These calls by the ids of the operators that describe them.
        launched: The call that launched a kernel, by correlation. If none did, a call that is not
            among `issued`, with the place of the launch.
        ops: All operators.
    """

    issued: list[HostCall]
    by_id: Mapping[Any, HostCall]
    launched: Mapping[int, HostCall]
    ops: list[Op]


def calls_of(found: Gathered) -> Calls:
    """Return the calls that the host shows, by all that kernels may refer to."""
    calls: list[HostCall] = []
    by_id: dict[Any, HostCall] = {}
    launched: dict[int, HostCall] = {}
    ops: list[Op] = []
    for correlation in {work.correlation for work in found.kernels}:
        if correlation in found.launches:
            thread, start = found.launches[correlation]
            launch = (start, -start, LAUNCH, "", {"correlation": correlation})
            found.spans.setdefault(thread, []).append(launch)
    for thread, spans in found.spans.items():
        for span, stack in _nested(spans):
            start, minus_end, span_type, name, args = span
            inside = next((each for each in reversed(stack) if isinstance(each[1], HostCall)), None)
            if span_type == OP:
                parent = next((each[1] for each in reversed(stack) if each[0][2] == OP), NOT_KNOWN)
                stack.append((span, len(ops)))
                ops.append((len(ops), parent, name, start, -minus_end, _place(stack), thread))
            elif span_type == LAUNCH:
                call = inside[1] if inside else _located(HostCall(start, start, thread), stack)
                launched[args["correlation"]] = call
            elif (
                span_type == C10D
                or (span_type == PARAMS and _is_call(args) and _is_taken(inside))
                or (span_type == NOTE and inside is None)
            ):
                call = HostCall(start, -minus_end, thread, name.removeprefix(_COLLECTIVES), args)
                if span_type == PARAMS:
                    call.described = args
                elif span_type == NOTE:
                    call.args, call.noted = {}, args
                calls.append(_located(call, stack))
                stack.append((span, call))
                by_id[id_of(args)] = call
            else:
                if inside is not None:
                    by_id[id_of(args)] = inside[1]
                    if span_type == PARAMS and _is_call(args):
                        inside[1].described = args
                    elif span_type == NOTE and not inside[1].noted:
                        inside[1].noted = args
                stack.append((span, None))
    calls.sort(key=lambda call: call.start)
    by_id.pop(None, None)
    every = {id(call): call for call in (*calls, *launched.values())}
    return Calls(calls, by_id, launched, _renumbered(ops, every.values()))


def id_of(args: Mapping[str, Any]) -> Any:
    """Return the id that an operator's event shares with what it ran, if it has one."""
    return args.get("External id", args.get("external id"))


def _located(call: HostCall, stack: Stack) -> HostCall:
    """Set the location of a call in the program, and return the call."""
    call.place = _place(stack)
    around = next((each for each in reversed(stack) if each[0][2] == OP), None)
    call.op, call.op_id = (around[0][3], around[1]) if around else ("", NOT_KNOWN)
    return call


def _renumbered(ops: list[Op], calls: Iterable[HostCall]) -> list[Op]:
    """Number the operators of all threads in order of their start."""
    order = sorted(range(len(ops)), key=lambda number: ops[number][3])
    new = {old: place for place, old in enumerate(order)} | {NOT_KNOWN: NOT_KNOWN}
    for call in calls:
        call.op_id = new[call.op_id]
    return [(new[old], new[ops[old][1]], *ops[old][2:]) for old in order]


Stack = list[tuple[Span, Any]]


def _nested(spans: list[Span]) -> Iterator[tuple[Span, Stack]]:
    """Yield each span with the enclosing ones; consumers append to the stack."""
    stack: Stack = []
    # Without the arguments, which cannot be compared.
    for span in sorted(spans, key=lambda each: each[:3]):
        while stack and -stack[-1][0][1] <= span[0]:
            stack.pop()
        yield span, stack


def _is_call(args: Mapping[str, Any]) -> bool:
    name = args.get(COLLECTIVE_NAME)
    return bool(name) and kind_of(str(name)) not in NO_COMMUNICATION


def _is_taken(inside: tuple[Span, Any] | None) -> bool:
    return inside is None or bool(inside[1].described)


def _place(stack: Stack) -> Mapping[str, Any]:
    """Return the location in the program, as columns of tables `comm` and `ops`."""
    modules = [span[3] for span, _ in stack if span[2] == MODULE]
    tags = {span[2] for span, _ in stack}
    phase = (
        "backward"
        if BACKWARD in tags
        else "optimizer"
        if OPTIMIZER in tags
        else "forward"
        if modules
        else ""
    )
    place: dict[str, Any] = {"phase": phase}
    if modules:
        place["module"] = ".".join(modules)
        place["module_class"] = modules[-1].rpartition("_")[0] or modules[-1]
    frame = next((span[3] for span, _ in reversed(stack) if span[2] == FRAME), "")
    if frame:
        file, _, rest = frame.rpartition("(")
        line, _, function = rest.partition("): ")
        place["source"] = (file, int(line) if line.isdigit() else NOT_KNOWN, function)
    return place
