"""The condition by which the group of a call was chosen.

The argument of the call is followed to the names, parameters, functions, contexts and collections
that it comes from, up to a conditional expression, or to an `if` around any of several values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commtrace.analyze.divergence.choosing import may_differ
from commtrace.analyze.divergence.control_flow import FlowGraph, FlowNode
from commtrace.analyze.divergence.program_text import CallChain, ProgramText
from commtrace.analyze.divergence.syntax import (
    ScopeNode,
    expressions_in,
    functions_named,
    has_line,
    name_of,
    names_of,
    own_expressions,
)

_GROUPS = ("group", "process_group", "pg")
_MOST_LINKS = 8

GroupChoice = tuple[str, FlowNode]
"""A file, and a condition in it."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """A function that a value is in, with the frames that have called it; none if unknown."""

    file: str
    function: ScopeNode
    callers: CallChain = ()


def choosing_group(text: ProgramText, chain: CallChain) -> GroupChoice | None:
    """Return the file and condition by which the group of a call was chosen; None if unknown."""
    graph = text.graph(chain[-1]) if chain else None
    if graph is None:
        return None
    passed = [
        keyword.value
        for call in _calls_at(graph, chain[-1].line)
        for keyword in call.keywords
        if keyword.arg in _GROUPS
    ]
    scope = _Scope(chain[-1].file, graph.function, chain[:-1])
    return _origin(text, scope, passed, _MOST_LINKS)


def _origin(
    text: ProgramText, scope: _Scope, values: Sequence[ast.expr], links: int
) -> GroupChoice | None:
    """Return the condition that selects among several values of a scope."""
    if len(values) > 1:
        return _around_one(scope, values)
    if not (values and links):
        return None
    (value,) = values
    if isinstance(value, ast.IfExp):
        is_choice = may_differ(value, scope.function)
        return (scope.file, FlowNode(value, value.lineno, value.lineno)) if is_choice else None
    if isinstance(value, ast.Subscript):
        return _origin(text, scope, [value.slice], links - 1)
    if isinstance(value, ast.Call):
        functions = [*functions_named(text.tree(scope.file), name_of(value))]
        returned = [each.value for function in functions[:1] for each in ast.walk(function)
                    if isinstance(each, (ast.Return, ast.Yield)) and each.value]  # fmt: skip
        inner = [_Scope(scope.file, each) for each in functions]
        found = _origin(text, inner[0], returned, links - 1) if len(inner) == 1 else None
        # One argument may choose, as in `groups.get(name)`.
        return found or (
            _origin(text, scope, value.args, links - 1) if len(value.args) == 1 else None
        )
    if not isinstance(value, ast.Name):
        return None
    if assigned := [*_assigned(scope.function, value.id)]:
        return _origin(text, scope, assigned, links - 1)
    *callers, caller = scope.callers or (None,)
    outer = None if caller is None else text.graph(caller)
    if outer is None or caller is None:
        return None
    given = [
        argument
        for call in _calls_at(outer, caller.line)
        for argument in _arguments(call, scope.function, value.id)
    ]
    return _origin(text, _Scope(caller.file, outer.function, tuple(callers)), given, links - 1)


def _around_one(scope: _Scope, values: Sequence[ast.expr]) -> GroupChoice | None:
    """Return the only condition around any of several values."""
    around = [
        each
        for each in ast.walk(scope.function)
        if isinstance(each, ast.If)
        and may_differ(each, scope.function)
        and any(has_line(each, value.lineno) for value in values)
    ]
    return (scope.file, FlowNode(around[0], around[0].lineno)) if len(around) == 1 else None


def _calls_at(graph: FlowGraph, line: int) -> Iterator[ast.Call]:
    for node in graph.at(line)[:1]:
        for expression in own_expressions(node.part) if node.part is not None else ():
            yield from (each for each in expressions_in(expression) if isinstance(each, ast.Call))


def _assigned(function: ScopeNode, name: str) -> Iterator[ast.expr]:
    for each in ast.walk(function):
        if isinstance(each, ast.Assign):
            names = [to.id for to in each.targets if isinstance(to, ast.Name)]
            yield from [each.value] * (name in names)
        elif isinstance(each, (ast.For, ast.AsyncFor)):
            yield from [each.iter] * (name in names_of(each.target))
        elif isinstance(each, ast.withitem) and each.optional_vars is not None:
            yield from [each.context_expr] * (name in names_of(each.optional_vars))


def _arguments(call: ast.Call, function: ScopeNode, name: str) -> Iterator[ast.expr]:
    """Yield what a call of a function passes as a parameter."""
    if isinstance(function, (ast.Module, ast.Lambda)) or name_of(call) != function.name:
        return
    yield from (each.value for each in call.keywords if each.arg == name)
    names = [each.arg for each in function.args.args]
    is_method = names[:1] == ["self"] and isinstance(call.func, ast.Attribute)
    place = names.index(name) - is_method if name in names else len(call.args)
    yield from call.args[place : place + 1]
