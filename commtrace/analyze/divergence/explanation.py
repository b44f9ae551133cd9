"""An explanation of a parting: statements that decided, with its cost and its rivals."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commtrace.analyze.divergence.conditions import ALIKE, OF_ANYTHING
from commtrace.analyze.divergence.control_flow import FlowNode, Way
from commtrace.analyze.divergence.splits import Split
from commtrace.analyze.divergence.syntax import LOOPS

_MARGIN = 0.3


@dataclass(frozen=True, slots=True)
class Explanation:
    """Statements that decided.

    Attributes:
        difference: Cost of a difference between ranks there, which is a part of `cost`.
    """

    cost: float
    file: str
    nodes: tuple[FlowNode, ...]
    rivals: tuple[Explanation, ...] = ()
    difference: float = OF_ANYTHING

    def is_unlikely(self) -> bool:
        """Return whether ranks hardly differ there; in a loop, if all is considered."""
        is_loop = isinstance(self.nodes[0].part, LOOPS)
        return (self.cost if is_loop else self.difference) >= ALIKE

    def more(self, cost: float) -> Explanation:
        """Return the explanation at a higher cost."""
        return replace(self, cost=self.cost + cost)


def likeliest(found: list[Explanation]) -> Explanation | None:
    """Return the cheapest explanation; doubtful if an explanation elsewhere is as cheap."""
    if not found:
        return None
    first, *others = sorted(found, key=lambda each: each.cost)
    near = [each for each in others if each.cost - first.cost < _MARGIN]
    rivals = {(each.file, each.nodes[0].first): each for each in reversed([*first.rivals, *near])}
    rivals.pop((first.file, first.nodes[0].first), None)
    return replace(first, rivals=tuple(rivals.values()))


def of_split(file: str, split: Split) -> Explanation:
    """Return the statements that a split is at: the handler of an exception, or a case."""
    rivals = tuple(of_split(file, each) for each in split.rivals)
    ways = dict(zip(split.ways[::-1], split.then[::-1], strict=True))  # the first of equal ways
    nodes = split.node, *split.jumps
    if Way.RAISES in ways:
        nodes = (ways[Way.RAISES],)
    elif Way.CASE in ways:
        nodes = ways[Way.CASE], split.node
    return Explanation(split.cost, file, nodes, rivals, split.difference)
