"""Events of a profiled rank that describe communication, located in the program.

`gather` classifies the events of one file. `calls_of` walks each thread's nested spans, makes a
`HostCall` of each communication call, and rows of table `ops` of the operators around them. A call
is counted once, however many events describe it:

    c10d::allreduce_            the operator, on any backend: shapes, flags, roots
      record_param_comms        its description: group, number, sizes (NCCL and its like)
    gloo:all_reduce             its work on a thread of gloo: when it began and ended
    ncclDevKernel_AllReduce...  its work on the device, with a copy of the description
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.importers.names import NO_COMMUNICATION, NOT_KNOWN, is_library, kind_of

FRAME, MODULE, BACKWARD, OPTIMIZER, OP, C10D, PARAMS, NOTE = range(8)

Span = tuple[int, int, int, str, Mapping[str, Any]]
"""Start, minus end (so that outer spans sort first), type, name, arguments."""

_STEP, _MODULE, _ENGINE = "ProfilerStep#", "nn.Module: ", "autograd::engine::evaluate_function"
_OPTIMIZER_STEP, _DESCRIPTION, _COLLECTIVES = "Optimizer.step#", "record_param_comms", "c10d::"
COLLECTIVE_NAME = "Collective name"
_HOST_BACKENDS = ("gloo", "mpi", "ucc")


@dataclass(slots=True)
class HostCall:
    """One communication call on the host; `work` is the period in which gloo or a device ran it."""

    start: int
    end: int
    thread: int
    name: str
    args: Mapping[str, Any]
    described: Mapping[str, Any] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    op: str = ""
    op_id: int = NOT_KNOWN
    work: tuple[int, int] | None = None
    is_on_device: bool = False
    worker_args: Mapping[str, Any] = field(default_factory=dict)
    kernel: str = ""

    @property
    def kind(self) -> str:
        """Kind of the call, taken from its description if it has one."""
        return kind_of(str(self.described.get(COLLECTIVE_NAME) or self.name))


@dataclass(slots=True)
class Gathered:
    """Classified events of one rank; times in ns of its clock."""

    spans: dict[int, list[Span]] = field(default_factory=dict)
    workers: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = field(default_factory=dict)
    kernels: list[tuple[int, int, str, Mapping[str, Any]]] = field(default_factory=list)
    computing: list[tuple[int, int]] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    start: int = -1
    end: int = -1
    num_invalid: int = 0
    """Number of events with invalid times, or that end before they begin."""


def gather(events: Iterable[Mapping[str, Any]]) -> Gathered:
    """Collect the events of interest."""
    found = Gathered()
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
        start, length = round(float(begins) * 1000), round(float(lasts) * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
    return (start, start + length) if 0 <= length < _FAR_NS and abs(start) < _FAR_NS else None


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
    backend, _, work = name.partition(":")
    if name.startswith(_STEP):
        number = name[len(_STEP) :]
        if number.isdigit():
            found.steps[int(number)] = (start, end)
    elif name.startswith(_OPTIMIZER_STEP):
        _add(found, event, OPTIMIZER, name, start, end)
    elif backend in _HOST_BACKENDS and kind_of(work) in KINDS:
        of_kind = found.workers.setdefault(kind_of(work), [])
        of_kind.append((start, end, event.get("args") or {}))
    elif work and kind_of(work) in KINDS:
        _add(found, event, NOTE, name, start, end)


def _of_kernel(found: Gathered, event: Mapping[str, Any], name: str, start: int, end: int) -> None:
    args = event.get("args") or {}
    if COLLECTIVE_NAME in args or name.lower().startswith(("nccl", "rccl")):
        found.kernels.append((start, end, name, args))
    else:
        found.computing.append((start, end))


_HANDLERS = {
    "cpu_op": _of_operator,
    "operator": _of_operator,
    "python_function": _of_python,
    "user_annotation": _of_annotation,
    "kernel": _of_kernel,
}


def _add(
    found: Gathered, event: Mapping[str, Any], span_type: int, name: str, start: int, end: int
) -> None:
    thread = event.get("tid")
    spans = found.spans.setdefault(thread if isinstance(thread, int) else NOT_KNOWN, [])
    spans.append((start, -end, span_type, name, event.get("args") or {}))


Op = tuple[int, int, str, int, int, Mapping[str, Any], int]
"""Number, parent's number, name, start, end, place, thread."""


def calls_of(found: Gathered) -> tuple[list[HostCall], dict[Any, HostCall], list[Op]]:
    """Return the calls in order of issue, the calls by the ids in kernels, and the operators."""
    calls: list[HostCall] = []
    by_id: dict[Any, HostCall] = {}
    ops: list[Op] = []
    for thread, spans in found.spans.items():
        for span, stack in _nested(spans):
            start, minus_end, span_type, name, args = span
            inside = next((each for each in reversed(stack) if isinstance(each[1], HostCall)), None)
            if span_type == OP:
                parent = next((each[1] for each in reversed(stack) if each[0][2] == OP), NOT_KNOWN)
                stack.append((span, len(ops)))
                ops.append((len(ops), parent, name, start, -minus_end, _place(stack), thread))
            elif span_type == C10D or (
                span_type == PARAMS and _is_call(args) and _is_taken(inside)
            ):
                call = HostCall(start, -minus_end, thread, name.removeprefix(_COLLECTIVES), args)
                call.described = args if span_type == PARAMS else {}
                call.place = _place(stack)
                around = next((each for each in reversed(stack) if each[0][2] == OP), None)
                call.op, call.op_id = (around[0][3], around[1]) if around else ("", NOT_KNOWN)
                calls.append(call)
                stack.append((span, call))
                by_id[args.get("External id")] = call
            else:
                if inside is not None:
                    by_id[args.get("External id")] = inside[1]
                    if span_type == PARAMS and _is_call(args):
                        inside[1].described = args
                stack.append((span, None))
    calls.sort(key=lambda call: call.start)
    by_id.pop(None, None)
    return calls, by_id, _renumbered(ops, calls)


def _renumbered(ops: list[Op], calls: list[HostCall]) -> list[Op]:
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
