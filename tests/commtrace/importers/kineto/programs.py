"""Programs that ran on several ranks and devices: what happened, and the traces of it in a layout.

    program = Program(seed=1, layout=LAYOUTS["2024"])
    program.write(folder)
    program.rows             # the truth: a row for each call of each communication kernel

Ranks compute on two streams, while tensor-parallel and data-parallel groups communicate on others,
from the main thread and the autograd engine's thread: in turn and at once, hidden behind
computation at their start, in their middle, at their end, or not at all. Members of a group begin a
kernel at times of their own and end it together, as with NCCL on a single host.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.commtrace.importers.kineto.layouts import (
    ANNOTATION,
    BASE_NS,
    DESCRIPTION,
    DTYPES,
    OPERATOR,
    Layout,
)
from tests.commtrace.importers.kineto.profiles import US, write_profiles
from tests.commtrace.importers.kineto.rank_traces import ENGINE, HOST_US, MAIN, Call, RankTrace, Run

UNKNOWN = "unknown"
COMPUTE, SECOND = 7, 13
STREAMS = {"tp": 20, "dp": 24, "world": 28, "pair": 32}
NAMED = {"world": "0", "tp": "1", "dp": "2"}
SLOT_US = 5000
PATTERNS: tuple[Sequence[tuple[float, float]], ...] = (
    (),
    ((-0.2, 0.3),),
    ((0.3, 0.6),),
    ((0.6, 1.2),),
    ((-0.1, 1.1),),
    ((-0.3, 0.2), (0.7, 1.3)),
    ((0.1, 0.2), (0.3, 0.45), (0.5, 0.9)),
)
"""Computation beside a communication kernel, as parts of the time from its start to its end."""

GEMM = "ampere_sgemm_128x64_tn"
ONE_SHOT = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, void*, int)"
MULTIMEM = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(void*)"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """The truth of a call; `group` is () and `payload_bytes` -1 if the trace does not have it."""

    rank: int
    start_ns: int
    end_ns: int
    kind: str
    group: tuple[int, ...]
    payload_bytes: int
    stream: int
    step: int
    splits: str = ""


@dataclass(frozen=True, slots=True)
class Busy:
    """The truth of a kernel of any sort."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    communicates: bool


