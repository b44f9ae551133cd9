"""The statement of a function at which two ranks most likely took different branches.

Both ranks start after the same statement and reach different targets. Every statement with several
successors, on paths to both targets, is a candidate. Its cost is the sum of:

    the unusual steps on the common path of both ranks to the statement
    the cost of a difference between ranks at the statement (see `conditions`)
    the unusual steps on the rest of each rank's path: the end of a loop, a jump, an exception,
    a statement that communicated in earlier rounds and is passed without a call

The candidate of least cost is the answer; among equal ones, the last before the targets.
"""

from __future__ import annotations

import ast
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations

from commtrace.analyze.divergence.conditions import (
    ALIKE,
    IMPOSSIBLE,
    OF_ANYTHING,
    OF_ATTRIBUTE,
    OF_DATA,
    ConditionNames,
    is_over_a_batch,
    is_over_ranks,
)
from commtrace.analyze.divergence.control_flow import FlowGraph, FlowNode, Way
from commtrace.analyze.divergence.syntax import JUMPS, LOOPS

_UNUSUAL = 1.0
_END_OF_LOOP = 0.25
_EXCEPTION = 3.0
_OF_ANY, _OF_ANOTHER = 0.15, 0.3
_KNOWN = 1.0
"""Reduction of the cost of a handler whose exception a rank is known to have raised."""
_ANY = {"Exception", "BaseException"}
_PASSED_CALL = 2.0
_CONDITION = 0.25
_ENTERED_AGAIN = 1.0
_MARGIN = 0.3
_MARGIN_OF_ROUNDS = 0.8
"""Differences of cost up to which another statement counts as equally likely."""
_OF_BOTH = 0.5
"""Factor of the cost of unusual steps on the common path."""

