"""Control-flow graph of one function, with a node for each statement, from its syntax tree.

A statement is built with its successor known, from the last of a block to the first. A `finally`
is copied for each way of leaving its `try`, as compilers do, so that several nodes can have one
line. Edges say by which way their statement is left:

    NEXT          the following statement
    TRUE, FALSE   of a condition; TRUE also into the body of a loop, FALSE out of it
    CASE          a case of `match` is taken
    RAISES        an exception, to a handler of a `try` around, or behind a `with suppress(...)`
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeGuard

_Named = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = _Named | ast.Lambda | ast.Module
JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TryStar: type[ast.Try] = getattr(ast, "TryStar", ast.Try)  # from Python 3.11 on
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Way(Enum):
    """Way by which a statement is left."""

    NEXT = "next"
    TRUE = "true"
    FALSE = "false"
    CASE = "case"
    RAISES = "raises"


@dataclass(eq=False, slots=True)
class FlowNode:
    """One statement, or the entry or exit of the function.

    Attributes:
        part: The syntax-tree node; None at the entry and the exit.
        first: First line of the statement's own part: the header of one with a body.
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

        Of a header and a body on one line, the body is meant if it calls something.
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


def flow_of(function: ScopeNode, constants: frozenset[str] = frozenset()) -> FlowGraph:
    """Return the control-flow graph of a function, a lambda or a module."""
    leaving = FlowNode()
    builder = _Builder()
    body = (
        [ast.copy_location(ast.Expr(function.body), function.body)]
        if isinstance(function, ast.Lambda)
        else function.body
    )
    entry = FlowNode(successors=[(Way.NEXT, builder.block(body, leaving, _Around(leaving)))])
    return FlowGraph(function, entry, leaving, tuple(builder.nodes), constants)


class _Builder:
    """Builds nodes backwards."""

    def __init__(self) -> None:
        self.nodes: list[FlowNode] = []

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
        if any(_is_suppress(each.context_expr) for each in part.items):
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


def _is_suppress(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return getattr(called, "attr", getattr(called, "id", "")) == "suppress"


def _is_irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def has_line(part: ast.AST | None, line: int) -> bool:
    """Return whether a statement has a line, its body included."""
    return getattr(part, "lineno", 0) <= line <= getattr(part, "end_lineno", 0)


def own_expressions(part: ast.AST) -> list[ast.expr]:
    """Return the expressions of a statement's own part, without those of its body."""
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return list(part.decorator_list)
    if isinstance(part, (ast.With, ast.AsyncWith)):
        return [each.context_expr for each in part.items]
    if isinstance(part, ast.match_case):
        return [part.guard] if part.guard else []
    return [each for each in ast.iter_child_nodes(part) if isinstance(each, ast.expr)]


def expressions_in(expression: ast.AST) -> Iterator[ast.AST]:
    """Yield an expression and those that it evaluates, without the bodies of lambdas."""
    yield expression
    if not isinstance(expression, _INNER):
        for each in ast.iter_child_nodes(expression):
            yield from expressions_in(each)


def calls_in(part: ast.AST) -> bool:
    """Return whether a statement's own part calls something, a context manager included."""
    if isinstance(part, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)):
        return True
    return any(
        isinstance(each, (ast.Call, ast.Await, ast.BinOp, ast.Subscript, ast.Attribute))
        for expression in own_expressions(part)
        for each in expressions_in(expression)
    )


def name_of(expression: ast.expr) -> str:
    """Return the name of a variable, an attribute, or what is called; empty of anything else."""
    if isinstance(expression, ast.Call):
        return name_of(expression.func)
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def names_of(target: ast.expr) -> list[str]:
    """Return the variables of a target of assignments."""
    return [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]


def functions_named(tree: ast.Module | None, name: str) -> Iterator[_Named]:
    """Yield the functions of a name in a file; none of an unknown file."""
    for each in ast.walk(tree) if tree is not None else ():
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
            yield each


def functions_called(part: ast.AST) -> list[str]:
    """Return the names of the functions that a statement's own part calls, as it evaluates them."""
    return [name for each in own_expressions(part) for name in _called_in_order(each)]


def _called_in_order(expression: ast.AST) -> Iterator[str]:
    if isinstance(expression, _INNER):
        return
    for each in ast.iter_child_nodes(expression):
        yield from _called_in_order(each)
    if isinstance(expression, ast.Call):
        yield name_of(expression)


def has_condition(part: ast.AST | None) -> bool:
    """Return whether a statement calls something only under a condition in it."""
    for expression in [] if part is None else own_expressions(part):
        for each in expressions_in(expression):
            if isinstance(each, ast.IfExp):
                inner = [each.body, each.orelse]
            elif isinstance(each, ast.BoolOp):
                inner = each.values[1:]
            elif isinstance(each, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                inner = [each] if any(of.ifs for of in each.generators) else []
            else:
                continue
            if any(isinstance(of, ast.Call) for one in inner for of in expressions_in(one)):
                return True
    return False


def constants_of(tree: ast.Module, function: ScopeNode) -> frozenset[str]:
    """Return the attributes that only `__init__` of a method's class assigns in a file.

    Properties that are computed from these alone are among them.
    """
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    around = next((each for each in classes if function in each.body), None)
    methods = [] if around is None else around.body
    begin = [each for each in methods if getattr(each, "name", "") == "__init__"]
    if not begin:
        return frozenset()
    inside = [*_assigned(begin[0])]
    everywhere = [*_assigned(tree)]
    found = {name for name in inside if inside.count(name) == everywhere.count(name)}
    return frozenset(found | {each.name for each in methods if _is_computed_from(each, found)})


def _is_computed_from(method: ast.stmt, attributes: Collection[str]) -> TypeGuard[ast.FunctionDef]:
    """Return whether a method is a property that returns a value of some attributes of `self`."""
    is_property = isinstance(method, ast.FunctionDef) and any(
        "property" in getattr(each, "attr", getattr(each, "id", ""))
        for each in method.decorator_list
    )
    returned = method.body[-1] if isinstance(method, ast.FunctionDef) else None
    if not (is_property and isinstance(returned, ast.Return) and returned.value is not None):
        return False
    used = [*expressions_in(returned.value)]
    names = {each.id for each in used if isinstance(each, ast.Name)}
    attributes_used = {each.attr for each in used if isinstance(each, ast.Attribute)}
    has_calls = any(isinstance(each, ast.Call) for each in used)
    return names == {"self"} and attributes_used <= {*attributes} and not has_calls


def _assigned(part: ast.AST) -> Iterator[str]:
    for each in ast.walk(part):
        if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
            yield each.attr


def function_of(tree: ast.Module, node: ast.AST) -> ScopeNode:
    """Return the innermost function around a node of a file; the module if there is none."""
    found: ScopeNode = tree
    for each in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each is not node:
            found = each if any(inner is node for inner in ast.walk(each)) else found
    return found


def function_at(tree: ast.Module, line: int, name: str) -> ScopeNode | None:
    """Return the innermost function of a name that has a line; None if there is none."""
    if name == "<module>":
        return tree
    found: ScopeNode | None = None
    for each in ast.walk(tree):
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        called = "<lambda>" if isinstance(each, ast.Lambda) else each.name
        if called == name and each.lineno <= line <= (each.end_lineno or 0):
            is_inner = found is None or each.lineno >= getattr(found, "lineno", 0)
            found = each if is_inner else found
    return found
