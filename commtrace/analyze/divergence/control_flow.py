"""Control-flow graph of a function, with a node for each statement, from its syntax tree.

A statement is built with its successor known, from the last of a block to the first. A `finally`
is copied for each way of leaving its `try`, as compilers do, so that several nodes can have the
same line. Edges say by which way their statement is left:

    NEXT          the following statement
    TRUE, FALSE   of a condition; TRUE also into the body of a loop, FALSE out of it
    CASE          a case of `match` is taken
    RAISES        an exception, to a handler of a `try` around, or behind a `with` that swallows it
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from commtrace.analyze.divergence.syntax import LOOPS, ScopeNode, calls_in, name_of

_TryStar: type[ast.Try] = getattr(ast, "TryStar", ast.Try)  # from Python 3.11 on


class Way(Enum):
    """Way by which a statement is left."""

    NEXT = "next"
    TRUE = "true"
    FALSE = "false"
    CASE = "case"
    RAISES = "raises"


@dataclass(eq=False, slots=True)
class FlowNode:
    """A statement, or the entry or exit of the function.

    Attributes:
        part: The syntax-tree node; None at the entry and the exit.
        first: First line of the statement's own part, such as the header before a body.
        last: Last line of it.
        successors: Ways out of it, each with the node that follows.
    """

    part: ast.AST | None = None
    first: int = 0
    last: int = -1
    successors: list[tuple[Way, FlowNode]] = field(default_factory=list)

    def is_decision(self) -> bool:
        """Return whether it can be left by several ways."""
        return len({id(node) for _, node in self.successors}) > 1


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """Control-flow graph of a function.

    Attributes:
        nodes: Its statements, in no order.
        constants: Attributes that only `__init__` of its class assigns.
    """

    function: ScopeNode
    entry: FlowNode
    exit: FlowNode
    nodes: tuple[FlowNode, ...]
    constants: frozenset[str] = frozenset()

    def at(self, line: int) -> list[FlowNode]:
        """Return the innermost statement of a line, with all its copies; empty if there is none.

        If a header and its body share the line, the body is meant if it calls something.
        """
        found = [node for node in self.nodes if node.first <= line <= node.last]
        calling = [node for node in found if node.part is not None and calls_in(node.part)]
        found = calling or found
        if not found:
            return []
        part = max(found, key=_position).part
        return [node for node in found if node.part is part]


def _position(node: FlowNode) -> tuple[int, int]:
    return getattr(node.part, "lineno", 0), getattr(node.part, "col_offset", 0)


@dataclass(frozen=True, slots=True)
class _Around:
    """Targets of jumps at a place."""

    returns: FlowNode
    breaks: FlowNode | None = None
    continues: FlowNode | None = None
    raises: tuple[FlowNode, ...] = ()


def flow_of(
    function: ScopeNode,
    constants: frozenset[str] = frozenset(),
    swallowing: Collection[str] = (),
) -> FlowGraph:
    """Return the control-flow graph of a function, a lambda or a module.

    Args:
        function: Its syntax tree.
        constants: Attributes that only `__init__` of its class assigns.
        swallowing: Names of context managers, besides `suppress`, that may swallow exceptions.
    """
    leaving = FlowNode()
    builder = _Builder({"suppress", *swallowing})
    body = (
        [ast.copy_location(ast.Expr(function.body), function.body)]
        if isinstance(function, ast.Lambda)
        else function.body
    )
    entry = FlowNode(successors=[(Way.NEXT, builder.block(body, leaving, _Around(leaving)))])
    return FlowGraph(function, entry, leaving, tuple(builder.nodes), constants)


class _Builder:
    """Builds nodes backwards."""

    def __init__(self, swallowing: Collection[str]) -> None:
        self.nodes: list[FlowNode] = []
        self._swallowing = swallowing

    def block(self, body: Sequence[ast.stmt], following: FlowNode, around: _Around) -> FlowNode:
        """Return the first node of a block."""
        for statement in reversed(body):
            following = self._statement(statement, following, around)
        return following

    def _statement(self, part: ast.stmt, following: FlowNode, around: _Around) -> FlowNode:
        if isinstance(part, ast.If):
            node = self._node(part, part.test, around)
            node.successors += [
                (Way.TRUE, self.block(part.body, following, around)),
                (Way.FALSE, self.block(part.orelse, following, around)),
            ]
            return node
        if isinstance(part, LOOPS):
            return self._loop(part, following, around)
        if isinstance(part, (ast.With, ast.AsyncWith)):
            return self._with(part, following, around)
        if isinstance(part, (ast.Try, _TryStar)):
            return self._try(part, following, around)
        if isinstance(part, ast.Match):
            return self._match(part, following, around)
        node = self._node(part, _header_end(part), around)
        if isinstance(part, ast.Raise):
            if not node.successors:
                node.successors.append((Way.NEXT, around.returns))
            return node
        target: FlowNode | None = following
        if isinstance(part, ast.Return):
            target = around.returns
        elif isinstance(part, ast.Break):
            target = around.breaks
        elif isinstance(part, ast.Continue):
            target = around.continues
        node.successors.append((Way.NEXT, target or following))
        return node

    def _node(self, part: ast.AST, end: ast.AST | int | None, around: _Around) -> FlowNode:
        first = getattr(part, "lineno", 0)
        last = end if isinstance(end, int) else getattr(end, "end_lineno", None) or first
        node = FlowNode(part, first, max(first, last))
        node.successors += [(Way.RAISES, handler) for handler in around.raises]
        self.nodes.append(node)
        return node

    def _loop(
        self, part: ast.For | ast.AsyncFor | ast.While, following: FlowNode, around: _Around
    ) -> FlowNode:
        node = self._node(part, part.test if isinstance(part, ast.While) else part.iter, around)
        inside = replace(around, breaks=following, continues=node)
        node.successors.append((Way.TRUE, self.block(part.body, node, inside)))
        is_endless = isinstance(part, ast.While) and _is_true(part.test)
        if not is_endless:
            node.successors.append((Way.FALSE, self.block(part.orelse, following, around)))
        return node

    def _with(
        self, part: ast.With | ast.AsyncWith, following: FlowNode, around: _Around
    ) -> FlowNode:
        end = max(each.context_expr.end_lineno or part.lineno for each in part.items)
        leaving = self._node(part, end, around)  # also calls, in `__exit__`
        leaving.successors.append((Way.NEXT, following))
        raises = around.raises
        if any(name_of(each.context_expr) in self._swallowing for each in part.items):
            raises = (leaving, *raises)
        inside = _through(around, lambda target: self._left_with(part, end, target, around))
        node = self._node(part, end, around)
        body = self.block(part.body, leaving, replace(inside, raises=raises))
        node.successors.append((Way.NEXT, body))
        return node

    def _left_with(
        self, part: ast.With | ast.AsyncWith, end: int, target: FlowNode, around: _Around
    ) -> FlowNode:
        leaving = self._node(part, end, around)
        leaving.successors.append((Way.NEXT, target))
        return leaving

    def _try(self, part: ast.Try, following: FlowNode, around: _Around) -> FlowNode:
        def through_finally(target: FlowNode) -> FlowNode:
            return self.block(part.finalbody, target, around)

        after = through_finally(following)
        inside = _through(around, through_finally) if part.finalbody else around
        handlers = []
        for each in part.handlers:
            node = self._node(each, each.type, inside)
            node.successors.append((Way.NEXT, self.block(each.body, after, inside)))
            handlers.append(node)
        otherwise = self.block(part.orelse, after, inside)
        caught = replace(inside, raises=tuple(handlers) if handlers else inside.raises)
        return self.block(part.body, otherwise, caught)

    def _match(self, part: ast.Match, following: FlowNode, around: _Around) -> FlowNode:
        node = self._node(part, part.subject, around)
        for each in part.cases:
            case = FlowNode(each, each.pattern.lineno, (each.guard or each.pattern).end_lineno or 0)
            self.nodes.append(case)
            case.successors.append((Way.NEXT, self.block(each.body, following, around)))
            node.successors.append((Way.CASE, case))
        if not any(_is_irrefutable(each) for each in part.cases):
            node.successors.append((Way.FALSE, following))
        return node


def _through(around: _Around, leave: Callable[[FlowNode], FlowNode]) -> _Around:
    """Return the targets of jumps that run something first, as `finally` does."""
    return _Around(
        leave(around.returns),
        around.breaks and leave(around.breaks),
        around.continues and leave(around.continues),
        tuple(leave(each) for each in around.raises),
    )


def _header_end(part: ast.stmt) -> int:
    """Return the last line of a statement, or of the header of a nested definition."""
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return max(part.lineno, part.body[0].lineno - 1)
    return part.end_lineno or part.lineno


def _is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def _is_irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None
