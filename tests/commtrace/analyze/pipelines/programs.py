"""Runs of pipelines with known times: `Program(...).trace()`, computed action by action.

A rank runs its actions in order. After an action whose output goes to another rank, it may do
something else before it sends; before an action whose input comes from another rank, it may issue
its receive late. Times are in ns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from commtrace.analyze import Frames, load
from commtrace.event import ActionRow
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, group, rank_row, step, trace_of

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "backward_input", "backward_weight"
MS = 1_000_000


class Act(NamedTuple):
    """An action: stage, micro-batch and kind."""

    stage: int
    micro_batch: int
    kind: str


Orders = dict[int, list[Act]]
"""Actions of each rank, in order."""


def gpipe(num_ranks: int, num: int) -> Orders:
    return {
        rank: [
            Act(rank, each, kind)
            for kind in (FORWARD, BACKWARD)
            for each in range(num)
        ]
        for rank in range(num_ranks)
    }  # fmt: skip


def one_f_one_b(num_ranks: int, num: int) -> Orders:
    orders: Orders = {}
    for rank in range(num_ranks):
        ahead = min(num_ranks - rank, num)
        own = [Act(rank, each, FORWARD) for each in range(ahead)]
        for each in range(num):
            own.append(Act(rank, each, BACKWARD))
            if ahead + each < num:
                own.append(Act(rank, ahead + each, FORWARD))
        orders[rank] = own
    return orders


def zero_bubble(num_ranks: int, num: int) -> Orders:
    """1F1B with split backward passes, whose passes of weights come one action later."""
    orders: Orders = {}
    for rank, every in one_f_one_b(num_ranks, num).items():
        own: list[Act] = []
        waiting: list[Act] = []
        for each in every:
            if each.kind == FORWARD:
                own.append(each)
                continue
            own += [*waiting, each._replace(kind=INPUT)]
            waiting = [each._replace(kind=WEIGHT)]
        orders[rank] = [*own, *waiting]
    return orders


def any_order(seed: int, num_ranks: int, num_stages: int, num: int) -> Orders:
    """A random order of actions in which each comes after what it needs."""
    chance = random.Random(seed)
    acts = [
        Act(stage, each, kind)
        for stage in range(num_stages)
        for each in range(num)
        for kind in _kinds(chance)
    ]
    orders: Orders = {rank: [] for rank in range(num_ranks)}
    done: set[Act] = set()
    while acts:
        ready = [each for each in acts if all(need in done for need in needs(each, acts, done))]
        each = chance.choice(ready)
        acts.remove(each)
        done.add(each)
        orders[each.stage % num_ranks].append(each)
    return {rank: own for rank, own in orders.items() if own}


def _kinds(chance: random.Random) -> tuple[str, ...]:
    return chance.choice(((FORWARD, BACKWARD), (FORWARD, INPUT, WEIGHT)))


def needs(act: Act, *among: Iterable[Act]) -> list[Act]:
    """The actions whose output an action needs, of those that there are."""
    stage, number, kind = act
    every = {each for some in among for each in some}
    wanted = {
        FORWARD: [Act(stage - 1, number, FORWARD)],
        WEIGHT: [Act(stage, number, INPUT)],
    }.get(
        kind,
        [
            Act(stage, number, FORWARD),
            *(Act(stage + 1, number, each) for each in (BACKWARD, INPUT)),
        ],
    )
    return [each for each in wanted if each in every]


TimeOf = Callable[[Act], int]


def nothing(_: Act) -> int:
    return 0


def equal(act: Act) -> int:
    return {FORWARD: 10, BACKWARD: 20, INPUT: 12, WEIGHT: 8}[act.kind] * MS


@dataclass(frozen=True, eq=False)
class Program:
    """A pipeline.

    Attributes:
        time: Duration of each action.
        send_late: Time from the end of an action to the send of its output.
        receive_late: Time for which the receive of an action's input is issued late.
        transfer: Time from a send to the end of its receive.
        ranks: Number of each rank in the run; by default as in `orders`.
    """

    orders: Orders
    time: TimeOf = equal
    send_late: TimeOf = nothing
    receive_late: TimeOf = nothing
    transfer: int = 0
    ranks: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def rank_of(self) -> dict[Act, int]:
        return {each: rank for rank, own in self.orders.items() for each in own}

    @cached_property
    def previous(self) -> dict[Act, Act]:
        pairs = [pair for own in self.orders.values() for pair in pairwise(own)]
        return {second: first for first, second in pairs}

    @cached_property
    def times(self) -> dict[Act, tuple[int, int, int, int]]:
        """Times of each action: of the issue of its receive, its begin, its end, and its send."""
        found: dict[Act, tuple[int, int, int, int]] = {}
        left = {rank: list(own) for rank, own in self.orders.items()}
        while any(left.values()):
            for own in left.values():
                while own and all(each in found for each in self._awaited(own[0])):
                    act = own.pop(0)
                    found[act] = self._timed(act, found)
        return found

    def _awaited(self, act: Act) -> list[Act]:
        before = self.previous.get(act)
        return [*needs(act, self.rank_of), *([] if before is None else [before])]

    @cached_property
    def receivers(self) -> dict[Act, list[Act]]:
        """The actions of other ranks that need the output of each action."""
        found: dict[Act, list[Act]] = {act: [] for act in self.rank_of}
        for act in self.rank_of:
            source = self.source(act)
            if source is not None:
                found[source].append(act)
        return found

    def source(self, act: Act) -> Act | None:
        """The action of another rank whose output an action needs."""
        sources = [
            each for each in needs(act, self.rank_of) if self.rank_of[each] != self.rank_of[act]
        ]
        return sources[0] if sources else None

    def _timed(
        self, act: Act, found: dict[Act, tuple[int, int, int, int]]
    ) -> tuple[int, int, int, int]:
        before, source = self.previous.get(act), self.source(act)
        free = 0 if before is None else found[before][3]
        issued = begin = free
        if source is not None:
            issued = free + self.receive_late(act)
            begin = max(issued, found[source][3] + self.transfer)
        end = begin + self.time(act)
        return issued, begin, end, end + (self.send_late(act) if self.receivers[act] else 0)

    @property
    def length(self) -> int:
        return max(end for _, _, end, _ in self.times.values())

    def idle(self) -> dict[int, int]:
        """Idle time of each rank, from its length and the time of its actions."""
        return {
            rank: self.length - sum(self.time(each) for each in own)
            for rank, own in self.orders.items()
        }

    def rows(self, at: int = 0, number: int = 0) -> tuple[list[Any], list[Any]]:
        """Rows of tables `pipeline_actions` and `comm` of a round that begins at a time."""
        acts, calls = [], []
        counts: dict[int, int] = {}
        for act, (issued, begin, end, sent) in self.times.items():
            rank = self.rank_of[act]
            acts.append(
                ActionRow(
                    rank=self.ranks.get(rank, rank), id=-1, stage=act.stage,
                    micro_batch=act.micro_batch, action=act.kind,
                    start_ns=START_NS + at + begin, duration_ns=end - begin, step=number,
                )
            )  # fmt: skip
            direction = FORWARD if act.kind == FORWARD else BACKWARD
            source = self.source(act)
            if source is not None:
                calls.append((rank, self.rank_of[source], "recv", act, direction, issued, begin))
            for each in self.receivers[act]:
                calls.append((rank, self.rank_of[each], "send", act, direction, sent, sent))
        comm = []
        for rank, peer, kind, act, direction, issued, until in sorted(calls, key=lambda c: c[5]):
            first = counts.setdefault(rank, 1000 * number)
            counts[rank] = first + 1
            comm.append(
                call(
                    rank=self.ranks.get(rank, rank), peer=self.ranks.get(peer, peer), id=first,
                    seq=first, kind=kind, at=at + issued, until=at + until, call_ns=until - issued,
                    blocked_ns=until - issued, step=number, stage=act.stage,
                    micro_batch=act.micro_batch, direction=direction, payload_bytes=64,
                    wire_bytes=64 if kind == "send" else 0, source_file="train.py", source_line=7,
                )
            )  # fmt: skip
        return acts, comm


def trace_of_programs(rounds: Sequence[Sequence[Program]], **more: Any) -> Trace:
    """A run whose steps have a round of each pipeline, a second after the round before."""
    acts: list[Any] = []
    comm: list[Any] = []
    steps: list[Any] = []
    for number, programs in enumerate(rounds):
        at = sum(max(each.length for each in before) + 1000 * MS for before in rounds[:number])
        for program in programs:
            own_acts, own_comm = program.rows(at, number)
            acts += own_acts
            comm += own_comm
            steps += [
                step(program.ranks.get(rank, rank), number, at, at + program.length)
                for rank in program.orders
            ]
    acts.sort(key=lambda row: (row.rank, row.start_ns))
    numbers: dict[int, int] = {}
    numbered = []
    for row in acts:
        numbers[row.rank] = numbers.get(row.rank, -1) + 1
        numbered.append(row._replace(id=numbers[row.rank]))
    ranks = sorted(numbers)
    end = max(row.end_ns for row in steps)
    return trace_of(
        sorted(comm, key=lambda row: (row.rank, row.id)),
        num_ranks=len(ranks),
        ranks=[rank_row(rank, end_ns=end) for rank in ranks],
        groups=[group(ranks=ranks)],
        steps=sorted(steps, key=lambda row: (row.rank, row.step)),
        pipeline_actions=numbered,
        **more,
    )


def run_of_program(program: Program, num_rounds: int = 1, **more: Any) -> Frames:
    return load(trace_of_programs([[program]] * num_rounds, **more))


def any_program(seed: int) -> Program:
    """A random program: an order of any sort, stages of any time, and transfers that are late."""
    chance = random.Random(seed)
    num_ranks = chance.randrange(1, 5)
    num_stages = num_ranks * chance.randrange(1, 3)
    orders = any_order(seed, num_ranks, num_stages, chance.randrange(1, 5))
    speeds = [chance.choice((1, 1, 2)) for _ in range(num_stages)]

    def of_each(make: TimeOf) -> TimeOf:
        return {act: make(act) for own in orders.values() for act in own}.__getitem__

    def time(act: Act) -> int:
        usual = equal(act) * speeds[act.stage] + chance.randrange(1000)
        return usual * chance.choice((1, 1, 1, 1, 3))

    def late(_: Act) -> int:
        return chance.choice((0, chance.randrange(20 * MS)))

    return Program(orders, of_each(time), of_each(late), of_each(late), chance.randrange(MS))


def piped_trace(seed: int) -> Trace:
    """A run of four rounds of random programs."""
    return trace_of_programs([[any_program(100 * seed + number)] for number in range(4)])
