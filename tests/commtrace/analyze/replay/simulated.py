"""Programs of ranks that are simulated, instruction by instruction: a second replay.

    programs = [[Step(), Work(10), Call("a", transfer=5), Work(3)], ...]      a list per rank
    simulated(programs)                                                      the run, as a trace

A call of a name is a collective of all ranks. It ends `transfer` after its last member has come; a
call that is not awaited at once returns after `issue`, and `Wait` awaits it. `Use` is the first
operator that uses the result of a call. Its data is ready when the last work before it ends, or
where `Ready` is. Times of instructions are in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, op, step, trace_of

MS = 1_000_000


@dataclass(frozen=True)
class Work:
    lasts: float
    op: str = ""


@dataclass(frozen=True)
class Call:
    name: str
    transfer: int
    kind: str = "all_reduce"
    num_bytes: int = 0
    issue: int | None = None
    """Time to issue it; None if the call blocks until it is complete."""
    line: int = 1


@dataclass(frozen=True)
class Wait:
    name: str


@dataclass(frozen=True)
class Ready:
    name: str


@dataclass(frozen=True)
class Use:
    name: str


@dataclass(frozen=True)
class Step:
    """Begin of the next step, and end of the one before."""


Program = Sequence[Any]


class _Rank:
    def __init__(self, rank: int, program: Program) -> None:
        self.rank, self.program = rank, program
        self.place = self.now = 0
        self.written = self.now
        self.ready: dict[str, int] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.steps: list[int] = []
        self.ops: list[Any] = []

    def run(self, arrived: dict[str, dict[int, int]], num_ranks: int) -> bool:
        """Go on until a call that others have not come to; return whether anything happened."""
        began = self.place
        while self.place < len(self.program):
            each = self.program[self.place]
            if isinstance(each, Step):
                self.steps.append(self.now)
            elif isinstance(each, Work):
                lasts = round(MS * each.lasts)
                if each.op:
                    self.ops.append(
                        op(rank=self.rank, id=len(self.ops), op=each.op, at=self.now,
                           duration_ns=lasts, level="local", module=f"layers.{each.op}")
                    )  # fmt: skip
                self.now += lasts
                self.written = self.now
            elif isinstance(each, Ready):
                self.ready[each.name] = self.now
            elif isinstance(each, Use):
                self.calls[each.name]["used"] = self.now
            else:
                of = arrived.setdefault(each.name, {})
                if isinstance(each, Call):
                    of.setdefault(self.rank, self.now)
                    known = self.calls.setdefault(
                        each.name,
                        {
                            "call": each,
                            "at": self.now,
                            "ready": self.ready.get(each.name, self.written),
                            "step": len(self.steps) - 1,
                        },
                    )
                    if each.issue is not None:
                        self.now += MS * each.issue
                        known["until"] = self.now
                        self.place += 1
                        continue
                if len(of) < num_ranks:
                    return self.place > began
                known = self.calls[each.name]
                known["complete"] = max(of.values()) + MS * known["call"].transfer
                if isinstance(each, Wait):
                    known["wait"] = self.now
                    self.now = max(self.now, known["complete"])
                    known["waited"] = self.now - known["wait"]
                else:
                    self.now = known["complete"]
                    known["until"] = self.now
            self.place += 1
        return self.place > began


def simulated(programs: Sequence[Program], **more: Any) -> Trace:
    """Return the run of some programs, one for each rank."""
    ranks = [_Rank(rank, program) for rank, program in enumerate(programs)]
    arrived: dict[str, dict[int, int]] = {}
    while any([each.run(arrived, len(ranks)) for each in ranks]):
        pass
    assert all(each.place == len(each.program) for each in ranks), "a deadlock"
    comm, steps, ops = [], [], []
    for each in ranks:
        for number, known in enumerate(each.calls.values()):
            comm.append(_row(each.rank, number, known))
        ends = [*each.steps[1:], each.now]
        steps += [
            step(each.rank, number, *span)
            for number, span in enumerate(zip(each.steps, ends, strict=True))
        ]
        ops += each.ops
    return trace_of(comm, num_ranks=len(ranks), steps=steps, ops=ops, **more)


def _row(rank: int, number: int, known: dict[str, Any]) -> Any:
    made: Call = known["call"]
    in_call = known["until"] - known["at"]
    complete = known.get("complete", -1 - START_NS)
    columns = {} if "used" not in known else {"result_used_ns": START_NS + known["used"]}
    if "wait" in known:
        columns |= {"wait_begin_ns": START_NS + known["wait"], "first_wait_ns": known["waited"]}
    return call(
        rank=rank, id=number, seq=number, kind=made.kind, at=known["at"], until=complete,
        call_ns=in_call, blocked_ns=known.get("waited", 0 if made.issue is not None else in_call),
        is_async=made.issue is not None, payload_bytes=made.num_bytes, wire_bytes=made.num_bytes,
        step=known["step"], source_file="train.py", source_line=made.line, thread=1,
        dtype="float32",
        data_ready_ns=START_NS + known["ready"], **columns,
    )  # fmt: skip


def step_ns(programs: Sequence[Program]) -> float:
    """Return the mean over ranks of the time of the median step of some programs, in ns."""
    trace = simulated(programs)
    of_steps: dict[int, list[int]] = {}
    table = trace.tables["steps"]
    for number, start, end in zip(table["step"], table["start_ns"], table["end_ns"], strict=True):
        of_steps.setdefault(number, []).append(end - start)
    means = sorted(sum(each) / len(each) for each in of_steps.values())
    middle = len(means) // 2
    return means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2
