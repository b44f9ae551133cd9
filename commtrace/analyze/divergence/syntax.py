"""Lookups in the syntax tree of a file: functions, the expressions of a statement, and names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TypeGuard

_Named = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = _Named | ast.Lambda | ast.Module
JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_EXITS = ("__exit__", "__aexit__")


def has_line(part: ast.AST | None, line: int) -> bool:
    """Return whether a statement has a line, its body included."""
    return getattr(part, "lineno", 0) <= line <= getattr(part, "end_lineno", 0)


def own_expressions(part: ast.AST) -> list[ast.expr]:
    """Return the expressions of a statement's own part, without its body."""
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
    """Return the name of a variable, an attribute, or a called function; else empty."""
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


def swallowing(tree: ast.Module | None) -> Iterator[str]:
    """Yield the names of a file's context managers that may swallow an exception.

    `__exit__` of these classes may return something true; these generators have `yield` in a `try`
    with a handler that does not raise.
    """
    for each in ast.walk(tree) if tree is not None else ():
        if isinstance(each, ast.ClassDef):
            exits = [one for one in each.body if getattr(one, "name", "") in _EXITS]
            values = [
                one.value
                for part in exits
                for one in ast.walk(part)
                if isinstance(one, ast.Return) and one.value is not None
            ]
            if any(not isinstance(value, ast.Constant) or value.value for value in values):
                yield each.name
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_manager = any("contextmanager" in name_of(one) for one in each.decorator_list)
            if is_manager and any(_catches_at_yield(one) for one in ast.walk(each)):
                yield each.name


def _catches_at_yield(part: ast.AST) -> bool:
    return (
        isinstance(part, ast.Try)
        and any(isinstance(each, ast.Yield) for line in part.body for each in ast.walk(line))
        and any(not isinstance(each.body[-1], ast.Raise) for each in part.handlers)
    )


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