class Program:
    """The truth, and its traces.

    Attributes:
        rows: A row for each call that a communication kernel ran.
        kernels: All kernels.
        traces: The trace of each rank.
    """

    def __init__(
        self, seed: int, layout: Layout, *, num_ranks: int = 4, world_size: int = 4,
        num_steps: int = 2,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.rows: list[Row] = []
        self.kernels: list[Busy] = []
        self._chance = random.Random(seed)
        self._ranks = range(num_ranks)
        every = range(world_size)
        self._groups = {
            "tp": [(rank, rank + 1) for rank in every[::2]],
            "dp": [tuple(every[first::2]) for first in range(2)],
            "world": [tuple(every)],
        }
        self.traces = [
            RankTrace(
                rank,
                groups={NAMED[a]: list(self._group(a, rank)) for a in NAMED},
                layout=layout,
                world=world_size,
            )
            for rank in self._ranks
        ]
        self._numbers = dict.fromkeys(NAMED.values(), 0)
        self._step = -1
        self._orphans()
        for step in range(num_steps):
            self._run_step(step)
        for trace in self.traces:
            trace.noise(num_steps * len(self._slots()) * SLOT_US)

    def write(self, folder: Path, **changed: Any) -> Path:
        """Write a file for each rank."""
        return write_profiles(folder, list(self.traces), **changed)

    def overlap(self, rank: int) -> dict[int, tuple[int, int]]:
        """The time of communication and of exposed communication of a rank, by step, in ns."""
        own = [each for each in self.kernels if each.rank == rank]
        found = {}
        for step in {each.step for each in own if each.communicates}:
            here = [each for each in own if each.step == step or not each.communicates]
            instants = sorted({t for each in here for t in (each.start_ns, each.end_ns)})
            total = exposed = 0
            for first, last in pairwise(instants):
                sorts = {e.communicates for e in here if e.start_ns <= first and last <= e.end_ns}
                total += (last - first) * (True in sorts)
                exposed += (last - first) * (sorts == {True})
            found[step] = total, exposed
        return found

    def _group(self, axis: str, rank: int) -> tuple[int, ...]:
        return next(ranks for ranks in self._groups[axis] if rank in ranks)

    def _slots(self) -> list[Callable[[float], None]]:
        described = [self._batched_transfers, self._batched_gathers]
        return [
            *[self._collectives] * 8,
            *[self._concurrent] * 3,
            self._barrier,
            self._pair,
            self._graph,
            self._custom,
            *(described if self.layout.described >= DESCRIPTION else []),
        ]

    def _run_step(self, step: int) -> None:
        slots = self._slots()
        self._chance.shuffle(slots)
        begin = step * len(slots) * SLOT_US
        self._step = step + 3
        category = OPERATOR if self.layout.is_annotated_as_operator else ANNOTATION
        for trace in self.traces:
            name = f"ProfilerStep#{self._step}"
            trace.span(name, category, begin, len(slots) * SLOT_US, MAIN)
        for number, slot in enumerate(slots):
            slot(begin + number * SLOT_US)

    # What happens in a slot

    def _collectives(self, begin: float) -> None:
        axis, kind = self._chance.choice(("tp", "dp")), self._chance.choice(KINDS)
        thread = self._chance.choice((MAIN, ENGINE))
        self._beside(begin, self._collective(begin, axis, kind, thread))

    def _concurrent(self, begin: float) -> None:
        """Two groups communicate at once, from two threads."""
        runs = self._collective(begin, "tp", self._chance.choice(KINDS[:3]), MAIN)
        self._collective(begin + 60, "dp", "all_reduce", ENGINE)
        self._beside(begin, runs)

    def _barrier(self, begin: float) -> None:
        self._collective(begin, "world", "barrier", MAIN)

    def _collective(self, begin: float, axis: str, kind: str, thread: int) -> dict[int, Run]:
        number = self._next_number(axis)
        dtype = self._chance.choice(("float32", "bfloat16"))
        elements = 48 * self._chance.randrange(1, 4000)
        issues = {rank: begin + self._between(200, 500) for rank in self._ranks}
        runs = self._runs(axis, STREAMS[axis], issues)
        for trace in self.traces:
            rank, ranks = trace.rank, self._group(axis, trace.rank)
            sent, received, splits = self._message(kind, elements, rank, len(ranks))
            call = Call(kind, NAMED[axis], dtype, sent, received, thread, issues[rank], number,
                        splits=splits)  # fmt: skip
            if thread == ENGINE:
                trace.span("autograd::engine::evaluate_function: X", OPERATOR, call.issue_us - 2,
                           HOST_US + 4, ENGINE)  # fmt: skip
            trace.collective(call, runs[rank])
            self._saw(rank, [call], ranks, runs[rank])
        return runs

    def _pair(self, begin: float) -> None:
        """Even ranks send to the next ranks, on a stream of each pair."""
        issues = {rank: begin + self._between(200, 500) for rank in self._ranks}
        runs = self._runs("tp", STREAMS["pair"], issues)
        for trace in self.traces:
            call = self._transfer(trace.rank, trace.rank % 2 == 0, 960, issues[trace.rank])
            trace.collective(call, runs[trace.rank])
            ranks = self._group("tp", trace.rank) if self.layout.has_groups else ()
            self._saw(trace.rank, [call], ranks, runs[trace.rank])

    def _batched_transfers(self, begin: float) -> None:
        """Each rank sends to the other rank of its pair and receives from it, in one kernel."""
        issues = {rank: begin + self._between(200, 500) for rank in self._ranks}
        later = {rank: issue + 120 for rank, issue in issues.items()}
        runs = self._runs("tp", STREAMS["tp"], later)
        for trace in self.traces:
            rank = trace.rank
            calls = [self._transfer(rank, True, 480, issues[rank])]
            calls += [self._transfer(rank, False, 480, issues[rank] + HOST_US + 1)]
            trace.batch(calls, runs[rank])
            self._saw(rank, calls, self._group("tp", rank), runs[rank])

    def _batched_gathers(self, begin: float) -> None:
        issues = {rank: begin + self._between(200, 500) for rank in self._ranks}
        later = {rank: issue + 120 for rank, issue in issues.items()}
        runs = self._runs("dp", STREAMS["dp"], later)
        numbers = [self._next_number("dp") for _ in range(2)]
        for trace in self.traces:
            rank, ranks = trace.rank, self._group("dp", trace.rank)
            calls = [
                Call("all_gather", NAMED["dp"], "float32", 64, 64 * len(ranks), MAIN,
                     issues[rank] + place * (HOST_US + 1), number)
                for place, number in enumerate(numbers)
            ]  # fmt: skip
            trace.batch(calls, runs[rank])
            self._saw(rank, calls, ranks, runs[rank])

    def _graph(self, begin: float) -> None:
        """A graph of two collectives, with computation between them."""
        issues = {rank: begin + self._between(200, 400) for rank in self._ranks}
        first = self._runs("tp", STREAMS["tp"], issues)
        second = self._runs("tp", STREAMS["tp"], {rank: begin + 2200 for rank in self._ranks})
        name = self.layout.kernel_name("all_reduce", "bfloat16")
        for trace in self.traces:
            rank = trace.rank
            between = self._quantized(first[rank].end_us + 5)
            compute = Run(COMPUTE, between, between + self._between(20, 150))
            trace.graph(issues[rank], [(name, first[rank]), (GEMM, compute), (name, second[rank])])
            self._ran(rank, compute, communicates=False)
            for run in (first[rank], second[rank]):
                self._saw_kernel(rank, self._kind_in_name("all_reduce"), "tp", run)

    def _custom(self, begin: float) -> None:
        """All-reduces of other libraries than NCCL."""
        for place, (operator, name) in enumerate(
            (("_C_custom_ar::all_reduce", ONE_SHOT), ("symm_mem::multimem_all_reduce_", MULTIMEM))
        ):
            issues = {rank: begin + 2200 * place + self._between(200, 400) for rank in self._ranks}
            runs = self._runs("tp", SECOND, issues)
            for trace in self.traces:
                trace.launched_by(operator, name, issues[trace.rank], runs[trace.rank])
                self._saw_kernel(trace.rank, "all_reduce", "tp", runs[trace.rank])

    def _orphans(self) -> None:
        """A kernel that was launched before the window."""
        runs = self._runs("world", STREAMS["world"], dict.fromkeys(self._ranks, -5000.0))
        name = self.layout.kernel_name("all_reduce", "float32")
        for trace in self.traces:
            trace.orphan(name, runs[trace.rank])
            self._saw_kernel(
                trace.rank, self._kind_in_name("all_reduce"), "world", runs[trace.rank]
            )

    # Times and sizes

    def _quantized(self, us: float) -> float:
        return round(us * US / self.layout.step_ns) * self.layout.step_ns / US

    def _between(self, least: float, most: float) -> float:
        return self._quantized(self._chance.uniform(least, most))

    def _runs(self, axis: str, stream: int, issues: dict[int, float]) -> dict[int, Run]:
        """Runs of the members' kernels, which end within a few µs of each other."""
        starts = {rank: self._quantized(at + self._between(50, 450)) for rank, at in issues.items()}
        runs = {}
        for ranks in self._groups[axis]:
            here = [rank for rank in ranks if rank in self._ranks]
            end = max([starts[rank] for rank in here], default=0) + self._between(100, 1200)
            for rank in here:
                runs[rank] = Run(stream, starts[rank], self._quantized(end + self._between(0, 5)))
        return runs

    def _next_number(self, axis: str) -> int:
        self._numbers[NAMED[axis]] += 1
        return self._numbers[NAMED[axis]]

    def _message(
        self, kind: str, elements: int, rank: int, size: int
    ) -> tuple[int, int, tuple[Sequence[int], Sequence[int]]]:
        """Elements sent and received, and how an all-to-all splits them."""
        if kind == "all_gather":
            return elements, elements * size, ((), ())
        if kind == "reduce_scatter":
            return elements * size, elements, ((), ())
        if kind == "all_to_all":
            splits = [16 * ((rank + place) % 3 + 1) for place in range(size)]
            return sum(splits), sum(splits), (splits, splits[::-1])
        return elements, elements, ((), ())

    def _transfer(self, rank: int, is_send: bool, elements: int, issue_us: float) -> Call:
        return Call("send" if is_send else "recv", NAMED["tp"], "float32", elements, elements, MAIN,
                    issue_us, 0, peer=rank ^ 1)  # fmt: skip

    def _beside(self, begin: float, runs: dict[int, Run]) -> None:
        """Compute beside kernels."""
        for trace in self.traces:
            run, num_launched = runs[trace.rank], 0
            length = run.end_us - run.start_us
            for stream in (COMPUTE, SECOND):
                free = begin + 200
                for first, last in self._chance.choice(PATTERNS):
                    start = self._quantized(max(free, run.start_us + first * length))
                    end = self._quantized(max(start, run.start_us + last * length))
                    if end > start:
                        beside = Run(stream, start, end)
                        trace.launched_by("aten::mm", GEMM, begin + 16 * num_launched, beside)
                        self._ran(trace.rank, beside, communicates=False)
                        free, num_launched = end, num_launched + 1

    # The truth

    def _ran(self, rank: int, run: Run, *, communicates: bool) -> None:
        start, end = (BASE_NS + round(us * US) for us in (run.start_us, run.end_us))
        self.kernels.append(Busy(rank, self._step, start, end, communicates))

    def _saw(self, rank: int, calls: Sequence[Call], ranks: tuple[int, ...], run: Run) -> None:
        """Remember calls that a single kernel ran."""
        self._ran(rank, run, communicates=True)
        for call in calls:
            kind, payload = call.kind, self._payload(call)
            if kind == "barrier" and not self.layout.has_operators:
                kind, payload = "all_reduce", 1  # all that the trace shows of it
            has_splits = self.layout.described >= DESCRIPTION
            splits = [DTYPES[call.dtype][-1] * part for part in call.splits[0]] * has_splits
            self._row(rank, kind, ranks, payload, run, ",".join(map(str, splits)))

    def _saw_kernel(self, rank: int, kind: str, axis: str, run: Run) -> None:
        """Remember a kernel without a call; its group shows only where no group is stated."""
        self._ran(rank, run, communicates=True)
        ranks = () if self.layout.has_groups else self._group(axis, rank)
        self._row(rank, kind, ranks, -1, run)

    def _row(
        self, rank: int, kind: str, ranks: tuple[int, ...], payload: int, run: Run, splits: str = ""
    ) -> None:
        start, end = (BASE_NS + round(us * US) for us in (run.start_us, run.end_us))
        self.rows.append(
            Row(rank, start, end, kind, ranks, payload, run.stream, self._step, splits)
        )

    def _payload(self, call: Call) -> int:
        if call.kind == "barrier":
            return 0
        counts_received = call.kind in ("all_gather", "recv")
        return (call.received if counts_received else call.sent) * DTYPES[call.dtype][-1]

    def _kind_in_name(self, kind: str) -> str:
        return UNKNOWN if "Generic" in self.layout.kernel_name(kind, "float32") else kind
