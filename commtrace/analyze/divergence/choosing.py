"""Statements that choose which of two functions is called next.

One line may call a function that was chosen elsewhere: `update(batch)` in a loop over the steps of
a schedule, or `handler()` from a table. If ranks called different functions there, a condition with
the names of both, one on each of its sides or both in another order, has chosen.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from commtrace.analyze.divergence.conditions import ALIKE, ConditionNames
from commtrace.analyze.divergence.control_flow import FlowNode
from commtrace.analyze.divergence.syntax import ScopeNode, function_of

_Sides = list[list[ast.AST]]


def choosing(tree: ast.Module, functions: Collection[str]) -> list[FlowNode]:
    """Return the conditions of a file that choose between two functions, or choose their order.

    Conditions that are alike on all ranks are left out, and so are conditions around another.
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
            and may_differ(node, around)
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


def may_differ(node: ast.AST, around: ScopeNode) -> bool:
    """Return whether ranks may differ in the condition of a statement or an expression."""
    test = node.subject if isinstance(node, ast.Match) else getattr(node, "test", None)
    return test is not None and ConditionNames(around).cost(test) < ALIKE


def _is_around(node: ast.AST, inner: ast.AST) -> bool:
    return node is not inner and any(each is inner for each in ast.walk(node))