Costs = Mapping[FlowNode, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts on two ranks in a function.

    Attributes:
        ranks: Both ranks; the same rank twice if it is compared with its own earlier round.
        calling: Lines with calls before the divergence.
        raised: For each rank, names of the exceptions that it raised since the last common call.
        ended: For each rank, whether its data ended since the last common call.
        left_out: For each rank whose data ended, whether it skipped an earlier round.
        is_sure: The round of the divergence is known.
    """

    ranks: tuple[int, int]
    calling: Collection[int] = ()
    raised: tuple[Collection[str], Collection[str]] = ((), ())
    ended: tuple[bool, bool] = (False, False)
    left_out: tuple[bool, bool] = (False, False)
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Split:
    """A statement at which ranks took different branches, with the next node of each.

    Attributes:
        cost: Its cost.
        difference: Cost of a difference between ranks at the statement, a part of it.
        jumps: The first jump on the path of a rank, within the statement.
        rivals: Other statements that are about equally likely.
    """

    cost: float
    difference: float
    node: FlowNode
    ways: tuple[Way, Way]
    then: tuple[FlowNode, FlowNode]
    jumps: tuple[FlowNode, ...] = ()
    rivals: tuple[Split, ...] = ()

    @property
    def decides(self) -> ast.AST | None:
        """The statement, or the handler of an exception in it."""
        handlers = (then for way, then in zip(self.ways, self.then, strict=True)
                    if way is Way.RAISES)  # fmt: skip
        return next(handlers, self.node).part


class Paths:
    """Paths of two ranks through a function."""

    def __init__(self, graph: FlowGraph, seen: Seen) -> None:
        self.graph = graph
        self._seen = seen
        self._names = ConditionNames(graph.function, graph.constants)
        self._nodes = [graph.entry, *graph.nodes, graph.exit]
        self._before: dict[FlowNode, list[tuple[Way, FlowNode]]] = {}
        for node in self._nodes:
            for way, following in node.successors:
                self._before.setdefault(following, []).append((way, node))

    def split(
        self,
        start: Sequence[FlowNode],
        own: Collection[FlowNode],
        others: Collection[FlowNode],
        within: Callable[[FlowNode], bool] = lambda node: True,
    ) -> Split | None:
        """Return the most likely statement at which ranks took branches to different targets.

        Args:
            start: Copies of the last common statement; none at the entry.
            own: Copies of the target of the first rank.
            others: Copies of the target of the other rank.
            within: Filter of the candidate statements.
        """
        begin = self.costs_from(start, {*own, *others})
        to_own = self.costs_to(own, others, 0, start)
        to_others = self.costs_to(others, own, 1, start)
        found: list[tuple[float, float, Split]] = []
        for node, cost in begin.items():
            if not node.is_decision() or not within(node):
                continue
            for (way, then), (other_way, other_then) in permutations(node.successors, 2):
                if then is other_then or _gain(to_own, to_others, then, other_then) <= 0:
                    continue
                ways = way, other_way
                difference = self._cost_of(node, ways, (then, other_then))
                difference += 0.0 if start else self._cost_of_no_round(node)
                total = cost + difference
                total += to_own.get(then, IMPOSSIBLE) + to_others.get(other_then, IMPOSSIBLE)
                if total < IMPOSSIBLE:
                    split = Split(total, difference, node, ways, (then, other_then))
                    found.append((total, -node.first, split))
        if not found:
            return None
        found.sort(key=lambda each: each[:2])
        split = found[0][2]
        rivals = {
            each.decides: each for _, _, each in reversed(found[1:]) if _is_rival(each, split)
        }
        jumps = self._jumps(split, to_own, own, 0) or self._jumps(split, to_others, others, 1)
        return replace(split, jumps=jumps, rivals=tuple(rivals.values()))

    def costs_from(
        self, start: Sequence[FlowNode], targets: Collection[FlowNode]
    ) -> dict[FlowNode, float]:
        """Return the cost of the common path from the start to each node, itself excluded."""
        origins = list(start) or [self.graph.entry]

        def successors(node: FlowNode) -> Iterator[tuple[FlowNode, float]]:
            passing = 0.0 if node in origins else self._passing(node, targets, start)
            for way, then in self._ways_out(node, start):
                yield then, passing + _OF_BOTH * self._weight(node, way, then, None)

        return _cheapest(origins, successors)

    def costs_to(
        self,
        targets: Collection[FlowNode],
        avoided: Collection[FlowNode],
        side: int,
        start: Sequence[FlowNode],
    ) -> dict[FlowNode, float]:
        """Return the cost of a rank's path from each node, included, to a target."""

        def predecessors(node: FlowNode) -> Iterator[tuple[FlowNode, float]]:
            before = self._before.get(node, [])
            if node is self.graph.entry and self._is_entered_again(start):
                before = [*before, (Way.NEXT, self.graph.exit)]
            for way, previous in before:
                weight = self._weight(previous, way, node, side)
                yield previous, weight + self._passing(previous, avoided, start)

        return _cheapest(targets, predecessors)

    def _ways_out(
        self, node: FlowNode, start: Sequence[FlowNode]
    ) -> Sequence[tuple[Way, FlowNode]]:
        if node is self.graph.exit and self._is_entered_again(start):
            return [(Way.NEXT, self.graph.entry)]
        return node.successors

    def _is_entered_again(self, start: Sequence[FlowNode]) -> bool:
        """Return whether the function can have been called again since the start."""
        return bool(start) and not isinstance(self.graph.function, ast.Module)

    def _passing(
        self, node: FlowNode, targets: Collection[FlowNode], start: Sequence[FlowNode]
    ) -> float:
        if node is self.graph.exit:
            return _ENTERED_AGAIN
        if node in targets:
            return _PASSED_CALL
        has_called = any(node.first <= line <= node.last for line in self._seen.calling)
        return _PASSED_CALL if has_called or node in start else 0.0

    def _weight(self, node: FlowNode, way: Way, then: FlowNode, side: int | None) -> float:
        """Return the cost of an edge on the path of a rank, or on the common path."""
        if way is Way.RAISES:
            if isinstance(node.part, ast.Raise):
                return _UNUSUAL
            return _EXCEPTION if side is None else self.weight_of_exception(then, side)
        if isinstance(node.part, LOOPS):
            has_ended = side is not None and self._seen.ended[side]
            return _END_OF_LOOP if way is Way.FALSE and not has_ended else 0.0
        if isinstance(node.part, ast.If):
            jumps = way is Way.TRUE and ends_in_jump(node.part.body)
            jumps = jumps or (way is Way.FALSE and ends_in_jump(node.part.orelse))
            weight = _UNUSUAL if jumps else _CONDITION
            if side is None:
                return weight
            truth = self._names.truth(node.part.test, self._seen.ranks[side])
            if truth is None:
                return weight
            return _CONDITION if truth is (way is Way.TRUE) else _EXCEPTION
        return _UNUSUAL if isinstance(node.part, ast.Raise) else 0.0

    def weight_of_exception(self, handler: FlowNode, side: int) -> float:
        """Return the cost of an edge to a handler of exceptions."""
        raised = self._seen.raised[side]
        if not raised:
            return _EXCEPTION
        types = getattr(handler.part, "type", None)
        names = {each.id for each in ast.walk(types) if isinstance(each, ast.Name)} if types else ()
        names = {*names, *(each.attr for each in ast.walk(types or ast.Tuple([]))
                           if isinstance(each, ast.Attribute))}  # fmt: skip
        if names & {*raised}:
            return 0.0
        return _OF_ANY if not types or names & _ANY else _OF_ANOTHER

    def _cost_of(
        self, node: FlowNode, ways: tuple[Way, Way], then: tuple[FlowNode, FlowNode]
    ) -> float:
        """Return the cost of a difference between ranks at a statement."""
        if Way.RAISES in ways:
            if ways[0] is ways[1]:
                return _EXCEPTION
            if isinstance(node.part, ast.Raise):
                return IMPOSSIBLE
            side = ways.index(Way.RAISES)
            weights = [self.weight_of_exception(then[side], each) for each in (side, 1 - side)]
            return weights[0] - _KNOWN if weights[0] < weights[1] else _EXCEPTION
        part = node.part
        if isinstance(part, (ast.For, ast.AsyncFor)):
            if is_over_a_batch(part.iter) or self._has_as_many_rounds_as_before(node, part.iter):
                return IMPOSSIBLE
            cost = self._names.cost_of_loop(part)
            side = ways.index(Way.FALSE)
            ended, goes_on = self._seen.ended[side], self._seen.ended[1 - side]
            if cost > OF_ATTRIBUTE or ended is goes_on is False:
                return cost
            if ended is not goes_on:
                return 0.0 if ended and not self._seen.left_out[side] else _EXCEPTION
            return _EXCEPTION if cost == OF_DATA else cost
        if isinstance(part, (ast.If, ast.While)):
            return self._cost_of_condition(part.test, ways)
        if isinstance(part, ast.Match):
            return self._by_rounds(self._names.cost(part.subject))
        return IMPOSSIBLE

    def _cost_of_condition(self, test: ast.expr, ways: tuple[Way, Way]) -> float:
        if self._seen.ranks[0] == self._seen.ranks[1] and self._names.is_lasting(test):
            return IMPOSSIBLE
        truths = [self._names.truth(test, rank) for rank in self._seen.ranks]
        if None not in truths and truths[0] == truths[1]:
            return _EXCEPTION
        wrong = any(
            truth is not None and truth is not (way is Way.TRUE)
            for truth, way in zip(truths, ways, strict=True)
        )
        return self._by_rounds(self._names.cost(test)) + (_EXCEPTION if wrong else 0.0)

    def _cost_of_no_round(self, node: FlowNode) -> float:
        """Return the cost of a loop that ends before its first round, if it had some before."""
        is_called = isinstance(node.part, LOOPS) and any(
            is_within(each, node) and each.first <= line <= each.last
            for each in self.graph.nodes
            for line in self._seen.calling
        )
        return _UNUSUAL if is_called else 0.0

    def _has_as_many_rounds_as_before(self, node: FlowNode, iterable: ast.expr) -> bool:
        """Return whether a loop over ranks, or an inner one of constants, is in a rank's rounds."""
        if self._seen.ranks[0] != self._seen.ranks[1]:
            return False
        return is_over_ranks(iterable) or (
            self._names.is_alike(iterable)
            and any(
                isinstance(each.part, LOOPS) and is_within(node, each) for each in self.graph.nodes
            )
        )

    def _by_rounds(self, cost: float) -> float:
        """Return the cost of a condition, for counters also by the compared rounds.

        Counters differ between two rounds of a rank, if the round of the divergence is known. If
        it is unknown, a call may be missing in any earlier round, so that they explain nothing.
        """
        if cost >= ALIKE and not self._seen.is_sure:
            return IMPOSSIBLE
        is_one_rank = self._seen.ranks[0] == self._seen.ranks[1] and self._seen.is_sure
        return OF_ANYTHING if is_one_rank and cost >= ALIKE else cost

    def _jumps(
        self, split: Split, costs: Costs, targets: Collection[FlowNode], side: int
    ) -> tuple[FlowNode, ...]:
        """Return the first jump on a rank's path, within the statement of the divergence."""
        node, part = split.then[side], split.node.part
        last = getattr(part, "end_lineno", 0)
        if not isinstance(part, (ast.If, ast.match_case)):
            return ()
        while split.node.first < node.first <= last and node not in targets:
            if isinstance(node.part, JUMPS):
                return (node,)
            following = [
                (costs[then] + self._weight(node, way, then, side), number, then)
                for number, (way, then) in enumerate(node.successors)
                if then in costs
            ]
            if not following:
                return ()
            node = min(following)[2]
        return ()


def _cheapest(
    origins: Iterable[FlowNode], edges: Callable[[FlowNode], Iterable[tuple[FlowNode, float]]]
) -> dict[FlowNode, float]:
    """Return the least cost from the origins to each node, by Dijkstra's algorithm."""
    found = dict.fromkeys(origins, 0.0)
    order = count()
    heap = [(0.0, next(order), node) for node in found]
    while heap:
        cost, _, node = heapq.heappop(heap)
        if cost > found[node]:
            continue
        for then, weight in edges(node):
            if cost + weight < found.get(then, IMPOSSIBLE):
                found[then] = cost + weight
                heapq.heappush(heap, (cost + weight, next(order), then))
    return found


def _gain(to_own: Costs, to_others: Costs, then: FlowNode, other_then: FlowNode) -> float:
    """Return the additional cost of the paths to both targets if the branches are exchanged."""
    as_taken = to_own.get(then, IMPOSSIBLE) + to_others.get(other_then, IMPOSSIBLE)
    exchanged = to_own.get(other_then, IMPOSSIBLE) + to_others.get(then, IMPOSSIBLE)
    return exchanged - as_taken


def _is_rival(other: Split, best: Split) -> bool:
    """Return whether another statement is nearly as likely, and neither is within the other.

    A condition within the best statement is a rival if that is a loop: a rank that made fewer
    rounds may have left the loop, or skipped a round.
    """
    if other.decides is best.decides:
        return False
    more = other.cost - best.cost
    if is_within(other.node, best.node):
        return isinstance(best.node.part, LOOPS) and more <= _MARGIN_OF_ROUNDS
    is_round_of_it = isinstance(other.node.part, LOOPS)
    return more <= _MARGIN and (is_round_of_it or not is_within(best.node, other.node))


def is_within(node: FlowNode, around: FlowNode) -> bool:
    """Return whether a statement is in the body of another."""
    last = getattr(around.part, "end_lineno", None) or around.last
    return around.first <= node.first and node.last <= last and node is not around


def ends_in_jump(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends in a `return`, `break`, `continue` or `raise`."""
    return bool(body) and isinstance(body[-1], JUMPS)
