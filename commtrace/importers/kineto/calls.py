"""Communication calls of a profiled rank, and the operators around them.

Each thread's nested spans are walked. A call is counted once, however many events describe it:

    c10d::allreduce_            the operator: shapes, flags, roots
      record_param_comms        its description: group, number, sizes (NCCL and its like)
        nccl:all_reduce         its annotation: sizes, in traces without a description
          cudaLaunchKernel      the launch of its kernel

A dispatch mode or a tensor subclass may call the operator that it was called for once more:

    c10d::allreduce_
      PythonDispatchMode
        c10d::allreduce_        the same call

NCCL executes some calls by copies, such as calls of a single rank: the copies are then their work.
So are all kernels that a call launches, whatever their names, except kernels of operators inside
of it.

The calls of a batch (`batch_isend_irecv`, or coalesced collectives) launch nothing. A single kernel
runs all of them, launched by the annotation `nccl:coalesced` that follows them. Used by
`rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.device_kernels import Kernel, is_check
from commtrace.importers.intervals import NOTHING, Intervals
from commtrace.importers.kineto.spans import (
    BACKWARD,
    C10D,
    COLLECTIVE_NAME,
    COLLECTIVES,
    DISPATCH_MODE,
    FRAME,
    LAUNCH,
    MODULE,
    NOTE,
    OP,
    OPTIMIZER,
    PARAMS,
    PYTHON,
    CommunicationWork,
    Gathered,
    Span,
    id_of,
)
from commtrace.schema import COMPUTE
from commtrace.torch_names import COALESCED, NO_COMMUNICATION, NOT_KNOWN, TRANSFERS, kind_of

Stack = list[tuple[Span, Any]]
"""Enclosing spans, outermost first, with the call or the number of the operator that each is."""

Op = tuple[int, int, str, int, int, Mapping[str, Any], int]
"""Number, parent's number, name, start, end, place, thread."""


@dataclass(slots=True)
class HostCall:
    """A communication call on the host; `work` is the period in which gloo or a device ran it.

    Its arguments are `args` in the operator, `described` in the description, `noted` in the
    annotation, and `worker_args` in gloo's work. `parts` are the calls of a batch, which is not a
    call itself.
    """

    start: int
    end: int
    thread: int
    name: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)
    noted: Mapping[str, Any] | None = None
    place: Mapping[str, Any] = field(default_factory=dict)
    op: str = ""
    op_id: int = NOT_KNOWN
    work: tuple[int, int] | None = None
    worker_args: Mapping[str, Any] = field(default_factory=dict)
    kernel_work: CommunicationWork | None = None
    is_launched: bool = False
    parts: Sequence[HostCall] = ()

    @property
    def kind(self) -> str:
        """Kind of the call by its description, its operator, or its kernel."""
        kind = kind_of(str(self.described.get(COLLECTIVE_NAME) or self.name))
        return kind if kind in KINDS or self.kernel is None else self.kernel.kind

    @property
    def kernel(self) -> Kernel | None:
        """Facts about the last of the call's kernels, as its name states them."""
        return self.kernel_work.kernel if self.kernel_work is not None else None


@dataclass(frozen=True, slots=True)
class Calls:
    """Communication calls of a rank, and the operators around them.

    Attributes:
        issued: The calls that the host shows, in order of issue.
        by_id: These calls, and batches of them, by the ids of the events that describe them.
        launched: The call or batch that launched a kernel, by correlation. If none did, a call that
            is not among `issued`, with the place of the launch.
        executing: Correlations of copies and of kernels without a known name that executed a
            call; `launched` has them too.
        ops: All operators.
    """

    issued: list[HostCall]
    by_id: Mapping[Any, HostCall]
    launched: Mapping[int, HostCall]
    executing: Set[int]
    ops: list[Op]


