"""Conditions under which a backward pass reduces gradients, or goes on to a part of a model.

If both ranks run a backward pass but only one reduces in it, that rank is outside of `no_sync`
there, in the function that runs the pass or around it, or has not called the module within the
wrapper that reduces: `net if is_full else net.module`. The pass does not reach modules before
frozen parameters: `if is_pretrained: part.requires_grad_(False)`.
"""

from __future__ import annotations

import ast
from itertools import permutations

from commtrace.analyze.divergence.choosing import may_differ
from commtrace.analyze.divergence.control_flow import FlowGraph, FlowNode
from commtrace.analyze.divergence.splits import ends_in_jump, is_within
from commtrace.analyze.divergence.syntax import (
    expressions_in,
    function_of,
    functions_called,
    has_condition,
    has_line,
    name_of,
    own_expressions,
)

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
        if has_condition(node.part):
            return node
        deciding = [each for each in conditions if is_within(node, each)] or [
            each
            for each in conditions
            if each.first < node.first and ends_in_jump(getattr(each.part, "body", ()))
        ]
        if deciding:
            return max(deciding, key=lambda each: each.first)
    return None


def freezing(tree: ast.Module) -> list[FlowNode]:
    """Return the conditions of a file under which gradients are not required, or are."""
    found = []
    for each in ast.walk(tree):
        if isinstance(each, ast.If) and may_differ(each, function_of(tree, each)):
            inner = [node for part in (*each.body, *each.orelse) for node in ast.walk(part)]
            if any(map(_requires_gradients, inner)) and not any(
                isinstance(node, ast.If) and any(map(_requires_gradients, ast.walk(node)))
                for node in inner
            ):
                found.append(FlowNode(each, each.lineno))
    return found


def _requires_gradients(part: ast.AST) -> bool:
    """Return whether a node sets whether gradients are required."""
    if isinstance(part, ast.Call):
        return name_of(part) == "requires_grad_"
    targets = part.targets if isinstance(part, ast.Assign) else ()
    return any(getattr(each, "attr", "") == "requires_grad" for each in targets)


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
