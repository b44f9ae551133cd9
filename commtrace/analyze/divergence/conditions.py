"""Likelihood that ranks differ in a condition or in the length of a loop, from its source.

A condition on the rank is computed with the number of each rank, as far as it is known. Conditions
on counters and constants have the same value on all ranks; so, most likely, do conditions on steps,
on the configuration, or on the remainder of a count. An unlikely difference has a high cost.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from commtrace.analyze.divergence.syntax import ScopeNode, expressions_in, name_of, names_of

IMPOSSIBLE = float("inf")
OF_RANK, OF_DATA, OF_ANYTHING, OF_ATTRIBUTE, ALIKE = 0.0, 0.75, 1.0, 2.5, 4.0
"""Costs of a parting by what a condition or an iterable is computed from."""

_RANK = re.compile(r"(global_)?rank", re.IGNORECASE)
_RANK_0 = re.compile(r"is_(main|master|global_zero|rank_(zero|0))(_process)?(_rank)?")
_ABOUT_RANK = re.compile(
    r"(.*_)?ranks?(_.*)?|is_(main|master|leader|first|last)\w*|\w*_(leader|main|master)"
    r"|(pp|tp|dp|cp|ep)_(index|coord)|is_global_zero", re.IGNORECASE
)  # fmt: skip
_ON_RANK = re.compile(
    r"\w*(main_process|master|rank_?(zero|0)|last_process|on_process|main_only|(main|first)_rank)\w*",
    re.IGNORECASE,
)  # fmt: skip
"""Decorators of functions that only some ranks run."""
_ABOUT_DATA = re.compile(r"\w*(batch|load|data|sample|shard|example|token)\w*", re.IGNORECASE)
_ABOUT_CONFIGURATION = re.compile(
    r"(global_|current_|start_|max_|num_|n_|total_|train_|last_)*(step|epoch|iteration|iter|it)s?(_\w+)?"
    r"|c(on)?fg\w*|c?onfig\w*|args|arguments|options|opts?|settings|hparams|hyperparameters|flags"
    r"|world_size|\w+_(every|interval|freq|frequency|steps|epochs)|every|interval",
    re.IGNORECASE,
)  # fmt: skip
_ABOUT_MODEL = re.compile(r"(\w+_)?(params?|parameters|buffers|weights|grads|gradients)")
_ONE_OF_MODEL = re.compile(r"(\w+_)?(param|parameter|buffer|weight)")
_ABOUT_GRADIENT = re.compile(r"(\w+_)?grads?|gradients?")
_LASTING = re.compile(
    r"self|dist|torch|distributed|(get_)?((global|local|node)_)*rank|(get_)?world(_size)?"
    r"|is_(main|master|global_zero|rank_(zero|0))(_process)?(_rank)?", re.IGNORECASE
)  # fmt: skip
"""Names of modules, and of what a process is for its whole life."""
_OPERATIONS = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.operator, ast.cmpop, ast.boolop, ast.unaryop,
)  # fmt: skip
_COLLECTIONS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
_UNKNOWN = object()
_COUNTER = ast.Constant(0)
"""Value of a name that counts from 0."""
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_COUNTS = ("range", "enumerate", "len", "min", "max", "int", "bool", "abs", "round", "reversed")
_SEEDING = ("manual_seed", "seed", "Random", "RandomState", "default_rng")
_CONDITIONAL = (ast.If, ast.While, ast.Try, ast.Match, ast.ExceptHandler, ast.IfExp, ast.BoolOp)
_MOST_LINKS = 4


def decorator_of_rank(function: ScopeNode) -> ast.expr | None:
    """Return the decorator by which only some ranks run a function; None if it has none."""
    decorators = getattr(function, "decorator_list", [])
    return next((each for each in decorators if _ON_RANK.fullmatch(name_of(each))), None)


class ConditionNames:
    """Names that a function assigns: their values, as expressions, and the counters among them."""

    def __init__(self, function: ScopeNode, constants: Collection[str] = ()) -> None:
        self._constants = constants
        self._values: dict[str, list[ast.expr | None]] = {}
        self._of_model: set[str] = set()
        """Names of a model's parameters and the like: targets of loops over them."""
        for node, is_conditional in _nodes_of(function):
            self._note(node, is_conditional)
        for each in ast.walk(getattr(function, "args", None) or ast.Tuple([])):
            if isinstance(each, ast.arg):
                self._add(each, None)

    def _note(self, node: ast.AST, is_conditional: bool) -> None:
        """Note what a node assigns; None where the value depends on the way that was taken."""
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
                is_name = isinstance(each, ast.Name) and not is_conditional
                self._add(each, node.value if is_name else None)
        elif isinstance(node, ast.AugAssign):
            self._add(node.target, None)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._add_targets(node.target, node.iter)
            if _is_over_model(node):
                self._of_model |= {*names_of(node.target)}
        elif isinstance(node, (ast.withitem, ast.comprehension, ast.ExceptHandler, ast.Global)):
            self._add(node, None)

    def _add(self, target: ast.AST, value: ast.expr | None) -> None:
        names = [each.id for each in ast.walk(target)
                 if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]  # fmt: skip
        if isinstance(target, ast.arg):
            names = [target.arg]
        for name in names:
            self._values.setdefault(name, []).append(value)

    def _add_targets(self, target: ast.expr, iterable: ast.expr) -> None:
        called = _called(iterable)
        parts: list[ast.expr] = []
        if isinstance(target, ast.Tuple) and isinstance(iterable, ast.Call):
            parts = {"enumerate": [_COUNTER, *iterable.args[:1]], "zip": iterable.args}.get(
                called, []
            )
        if called in ("range", "count"):
            self._add(target, iterable if called == "range" else _COUNTER)
        elif isinstance(target, ast.Tuple) and len(target.elts) == len(parts):
            for each, part in zip(target.elts, parts, strict=True):
                self._add_part(each, part)
        else:
            self._add(target, None)

    def _add_part(self, target: ast.expr, iterable: ast.expr) -> None:
        if iterable is _COUNTER:
            self._add(target, iterable)
        else:
            self._add_targets(target, iterable)

    def value_of(self, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to a name; None for none or several."""
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else None

    def is_alike(self, expression: ast.expr, links: int = _MOST_LINKS) -> bool:
        """Return whether an expression has counters and constants only."""
        if isinstance(expression, ast.Constant):
            return True
        if isinstance(expression, ast.Name):
            values = self._values.get(expression.id)
            if values is None:
                return expression.id.isupper() and not _ABOUT_RANK.fullmatch(expression.id)
            return links > 0 and all(
                value is not None and self.is_alike(value, links - 1) for value in values
            )
        if isinstance(expression, ast.Call):
            is_count = _called(expression) in _COUNTS and isinstance(expression.func, ast.Name)
            return is_count and all(self.is_alike(each, links) for each in expression.args)
        if isinstance(expression, (ast.List, ast.Tuple)):  # an empty one is filled later
            return bool(expression.elts) and not any(
                isinstance(each, ast.Starred) for each in expression.elts
            )
        if isinstance(expression, (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp)):
            parts = [
                each for each in ast.iter_child_nodes(expression) if isinstance(each, ast.expr)
            ]
            return all(self.is_alike(each, links) for each in parts)
        return False

    def truth(self, expression: ast.expr, rank: int) -> bool | None:
        """Return whether a condition holds on a rank; None if it is not known."""
        try:
            value = self._value(expression, rank, _MOST_LINKS)
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            return None
        return None if value is _UNKNOWN else bool(value)

    def _value(self, expression: ast.AST, rank: int, links: int) -> Any:
        if isinstance(expression, ast.Constant):
            return _UNKNOWN if expression is _COUNTER else expression.value
        if isinstance(expression, (ast.Name, ast.Attribute, ast.Call)):
            return self._named(expression, rank, links)
        if isinstance(expression, ast.UnaryOp):
            value = self._value(expression.operand, rank, links)
            if value is _UNKNOWN:
                return value
            if isinstance(expression.op, ast.Not):
                return not value
            return -value if isinstance(expression.op, ast.USub) else _UNKNOWN
        if isinstance(expression, ast.BoolOp):
            return self._joined(expression, rank, links)
        if isinstance(expression, ast.BinOp):
            compute = _ARITHMETIC.get(type(expression.op))
            sides = [self._value(each, rank, links) for each in (expression.left, expression.right)]
            return _UNKNOWN if compute is None or _UNKNOWN in sides else compute(*sides)
        if isinstance(expression, ast.Compare) and len(expression.ops) == 1:
            return self._compared(expression, rank, links)
        if isinstance(expression, (ast.List, ast.Tuple, ast.Set)):
            values = [self._value(each, rank, links) for each in expression.elts]
            return _UNKNOWN if _UNKNOWN in values else values
        return _UNKNOWN

    def _named(self, expression: ast.expr, rank: int, links: int) -> Any:
        name = name_of(expression)
        if isinstance(expression, ast.Call):
            if not expression.args and not expression.keywords:
                if name in ("get_rank", "get_global_rank"):
                    return rank
                if _RANK_0.fullmatch(name):
                    return rank == 0
            if name == "int" and len(expression.args) == 1 and _is_variable_of_rank(expression):
                return rank
            return _UNKNOWN
        value = self.value_of(name) if isinstance(expression, ast.Name) else None
        if value is not None and links:
            known = self._value(value, rank, links - 1)
            if known is not _UNKNOWN:
                return known
        if _RANK.fullmatch(name):
            return rank
        return rank == 0 if _RANK_0.fullmatch(name) else _UNKNOWN

    def _joined(self, expression: ast.BoolOp, rank: int, links: int) -> Any:
        values = [self._value(each, rank, links) for each in expression.values]
        decides = isinstance(expression.op, ast.Or)
        if any(value is not _UNKNOWN and bool(value) is decides for value in values):
            return decides
        return _UNKNOWN if _UNKNOWN in values else not decides

    def _compared(self, expression: ast.Compare, rank: int, links: int) -> Any:
        left = self._value(expression.left, rank, links)
        right = self._value(expression.comparators[0], rank, links)
        if left is _UNKNOWN or right is _UNKNOWN:
            return _UNKNOWN
        kind = type(expression.ops[0])
        if kind in (ast.In, ast.NotIn):
            return (left in right) is (kind is ast.In)
        compare = _COMPARISONS.get(kind)
        return _UNKNOWN if compare is None else compare(left, right)

    def cost(self, expression: ast.expr, *, is_length: bool = False) -> float:
        """Return the cost of ranks differing in a condition, or in the length of an iterable.

        Seeds decide on the order and values of what is drawn, but seldom on their number.
        """
        if self.is_alike(expression):
            return IMPOSSIBLE
        if isinstance(expression, ast.BoolOp):  # they may differ in any of its parts
            return min(self.cost(each) for each in expression.values)
        names = set(self._names_in(expression, _MOST_LINKS, _SEEDING if is_length else ()))
        if any(_ABOUT_RANK.fullmatch(name) for name in names):
            return OF_RANK
        if any(_ABOUT_DATA.fullmatch(name) for name in names):
            return OF_DATA
        if _is_remainder(expression):
            return ALIKE
        others = names - {"range", "len", "int", "bool", "self", "enumerate", "not", "math"}
        if names & self._of_model and not any(map(_ABOUT_GRADIENT.fullmatch, names)):
            return ALIKE
        if others and all(_ABOUT_CONFIGURATION.fullmatch(name) for name in others):
            return ALIKE
        return OF_ANYTHING

    def cost_of_loop(self, loop: ast.For | ast.AsyncFor) -> float:
        """Return the cost of ranks differing in the number of rounds of a loop.

        Attributes other than data, such as the layers of a model, are mostly alike, and so are
        collections that the function has built, and above all parameters; not so what a method of
        `self` makes of its arguments.
        """
        iterable = loop.iter
        cost = self.cost(iterable, is_length=True)
        value = self.value_of(iterable.id) if isinstance(iterable, ast.Name) else None
        if cost == OF_ANYTHING and isinstance(value, _COLLECTIONS):
            return OF_ATTRIBUTE
        if cost == OF_ANYTHING and _is_over_model(loop):
            return ALIKE
        parts = [*expressions_in(iterable)]
        calls = [each.func for each in parts if isinstance(each, ast.Call) and each.args]
        is_attribute = any(
            isinstance(each, ast.Attribute) and not (each in calls and _is_own(each))
            for each in parts
        )
        return OF_ATTRIBUTE if cost == OF_ANYTHING and is_attribute else cost

    def is_lasting(self, expression: ast.expr, links: int = _MOST_LINKS) -> bool:
        """Return whether a condition keeps the same value on a rank for its whole life.

        It depends on the rank, the world size, attributes that only `__init__` assigns, and on
        counters of loops over the ranks.
        """
        return all(
            isinstance(each, (ast.Constant, ast.expr_context, *_OPERATIONS))
            or (isinstance(each, ast.Attribute) and self._is_lasting_attribute(each))
            or (isinstance(each, ast.Name) and self._is_lasting_name(each.id, links))
            or (
                isinstance(each, ast.Call)
                and not each.args
                and bool(_LASTING.fullmatch(_called(each)))
            )
            for each in expressions_in(expression)
        )

    def _is_lasting_attribute(self, attribute: ast.Attribute) -> bool:
        return bool(_LASTING.fullmatch(attribute.attr)) or (
            _is_own(attribute) and attribute.attr in self._constants
        )

    def _is_lasting_name(self, name: str, links: int) -> bool:
        value = self.value_of(name)
        if value is not None and not _LASTING.fullmatch(name):
            return is_over_ranks(value) or (links > 0 and self.is_lasting(value, links - 1))
        return bool(_LASTING.fullmatch(name)) or (name.isupper() and name not in self._values)

    def _names_in(
        self, expression: ast.AST, links: int, ignored: Collection[str] = ()
    ) -> list[str]:
        """Return names in an expression and in their values, but for arguments of some calls."""
        found: list[str] = []
        parts = [*expressions_in(expression)]
        arguments = {
            id(inner)
            for each in parts
            if isinstance(each, ast.Call) and name_of(each) in ignored
            for argument in (*each.args, *each.keywords)
            for inner in ast.walk(argument)
        }
        for each in parts:
            if id(each) in arguments:
                continue
            if isinstance(each, ast.Attribute):
                found.append(each.attr)
            elif isinstance(each, ast.Name):
                found.append(each.id)
                value = self.value_of(each.id)
                if value is not None and links and not isinstance(value, ast.Constant):
                    found += self._names_in(value, links - 1, ignored)
        return found


def is_over_ranks(iterable: ast.expr) -> bool:
    """Return whether an iterable counts ranks, and so is as long in each round."""
    if not isinstance(iterable, ast.Call) or _called(iterable) != "range":
        return False
    return all(_LASTING.fullmatch(name_of(each)) for each in iterable.args)


def is_over_a_batch(iterable: ast.expr) -> bool:
    """Return whether a loop is over the transfers of a batch, so that it is part of the call."""
    return _called(iterable) == "batch_isend_irecv"


def _is_over_model(loop: ast.For | ast.AsyncFor) -> bool:
    """Return whether a loop is over the parameters of a model, or the like."""
    return bool(_ABOUT_MODEL.fullmatch(name_of(loop.iter))) or any(
        map(_ONE_OF_MODEL.fullmatch, names_of(loop.target))
    )


def _nodes_of(function: ScopeNode) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the nodes of a function, not of those in it, with whether a condition is around."""
    left = [(each, False) for each in ast.iter_child_nodes(function)]
    while left:
        node, is_conditional = left.pop()
        yield node, is_conditional
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            is_conditional = is_conditional or isinstance(node, _CONDITIONAL)
            left += [(each, is_conditional) for each in ast.iter_child_nodes(node)]


def _is_own(attribute: ast.expr) -> bool:
    """Return whether an expression is an attribute of `self`."""
    return isinstance(attribute, ast.Attribute) and getattr(attribute.value, "id", "") == "self"


def _called(expression: ast.expr) -> str:
    return name_of(expression) if isinstance(expression, ast.Call) else ""


def _is_remainder(expression: ast.AST) -> bool:
    """Return whether a remainder decides, as in conditions on periodic work."""
    if isinstance(expression, ast.BoolOp):
        return any(map(_is_remainder, expression.values))
    if isinstance(expression, ast.UnaryOp):
        return _is_remainder(expression.operand)
    if isinstance(expression, ast.Compare):
        return any(map(_is_remainder, (expression.left, *expression.comparators)))
    return isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mod)


def _is_variable_of_rank(expression: ast.Call) -> bool:
    """Return whether a call converts the environment's variable RANK."""
    constants = [each.value for each in ast.walk(expression) if isinstance(each, ast.Constant)]
    return "RANK" in constants