def calls_of(found: Gathered) -> Calls:
    """Return the calls that the host shows, by all that kernels may refer to."""
    copies = found.copies()
    named = {work.correlation for work in found.kernels}
    walk = _Walk({id_of(work.args) for work in found.kernels} - {None}, copies, named)
    spans = {thread: list(spans) for thread, spans in found.spans.items()}
    for correlation in (named | copies) & found.launches.keys() | _launched_in_calls(found):
        thread, start = found.launches[correlation]
        launch = (start, -start, LAUNCH, "", {"correlation": correlation})
        spans.setdefault(thread, []).append(launch)
    for thread, of_thread in spans.items():
        walk.thread(thread, of_thread)
    return walk.result()


def _launched_in_calls(found: Gathered) -> set[int]:
    """Return the correlations of kernels without a known name that were launched in a call."""
    calls = {
        thread: Intervals((span[0], -span[1]) for span in spans if span[2] in _DESCRIBING)
        for thread, spans in found.spans.items()
    }
    launches = (
        (work.correlation, found.launches[work.correlation])
        for work in found.other_work
        if work.correlation in found.launches
        and work.category == COMPUTE
        and not is_check(work.name)
    )
    return {
        correlation
        for correlation, (thread, start) in launches
        if calls.get(thread, NOTHING).covers(start)
    }


class _Walk:
    """Walks spans, and keeps what they show.

    `of_kernels` are the ids that kernels refer to, `copies` the correlations of copies, and `named`
    the correlations of kernels that communicate by their names.
    """

    def __init__(self, of_kernels: set[Any], copies: Set[int], named: Set[int]) -> None:
        self._of_kernels, self._copies, self._named = of_kernels, copies, named
        self._copied: dict[int, HostCall] = {}
        self._unnamed: set[int] = set()
        self._calls: list[HostCall] = []
        self._by_id: dict[Any, HostCall] = {}
        self._launched: dict[int, HostCall] = {}
        self._ops: list[Op] = []
        self._thread = NOT_KNOWN
        self._recent: list[HostCall] = []
        """Calls of the thread since its last batch."""

    def thread(self, thread: int, spans: list[Span]) -> None:
        """Walk the spans of a thread."""
        self._thread, self._recent = thread, []
        for span, stack in _nested(spans):
            around = next((each[1] for each in reversed(stack) if type(each[1]) is HostCall), None)
            if span[2] == OP:
                self._operator(span, stack)
            elif span[2] == LAUNCH:
                self._launch(span, stack, around)
            elif span[2] in _DESCRIBING:
                stack.append((span, self._described(span, stack, around)))
            else:
                stack.append((span, None))

    def result(self) -> Calls:
        """Return the calls and operators found, in order of issue."""
        self._calls.sort(key=lambda call: call.start)
        self._by_id.pop(None, None)
        # A call with a kernel of its own may also copy, for instance a list's tensors into one.
        copied = {each: call for each, call in self._copied.items() if not call.is_launched}
        self._launched.update(copied)
        every = {id(call): call for call in (*self._calls, *self._launched.values())}
        ops = _renumbered(self._ops, every.values())
        return Calls(self._calls, self._by_id, self._launched, copied.keys() | self._unnamed, ops)

    def _operator(self, span: Span, stack: Stack) -> None:
        again = _called_again(span, stack)
        if again is not None and stack[-1][0][3] == DISPATCH_MODE:
            stack.append((span, again))
            return
        number = len(self._ops)
        parent = next((each[1] for each in reversed(stack) if each[0][2] == OP), NOT_KNOWN)
        stack.append((span, number))
        start, minus_end, _, name, _ = span
        op = (number, parent, name, start, -minus_end, _place(stack), self._thread)
        self._ops.append(op)

    def _launch(self, span: Span, stack: Stack, around: HostCall | None) -> None:
        correlation = span[4]["correlation"]
        if correlation in self._copies:
            if around is not None and any(each[2] == NOTE for each in _spans(stack)):
                self._copied[correlation] = around
            return
        if correlation not in self._named:
            types = (span[2] for span in reversed([*_spans(stack)]) if span[2] in _RUNNING)
            if around is None or next(types, OP) == OP:
                return
            self._unnamed.add(correlation)
        if around is None:
            around = _located(HostCall(span[0], span[0], self._thread), stack)
        around.is_launched = True
        self._launched[correlation] = around

    def _described(self, span: Span, stack: Stack, around: HostCall | None) -> HostCall | None:
        """Return the call that a span begins, or None if it describes the call around it."""
        span_type, args = span[2], span[4]
        own = None
        if _closes_batch(span):
            parts, self._recent = _batch(self._recent), []
            if not parts:
                return None
            own = replace(self._call(span, stack), parts=parts)
        elif span_type == C10D or (around is None and (span_type == NOTE or _is_call(span))):
            own = None if _called_again(span, stack) is not None else self._issued(span, stack)
        elif _is_call(span) and around is not None and around.described:
            # Inside of a description, another one describes an implementation: a barrier's
            # all-reduce. After it, it is a second call of the operator.
            own = None if any(map(_is_call, _spans(stack))) else self._issued(span, stack)
        target = own or around
        if target is None:
            return None
        if _is_call(span) and not target.described:
            target.described = args
        elif span_type == NOTE:
            target.noted = args if target.noted is None else {**args, **target.noted}
        number = id_of(args)
        self._by_id[number] = target
        target.is_launched |= number in self._of_kernels
        return own

    def _issued(self, span: Span, stack: Stack) -> HostCall:
        call = self._call(span, stack)
        self._calls.append(call)
        self._recent.append(call)
        return call

    def _call(self, span: Span, stack: Stack) -> HostCall:
        start, minus_end, span_type, name, args = span
        own = args if span_type != NOTE else {}
        call = HostCall(start, -minus_end, self._thread, name.removeprefix(COLLECTIVES), own)
        return _located(call, stack)


