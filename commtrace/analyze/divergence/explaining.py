"""The statement by which two ranks parted, found along the frames of their calls.

Calls are chains of frames, outermost first. Where both next calls are made below different lines of
a function, the ranks may have parted there (see `splits`); or one of them has passed the line of
the other's call without making it, since a function that is called from there returned early; or
both were in a function further inside when one left it. The cheapest explanation counts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace

from commtrace.analyze.divergence.choosing import choosing
from commtrace.analyze.divergence.conditions import (
    IMPOSSIBLE,
    OF_ANYTHING,
    decorator_of_rank,
)
from commtrace.analyze.divergence.control_flow import FlowGraph, FlowNode, Way
from commtrace.analyze.divergence.deciding import DecidingLine, lines_of
from commtrace.analyze.divergence.explanation import Explanation, likeliest, of_split
from commtrace.analyze.divergence.program_text import (
    CallChain,
    CallFrame,
    ProgramText,
)
from commtrace.analyze.divergence.splits import Paths, Seen
from commtrace.analyze.divergence.syntax import (
    LOOPS,
    functions_called,
    has_condition,
    has_line,
    name_of,
    names_of,
)

_RETURNED_EARLY = 0.5
_BY_DECORATOR = 0.75
"""More than by a condition in the program that the decorator calls."""
_RAISED_BY_PROGRAM = 1.5
_MOST_FRAMES = 40

SeenIn = Callable[[CallFrame, FlowGraph], Seen]


class Explainer:
    """Explains partings in a program.

    Args:
        text: Its source.
        seen: Facts on both ranks in a function.
        looped: Common name of two modules, such as `layers`, whose calls are compared.
        has_begun_anew: The first rank has left the function of the last common call, and entered it
            again for its next call; so it has passed the other's call.
        has_left_loop: The other rank, and so both, have left the innermost loop around the last
            common call.
    """

    def __init__(
        self,
        text: ProgramText,
        seen: SeenIn,
        looped: str | None = None,
        *,
        has_begun_anew: bool = False,
        has_left_loop: bool = False,
    ) -> None:
        self._text = text
        self._has_begun_anew = has_begun_anew
        self._has_left_loop = has_left_loop
        self._left: tuple[CallFrame, ast.AST] | None = None
        self._seen = seen
        self._looped = looped
        self.is_doubtful = False
        """True if the last search found several statements that are about equally likely."""
        self.is_once_more = False
        """True if it found a loop that a rank goes round once more than the other."""

    def lines(
        self, common: CallChain, own: CallChain | None, others: CallChain | None
    ) -> tuple[DecidingLine, ...]:
        """Return the statements by which two ranks parted, the most telling first.

        Args:
            common: The last call that both made; empty if there is none.
            own: The next call of the first rank; None if the program ended there.
            others: The next call of the other rank; likewise.
        """
        chains = [each for each in (own, others) if each is not None]
        if not chains or not all(chains):
            return ()
        if self._has_left_loop:
            common = self._leaving_loop(common)
        found = self._explained(common, own, others, _MOST_FRAMES)
        self.is_doubtful = False
        self.is_once_more = found is not None and _is_once_more(found, common, (own, others))
        if found is None or (found.is_unlikely() and not self.is_once_more):
            return ()
        self.is_doubtful = bool(found.rivals)
        if len(found.rivals) > 1:
            return ()
        if not found.rivals:
            return lines_of(self._text, found.file, found.nodes)
        rival = found.rivals[0]
        first, other = (lines_of(self._text, each.file, each.nodes[:1]) for each in (found, rival))
        return *first, *(replace(each, is_alternative=True) for each in other)

    def _explained(
        self, common: CallChain, own: CallChain | None, others: CallChain | None, left: int
    ) -> Explanation | None:
        """Return an explanation in a function, the first of each chain, or in what it calls.

        None stands for a rank that leaves the function.
        """
        if not left:
            return None
        base = (own or others or common)[0]
        graph = self._text.graph(base)
        if own and others and own[0] == others[0]:
            return self._at_one_line(graph, common, own, others, left)
        if graph is None:
            return None
        for chain in (own, others):
            if chain and self._text.graph(chain[0]) is not graph:
                return None
        is_inside = bool(common) and self._text.graph(common[0]) is graph
        start = self._starts(graph, common[0]) if is_inside else []
        if is_inside and not start:
            return None
        places = [graph.at(each[0].line) if each else [graph.exit] for each in (own, others)]
        if not all(places):
            return None
        if own and others and places[0][0] is places[1][0]:
            return self._within_statement(base, places[0])
        paths = Paths(graph, self._seen(base, graph))
        generators = [
            node
            for chain in (common if is_inside else (), own, others)
            for node in (graph.at(chain[0].line) if chain and len(chain) > 1 else [])
            if isinstance(node.part, (ast.For, ast.AsyncFor))
        ]
        # A generator decides itself whether its loop ends.
        split = paths.split(start, *places, within=lambda node: node not in generators)
        found = []
        if split is not None:
            both = self._leaving(common) * is_inside + self._entering(own) + self._entering(others)
            found.append(of_split(base.file, split).more(both))
        for side, (chain, other) in enumerate(((own, places[1]), (others, places[0]))):
            if chain and not (self._has_begun_anew and common and side == 0):
                found += self._passed(
                    paths, common if is_inside else (), start, chain, other, side, left
                )
        return likeliest(found)

    def _leaving_loop(self, chain: CallChain) -> CallChain:
        """Note the innermost loop around a call as left; return the frames up to it."""
        for place in reversed(range(len(chain))):
            graph = self._text.graph(chain[place])
            nodes = () if graph is None else graph.nodes
            loops = [
                node.part
                for node in nodes
                if isinstance(node.part, LOOPS)
                and node.last < chain[place].line
                and has_line(node.part, chain[place].line)
            ]
            if loops:
                loop = max(loops, key=lambda each: each.lineno)
                inner = [each for each in nodes if each.part is not loop and each.is_decision()]
                if not any(has_line(loop, each.first) for each in inner):
                    self._left = chain[place], loop
                    return chain[: place + 1]
                break  # what was run may have been run within the loop
        return chain

    def _starts(self, graph: FlowGraph, frame: CallFrame) -> list[FlowNode]:
        """Return the statement of a frame, or what leads to those behind a loop that was left."""
        if self._left is None or self._left[0] != frame:
            return graph.at(frame.line)
        return [
            FlowNode(successors=[(Way.NEXT, then)])
            for node in graph.nodes
            if node.part is self._left[1]
            for way, then in node.successors
            if way is Way.FALSE
        ]

    def _leaving(self, chain: CallChain) -> float:
        """Return the cost of both leaving the functions that a frame has called."""
        total = 0.0
        for each in chain[1:]:
            graph = self._text.graph(each)
            start = self._starts(graph, each) if graph is not None else []
            if graph is not None and start:
                paths = Paths(graph, self._seen(each, graph))
                total += paths.costs_from(start, ()).get(graph.exit, 0.0)
        return total

    def _entering(self, chain: CallChain | None) -> float:
        """Return the cost of coming to the call in the functions that a frame has called."""
        total = 0.0
        for each in (chain or ())[1:]:
            graph = self._text.graph(each)
            target = graph.at(each.line) if graph is not None else []
            if graph is not None and target:
                paths = Paths(graph, self._seen(each, graph))
                costs = paths.costs_from((), ())
                total += min(costs.get(node, 0.0) for node in target)
        return total

    def _passed(
        self,
        paths: Paths,
        common: CallChain,
        start: Sequence[FlowNode],
        chain: CallChain,
        target: Sequence[FlowNode],
        side: int,
        left: int,
    ) -> list[Explanation]:
        """Explain that the other rank passed a statement without the call made in it."""
        at = paths.graph.at(chain[0].line)
        onwards = paths.costs_to(target, (), 1 - side, start)
        rest = min(self._cost_after(node, onwards) for node in at)
        begin = paths.costs_from(start, ())
        reached = min(begin.get(node, IMPOSSIBLE) for node in at) + self._leaving(common)
        by_exception = [
            Explanation(self._cost_of_exception(paths, then, chain, side) + onwards[then],
                         chain[0].file, (then,))
            for way, then in at[0].successors
            if way is Way.RAISES and then in onwards
        ]  # fmt: skip
        found = []
        if rest < IMPOSSIBLE and common and common[0] == chain[0]:
            inner = self._left_early(common[1:], chain[1:], side, left)
            found += [inner.more(rest)] if inner is not None else []
            if not (inner is not None and any(isinstance(n.part, ast.Raise) for n in inner.nodes)):
                found += by_exception
        if rest + reached < IMPOSSIBLE:
            inner = self._left_early((), chain[1:], side, left)
            if inner is None and has_condition(at[0].part):
                inner = Explanation(OF_ANYTHING, chain[0].file, (at[0],))
            if inner is None:
                found += [each.more(reached) for each in by_exception]
            else:
                returned = 0.0 if target[0] is paths.graph.exit else _RETURNED_EARLY
                found.append(inner.more(returned + reached + rest))
        return found

    def _cost_of_exception(
        self, paths: Paths, handler: FlowNode, chain: CallChain, side: int
    ) -> float:
        """Return the cost of an exception in a call; less if the program itself raises its type."""
        cost = paths.weight_of_exception(handler, 1 - side)
        names = {*names_of(getattr(handler.part, "type", None) or ast.Tuple([]))}
        trees = [self._text.tree(each.file) for each in chain]
        is_raised = any(
            isinstance(each, ast.Raise) and each.exc is not None and name_of(each.exc) in names
            for tree in trees
            if tree is not None
            for each in ast.walk(tree)
        )
        return min(cost, _RAISED_BY_PROGRAM) if is_raised else cost

    def _left_early(
        self, common: CallChain, chain: CallChain, side: int, left: int
    ) -> Explanation | None:
        """Explain that the other rank left a function in which a rank made its next call."""
        if not chain:
            return None
        graph = self._text.graph(chain[0])
        decorator = None if graph is None else decorator_of_rank(graph.function)
        if decorator is not None and not common:
            at = FlowNode(decorator, decorator.lineno)
            return Explanation(_BY_DECORATOR, chain[0].file, (at,))
        sides = (chain, None) if side == 0 else (None, chain)
        return self._explained(common, *sides, left - 1)

    @staticmethod
    def _cost_after(node: FlowNode, onwards: dict[FlowNode, float]) -> float:
        return min((onwards.get(then, IMPOSSIBLE) for _, then in node.successors),
                   default=IMPOSSIBLE)  # fmt: skip

    def _at_one_line(
        self,
        graph: FlowGraph | None,
        common: CallChain,
        own: CallChain,
        others: CallChain,
        left: int,
    ) -> Explanation | None:
        """Explain calls below the same line: further inside, or in another round of its loop."""
        found = []
        inner = [own[1:], others[1:]]
        is_inside = bool(common) and common[0] == own[0]
        if all(inner) and self._are_in_one_function(inner[0][0], inner[1][0]):
            deeper = self._explained(common[1:] if is_inside else (), inner[0], inner[1], left - 1)
            found += [deeper] if deeper is not None else []
        elif any(inner):  # one is, perhaps, still in a function that the other has left
            behind = common[1:] if is_inside else ()
            within = [
                place
                for place, chain in enumerate(inner)
                if behind and chain and self._are_in_one_function(behind[0], chain[0])
            ]
            sides = within if all(inner) else [0 if inner[0] else 1]
            for side in sides:
                left_early = self._left_early(behind, inner[side], side, left)
                found += [left_early] if left_early is not None else []
        at = graph.at(own[0].line) if graph is not None else []
        if all(inner) and at and not found:
            side = _side_within_the_first(at[0], *inner)
            passed = None if side is None else self._left_early((), inner[side], side, left)
            found += [passed] if passed is not None else []
        if graph is not None and at and not found:
            if inner[0] != inner[1]:
                within = self._within_statement(own[0], at) or self._chosen(own, others)
                found += [within] if within is not None else []
            elif self._looped is not None:
                found += self._left_out(graph, own[0], at)
        return min(found, key=lambda each: each.cost, default=None)

    def _are_in_one_function(self, one: CallFrame, other: CallFrame) -> bool:
        graphs = self._text.graph(one), self._text.graph(other)
        is_alike = one[::2] == other[::2]
        return is_alike and (graphs[0] is graphs[1] or None in graphs)

    def _within_statement(self, base: CallFrame, at: Sequence[FlowNode]) -> Explanation | None:
        """Explain different calls in one statement by a condition in it."""
        if not has_condition(at[0].part):
            return None
        return Explanation(OF_ANYTHING, base.file, (at[0],))

    def _chosen(self, own: CallChain, others: CallChain) -> Explanation | None:
        """Explain calls of different functions in one statement by what chose them."""
        if len(own) < 2 or len(others) < 2 or own[1].function == others[1].function:
            return None
        found = [
            Explanation(OF_ANYTHING, file, (node,))
            for file in dict.fromkeys((own[0].file, own[1].file, others[1].file))
            if (tree := self._text.tree(file)) is not None
            for node in choosing(tree, (own[1].function, others[1].function))
        ]
        return found[0] if len(found) == 1 else None

    def _left_out(
        self, graph: FlowGraph, base: CallFrame, at: Sequence[FlowNode]
    ) -> list[Explanation]:
        """Explain that a rank left out a statement in a round of the loop around it."""
        found = []
        paths = Paths(graph, self._seen(base, graph))
        for loop in graph.nodes:
            part = loop.part
            if not isinstance(part, LOOPS) or not has_line(part, base.line):
                continue
            if self._looped and not _mentions(part, self._looped):
                continue

            def is_inside(node: FlowNode, around: ast.AST = part) -> bool:
                return node.part is not around and has_line(around, node.first)

            split = paths.split([loop], at, [loop], is_inside)
            found += [of_split(base.file, split)] if split is not None else []
        return found


def _side_within_the_first(node: FlowNode, own: CallChain, others: CallChain) -> int | None:
    """Return the side in the function that a statement calls first.

    The other side has left that function. None if the order is not known.
    """
    called = functions_called(node.part) if node.part is not None else []
    names = own[0].function, others[0].function
    if names[0] == names[1] or any(called.count(name) != 1 for name in names):
        return None
    return int(called.index(names[1]) < called.index(names[0]))


def _mentions(part: ast.AST, name: str) -> bool:
    iterable = getattr(part, "iter", None) or getattr(part, "test", None)
    return iterable is not None and any(
        name in (getattr(each, "attr", ""), getattr(each, "id", "")) for each in ast.walk(iterable)
    )


def _is_once_more(
    found: Explanation, common: CallChain, chains: Sequence[CallChain | None]
) -> bool:
    """Return whether a rank makes the last common call once more in a loop that the other left.

    Nothing but the loop decided then, even if its rounds are as many on most ranks, such as the
    buffers of a model.
    """
    loop = found.nodes[0].part
    if found.rivals or not isinstance(loop, LOOPS):
        return False
    is_in_loop = [
        any(each.file == found.file and has_line(loop, each.line) for each in chain or ())
        for chain in chains
    ]
    again = [chain for chain, is_in in zip(chains, is_in_loop, strict=True) if is_in]
    return len(again) == 1 and again[0] == common
