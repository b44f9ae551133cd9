"""Statements that choose which of two functions is called next, or in which group a call is made.

One line may call a function that was chosen elsewhere: `update(batch)` in a loop over the steps of
a schedule, or `handler()` from a table. If ranks called different functions there, a condition with
the names of both, one on each of its sides or both in another order, has chosen.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from commtrace.analyze.divergence.conditions import ALIKE, ConditionNames
from commtrace.analyze.divergence.control_flow import FlowNode, ScopeNode, function_of, has_line
from commtrace.analyze.divergence.program_text import CallChain, ProgramText

_GROUPS = ("group", "process_group", "pg")
_MOST_LINKS = 4
_Sides = list[list[ast.AST]]


def choosing(tree: ast.Module, functions: Collection[str]) -> list[FlowNode]:
    """Return the conditions of a file by which one of two functions is chosen, or their order.

    Conditions that are alike on all ranks are left out, and so are those around another one.
    """
    found = []
    for node in ast.walk(tree):
        sides = _sides_of(node)
        if not sides:
            continue
        around = function_of(tree, node)
        named = [_named(side, functions) for side in sides]
        is_choice = any(named) and len({*map(tuple, named)}) > 1
        if (
            is_choice
            and {*_named([around], functions)} == {*functions}
            and _may_differ(node, around)
        ):
            found.append(node)
    inner = [node for node in found if not any(_is_around(node, each) for each in found)]
    return [FlowNode(node, getattr(node, "lineno", 0)) for node in inner]


def _sides_of(node: ast.AST) -> _Sides:
    if isinstance(node, ast.IfExp):
        return [[node.body], [node.orelse]]
    if isinstance(node, ast.If):
        return [[*node.body], [*node.orelse]]
    return [[*case.body] for case in node.cases] if isinstance(node, ast.Match) else []


def _named(parts: Collection[ast.AST], functions: Collection[str]) -> list[str]:
    """Return which of the functions some parts mention, in the order of the source."""
    return [name for part in parts for name in _names_in(part) if name in functions]


def _names_in(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.Attribute):
        yield part.attr
    elif isinstance(part, ast.Name):
        yield part.id
    for each in ast.iter_child_nodes(part):
        yield from _names_in(each)


def _may_differ(node: ast.AST, around: ScopeNode) -> bool:
    test = node.subject if isinstance(node, ast.Match) else getattr(node, "test", None)
    return test is not None and ConditionNames(around).cost(test) < ALIKE


def _is_around(node: ast.AST, inner: ast.AST) -> bool:
    return node is not inner and any(each is inner for each in ast.walk(node))


def choosing_group(text: ProgramText, chain: CallChain) -> tuple[str, FlowNode] | None:
    """Return the file and condition by which the group of a call was chosen; None if unknown.

    The argument is followed to the names, parameters and functions that it comes from.
    """
    *callers, frame = chain
    graph = text.graph(frame)
    at = graph.at(frame.line) if graph is not None else []
    passed = [
        keyword.value
        for node in at[:1]
        for each in ast.walk(node.part or ast.Module([], []))
        if isinstance(each, ast.Call)
        for keyword in each.keywords
        if keyword.arg in _GROUPS
    ]
    if graph is None or len(passed) != 1:
        return None
    return _origin(text, tuple(callers), frame.file, graph.function, passed[0], _MOST_LINKS)


def _origin(
    text: ProgramText,
    callers: CallChain,
    file: str,
    function: ScopeNode,
    value: ast.expr,
    links: int,
) -> tuple[str, FlowNode] | None:
    """Return the condition by which a value in a function was chosen."""
    if isinstance(value, ast.IfExp):
        may_differ = _may_differ(value, function)
        return (file, FlowNode(value, value.lineno, value.lineno)) if may_differ else None
    if not links:
        return None
    if isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        found = [*_functions_named(text.tree(file), name)]
        returned = [
            each.value
            for each in (ast.walk(found[0]) if len(found) == 1 else ())
            if isinstance(each, ast.Return) and each.value is not None
        ]
        return _one_of(text, (), file, found[0], returned, links) if returned else None
    if not isinstance(value, ast.Name):
        return None
    assigned = [
        each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id == value.id for to in each.targets)
    ]
    if assigned:
        return _one_of(text, callers, file, function, assigned, links)
    outer = text.graph(callers[-1]) if callers else None
    at = outer.at(callers[-1].line) if outer is not None else []
    given = [
        argument
        for node in at[:1]
        for each in ast.walk(node.part or ast.Module([], []))
        if isinstance(each, ast.Call)
        for argument in _arguments(each, function, value.id)
    ]
    if outer is None or len(given) != 1:
        return None
    return _origin(text, callers[:-1], callers[-1].file, outer.function, given[0], links - 1)


def _one_of(
    text: ProgramText,
    callers: CallChain,
    file: str,
    function: ScopeNode,
    values: list[ast.expr],
    links: int,
) -> tuple[str, FlowNode] | None:
    """Return the condition under which one of several values is taken; of one, its own."""
    if len(values) == 1:
        return _origin(text, callers, file, function, values[0], links - 1)
    around = [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.If)
        and _may_differ(each, function)
        and any(has_line(each, value.lineno) for value in values)
    ]
    return (file, FlowNode(around[0], around[0].lineno)) if len(around) == 1 else None


def _functions_named(tree: ast.Module | None, name: str) -> Iterator[ScopeNode]:
    for each in ast.walk(tree) if tree is not None else ():
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name:
            yield each


def _arguments(call: ast.Call, function: ScopeNode, name: str) -> Iterator[ast.expr]:
    """Yield what a call of a function passes as a parameter."""
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if isinstance(function, (ast.Module, ast.Lambda)) or called != function.name:
        return
    yield from (each.value for each in call.keywords if each.arg == name)
    names = [each.arg for each in function.args.args]
    is_method = names[:1] == ["self"] and isinstance(call.func, ast.Attribute)
    place = names.index(name) - is_method if name in names else len(call.args)
    yield from call.args[place : place + 1]