_DESCRIBING = frozenset({C10D, PARAMS, NOTE})
_RUNNING = _DESCRIBING | {OP}


def _spans(stack: Stack) -> Iterator[Span]:
    return (span for span, _ in stack)


def _called_again(span: Span, stack: Stack) -> Any:
    """Return the known facts of the operator that a span continues below Python, or None."""
    if len(stack) < 2 or stack[-1][0][2] != PYTHON:
        return None
    above, known = stack[-2]
    return known if above[2:4] == span[2:4] else None


def _is_call(span: Span) -> bool:
    """Return whether a span is the description of a call."""
    kind = _described_kind(span)
    return bool(kind) and kind not in NO_COMMUNICATION | _BATCH_ENDS


def _closes_batch(span: Span) -> bool:
    kind = kind_of(span[3]) if span[2] == NOTE else _described_kind(span)
    return kind in _BATCH_ENDS


_BATCH_ENDS = COALESCED | {"batch_op_issue"}


def _described_kind(span: Span) -> str:
    return kind_of(str(span[4].get(COLLECTIVE_NAME) or "")) if span[2] == PARAMS else ""


def _batch(calls: Sequence[HostCall]) -> list[HostCall]:
    """Return the last calls as far as they launched nothing and can form a batch.

    These are transfers of a group, or collectives of the same kind. All or none have annotations of
    their own, depending on the release.
    """
    batch: list[HostCall] = []
    for call in reversed(calls):
        if call.is_launched or (batch and _sort(call) != _sort(batch[-1])):
            break
        batch.append(call)
    return batch[::-1]


def _sort(call: HostCall) -> tuple[str, str, bool]:
    kind = "" if call.kind in TRANSFERS else call.kind
    return str(call.described.get("Process Group Name")), kind, call.noted is None


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


def _nested(spans: list[Span]) -> Iterator[tuple[Span, Stack]]:
    """Yield each span with the spans enclosing it; consumers append to the stack."""
    stack: Stack = []
    # Without the arguments, which cannot be compared.
    for span in sorted(spans, key=lambda each: each[:3]):
        while stack and -stack[-1][0][1] <= span[0]:
            stack.pop()
        yield span, stack


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
