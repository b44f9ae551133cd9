"""The trace of a rank of a program, event by event, in the layout of a period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.commtrace.importers.kineto.layouts import (
    ANNOTATION,
    ARGUMENTS,
    COPY,
    DESCRIPTION,
    DTYPES,
    KERNEL,
    LISTS,
    NAMES,
    NUMBERED,
    OPERATOR,
    RUNTIME,
)
from tests.commtrace.importers.kineto.profiles import Profile

MAIN, ENGINE = 24572, 24610
HOST_US = 40
"""Duration of a call on the host."""


@dataclass(frozen=True, slots=True)
class Call:
    """A communication call of a rank, on the host; its tensors have one dimension."""

    kind: str
    group: str
    dtype: str
    sent: int
    received: int
    thread: int
    issue_us: float
    number: int
    peer: int = -1
    splits: tuple[Sequence[int], Sequence[int]] = ((), ())


@dataclass(frozen=True, slots=True)
class Run:
    """The period in which a device ran a kernel, in µs."""

    stream: int
    start_us: float
    end_us: float


class RankTrace(Profile):
    """Events of a rank."""

    _correlation = 40_000

    def collective(self, call: Call, run: Run) -> str:
        """Add a call with its kernel; return the kernel's name."""
        name = self.layout.kernel_name(call.kind, call.dtype)
        ids = self._host(call)
        correlation = self._launch(call.issue_us + 12, call.thread, self.layout.launch)
        self._kernel(name, run, correlation, ids[self.layout.links or "description"], ids["copied"])
        return name

    def batch(self, calls: Sequence[Call], run: Run) -> str:
        """Add calls that a single kernel runs, launched as the batch is closed."""
        name = self.layout.kernel_name(calls[0].kind, calls[0].dtype)
        for call in calls:
            is_noted = call.peer < 0 or self.layout.annotates_batches
            self._host(call, is_noted=is_noted)
        end, annotation = calls[-1].issue_us + HOST_US + 5, self.next_id()
        self.span("nccl:coalesced", ANNOTATION, end, 20, MAIN, **{"External id": annotation})
        correlation = self._launch(end + 6, MAIN, self.layout.launch)
        self._kernel(name, run, correlation, annotation)
        return name

    def launched_by(self, operator: str, name: str, at: float, run: Run) -> None:
        """Add an operator and the kernel that it launches."""
        number = self.next_id()
        self.span(operator, OPERATOR, at, 14, MAIN, **{"External id": number})
        correlation = self._launch(at + 4, MAIN, "cudaLaunchKernel")
        self._kernel(name, run, correlation, number)

    def graph(self, at: float, kernels: Sequence[tuple[str, Run]]) -> None:
        """Add the launch of a graph of several kernels."""
        runtime = "hipGraphLaunch" if "hip" in self.layout.launch else "cudaGraphLaunch"
        correlation = self._launch(at, MAIN, runtime)
        for name, run in kernels:
            self._kernel(name, run, correlation, graph=True)

    def orphan(self, name: str, run: Run) -> None:
        """Add a kernel whose launch the trace lacks."""
        self._kernel(name, run, self._next_correlation())

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, at: float, thread: int, runtime: str) -> int:
        correlation = self._next_correlation()
        self.span(runtime, RUNTIME, at, 4, thread, cbid=211, correlation=correlation)
        arrow = {"id": correlation, "pid": 0, "tid": thread, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", **arrow, "ts": self.events[-1]["ts"]})
        return correlation

    def _kernel(
        self,
        name: str,
        run: Run,
        correlation: int,
        external: int = 0,
        copied: dict[str, Any] | None = None,
        *,
        graph: bool = False,
    ) -> None:
        layout = self.layout
        ids: dict[str, Any] = {}
        if layout.links == "correlation":
            ids["External id"] = correlation
        elif layout.links and external:
            ids["External id"] = external
        if layout.has_device_arguments:
            ids |= {"device": 0, "context": 1, "stream": run.stream, "correlation": correlation}
        elif layout.has_correlation:
            ids |= {"device": 0, "correlation": correlation}
        if graph:
            ids |= {"graph id": 3, "graph node id": self.next_id()}
        length = run.end_us - run.start_us
        self.span(name, KERNEL, run.start_us, length, run.stream, **ids, **(copied or {}))

    def _host(self, call: Call, *, is_noted: bool = True) -> dict[str, Any]:
        """Add a call's events on the host; return their ids, and the fields that its kernel has."""
        layout, names, at = self.layout, NAMES[call.kind], call.issue_us
        operator, description, annotation = (self.next_id() for _ in range(3))
        described = self._described(call) if layout.described >= DESCRIPTION else {}
        shapes = self._shapes(call)
        if layout.has_operators:
            given = shapes if layout.described == ARGUMENTS else {}
            self.span(
                f"c10d::{names.operator}", OPERATOR, at, HOST_US, call.thread,
                **{"External id": operator, **given},
            )  # fmt: skip
        bare = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]}
        given = bare if layout.described == ARGUMENTS else described
        self._description(at + 4, 32, call.thread, {"External id": description, **given})
        copied = described
        if call.kind == "barrier" and layout.nests_barrier:
            description = self.next_id()
            inner = {**described, "Collective name": "allreduce", "In msg nelems": 1} | {
                "Out msg nelems": 1, "dtype": "Byte",
            }  # fmt: skip
            copied = inner if described else {}
            given = bare if layout.described == ARGUMENTS else copied
            self._description(at + 6, 28, call.thread, {"External id": description, **given})
        if is_noted:
            self._note(call, annotation)
        on_kernel = {key: copied[key] for key in _COPIED if key in copied}
        return {
            "description": description, "annotation": annotation, "correlation": 0,
            "copied": on_kernel if layout.links == "description" else {},
        }  # fmt: skip

    def _note(self, call: Call, number: int) -> None:
        layout, name = self.layout, f"nccl:{NAMES[call.kind].annotation}"
        if call.peer >= 0:
            arrow = "->" if call.kind == "send" else "<-"
            name += f" {self.rank % 2}{arrow}{1 - self.rank % 2}"
        into = {} if layout.described >= DESCRIPTION else self._noted(call)
        category = OPERATOR if layout.is_annotated_as_operator else ANNOTATION
        at = call.issue_us + 8
        self.span(name, category, at, 24, call.thread, **{"External id": number, **into})

    def _description(self, at: float, length: float, thread: int, args: dict[str, Any]) -> None:
        self.span("record_param_comms", OPERATOR, at, length, thread, **args)

    def _described(self, call: Call) -> dict[str, Any]:
        is_barrier = call.kind == "barrier"
        peer = {"send": {"Dst Rank": call.peer}, "recv": {"Src Rank": call.peer}}
        seq = call.number if self.layout.described == NUMBERED else None
        return self.described(
            NAMES[call.kind].description, call.group, seq,
            **{
                "dtype": "Byte" if is_barrier else DTYPES[call.dtype][1],
                "In msg nelems": 0 if is_barrier else call.sent,
                "Out msg nelems": 0 if is_barrier else call.received,
                "In split size": str(list(call.splits[0])),
                "Out split size": str(list(call.splits[1])),
                **peer.get(call.kind, {}),
            },
        )  # fmt: skip

    def _shapes(self, call: Call) -> dict[str, Any]:
        """The arguments of the operator, which lack the shapes of lists."""
        if NAMES[call.kind].operator in LISTS:
            return {"Input Dims": [[], [], []], "Input type": ["TensorList", "", "Scalar"]}
        dtype = DTYPES[call.dtype][0]
        return {
            "Input Dims": [[call.received], [call.sent], [], []],
            "Input type": [dtype, dtype, "", "Scalar"],
        }

    def _noted(self, call: Call) -> dict[str, Any]:
        """The shapes of the annotation, which are the shapes of the tensors sent."""
        sent = {"barrier": 1, "recv": call.received}.get(call.kind, call.sent)
        dtype = DTYPES["uint8" if call.kind == "barrier" else call.dtype][0]
        return {"Input Dims": [[sent]], "Input type": [dtype]}

    def noise(self, end_us: float) -> None:
        """Add events that an importer must pass over."""
        for number, at in enumerate(range(0, int(end_us), 900)):
            self.span("Memcpy HtoD (Pinned -> Device)", COPY, at, 300, 22, bytes=832)
            self.span("aten::add_", OPERATOR, at, 2, MAIN + 1, **{"External id": 900_000 + number})
            self.span("nccl:all_reduce", "gpu_user_annotation", at, 300, 20)
        other = {"cat": "Trace", "ts": 0, "dur": 9, "pid": "Spans", "tid": "PyTorch Profiler"}
        self.events += [
            {"ph": "M", "name": "process_name", "ts": 0, "pid": 100, "args": {"name": "python3"}},
            {"ph": "X", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}, **other},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9, "s": "g"},
        ]


_COPIED = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size",
    "Out split size", "Process Group Name", "Process Group Description", "Process Group Ranks",
    "Dst Rank", "Src Rank",
)  # fmt: skip
"""Fields of a description that a kernel has, too; neither `Seq` nor `Rank` are among them."""
