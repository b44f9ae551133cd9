"""Statements by which a round of a loop passes a call without making it.

In a loop whose calls are all alike, a skipped call shows only at the end of the loop. The statement
that skipped it is still known if only one statement in the loop can skip a call. If none can, every
round makes it, and the loop itself ended earlier on one rank.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable

from commtrace.analyze.divergence.conditions import ALIKE, ConditionNames, is_over_a_batch
from commtrace.analyze.divergence.control_flow import FlowGraph, FlowNode
from commtrace.analyze.divergence.syntax import LOOPS, has_line


def skipping(
    graph: FlowGraph, line: int, ranks: Iterable[int]
) -> tuple[list[FlowNode], FlowNode | None, bool]:
    """Return statements by which the call of a line may be passed, and the outermost loop around.

    Without a loop, they are those by which the function may return without the call. Conditions
    that are alike on all ranks, or on the rank, are left out. The last value is whether the
    number of its rounds is the same on all ranks.
    """
    calls = graph.at(line)
    loops = [
        node
        for node in graph.nodes
        if isinstance(node.part, LOOPS) and has_line(node.part, line) and node not in calls
    ]
    loop = min(loops, key=lambda node: node.first, default=None)
    end = graph.exit if loop is None else loop
    inside = {
        node
        for node in graph.nodes
        if loop is None or (node is not loop and has_line(loop.part, node.first))
    }
    before: dict[FlowNode, list[FlowNode]] = {}
    for node in inside:
        for _, then in node.successors:
            before.setdefault(then, []).append(node)

    def earlier(node: FlowNode) -> list[FlowNode]:
        return [each for each in before.get(node, ()) if each not in calls]

    making = _reached(calls, earlier) - {end}
    passing = _reached([end], earlier) - making
    names = ConditionNames(graph.function, graph.constants)
    found = {
        then if isinstance(then.part, ast.ExceptHandler) else node
        for node in making
        for _, then in node.successors
        if then in passing
    }
    may_skip = [node for node in found if _may_differ(node, names, ranks)]
    return may_skip, loop, loop is None or not _may_differ(loop, names, ranks)


def _reached(
    start: Collection[FlowNode], following: Callable[[FlowNode], Iterable[FlowNode]]
) -> set[FlowNode]:
    found, left = set(start), [*start]
    while left:
        for each in following(left.pop()):
            if each not in found:
                found.add(each)
                left.append(each)
    return found


def _may_differ(node: FlowNode, names: ConditionNames, ranks: Iterable[int]) -> bool:
    """Return whether a statement may go another way in a single round of a rank."""
    part = node.part
    if isinstance(part, (ast.For, ast.AsyncFor)):
        return not is_over_a_batch(part.iter) and names.cost_of_loop(part) < ALIKE
    if isinstance(part, (ast.If, ast.While)):
        is_known = any(names.truth(part.test, rank) is not None for rank in ranks)
        is_known = is_known or names.is_lasting(part.test)
        return not is_known and names.cost(part.test) < ALIKE
    return isinstance(part, (ast.Match, ast.ExceptHandler))
