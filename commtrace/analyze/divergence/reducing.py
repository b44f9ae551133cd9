"""Conditions under which a backward pass reduces gradients.

A backward pass that both ranks run has reductions on one of them only if that one is outside of
`no_sync` there, in the function that runs it or around it, or if it has not called the module
within the wrapper that reduces: `net if is_full else net.module`.
"""

from __future__ import annotations

import ast
from itertools import permutations

from commtrace.analyze.divergence.control_flow import (
    FlowGraph,
    FlowNode,
    expressions_in,
    functions_called,
    has_condition,
    has_line,
    own_expressions,
)
from commtrace.analyze.divergence.splits import is_within

_NAMES = ("no_sync", "set_requires_gradient_sync", "require_backward_grad_sync")
"""Names by which a backward pass is told not to reduce gradients."""


def reducing(graph: FlowGraph) -> FlowNode | None:
    """Return the statement of a function that decides on reductions; None if there is none."""
    for node in graph.nodes:
        parts = [] if node.part is None else _expressions_of(node.part)
        if any(map(_unwraps, parts)):
            return node
        if not any(getattr(each, "attr", getattr(each, "id", "")) in _NAMES for each in parts):
            continue
        conditions = [each for each in graph.nodes if isinstance(each.part, ast.If)]
        around = [each for each in conditions if is_within(node, each)]
        if has_condition(node.part):
            return node
        if around:
            return max(around, key=lambda each: each.first)
    return None


def contexts_around(graph: FlowGraph, line: int) -> list[str]:
    """Return the names of the functions that make the contexts around a line."""
    return [
        name
        for part in {node.part for node in graph.nodes}
        if isinstance(part, (ast.With, ast.AsyncWith)) and has_line(part, line)
        for name in functions_called(part)
    ]


def _expressions_of(part: ast.AST) -> list[ast.AST]:
    return [each for expression in own_expressions(part) for each in expressions_in(expression)]


def _unwraps(expression: ast.AST) -> bool:
    """Return whether an expression chooses between a wrapper and the module within it."""
    if not isinstance(expression, ast.IfExp):
        return False
    sides = ast.unparse(expression.body), ast.unparse(expression.orelse)
    return any(one == f"{other}.module" for one, other in permutations(sides))
