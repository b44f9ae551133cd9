"""The notation of rules: a line of text for operators whose dimensions have fixed names.

    "m k, k n -> m n"              a product; k vanishes, so sharding it gives partial sums
    "n + m k, k n -> m n"          terms are added; Partial may pass through one factor of each
    "b s d!, d! -> b s d!"         d must be replicated
    "(h d) -> h d"                 a flattened dimension, outermost factor first

Letters are bound to sizes by the shapes of a call. An argument that has fewer dimensions, or size 1
where a letter is larger, is broadcast against the right end of its operand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dtensor_core.errors import NotationError
from dtensor_core.operators.rules.sharding_rule import Dim, Operand, Terms

_DIM = re.compile(r"\(([^)]*)\)|(\S+)")


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed line: operands of arguments and results, additive terms, blocked factors."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    terms: Terms
    blocked: frozenset[str]


@cache
def parse(text: str) -> Notation:
    """Parse a line of notation.

    Raises:
        NotationError: The line has no single arrow.
    """
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise NotationError(f"a rule has one '->', got {text!r}")
    inputs: list[Operand] = []
    terms: list[tuple[int, ...]] = []
    for term in left.split("+"):
        operands = [_operand(part) for part in term.split(",")]
        terms.append(tuple(range(len(inputs), len(inputs) + len(operands))))
        inputs.extend(operands)
    outputs = [_operand(part) for part in right.split(",")]
    names = re.findall(r"(\w+)!", text)
    return Notation(tuple(inputs), tuple(outputs), tuple(terms), frozenset(names))


def _operand(text: str) -> Operand:
    dims: list[Dim] = []
    for group, single in _DIM.findall(text):
        names = group.split() if group else [single]
        dims.append(tuple(name.rstrip("!") for name in names if name != "1"))
    return tuple(dims)


def bind(notation: Notation, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the size of every factor, from the shapes of the arguments.

    Raises:
        NotationError: A shape has more dimensions than its operand.
    """
    sizes: dict[str, int] = {}
    for operand, shape in zip(notation.inputs, shapes, strict=True):
        if len(shape) > len(operand):
            raise NotationError(f"shape {tuple(shape)} has more dimensions than {operand}")
        for dim, size in zip(operand[len(operand) - len(shape) :], shape, strict=True):
            if len(dim) == 1 and size != 1:
                sizes[dim[0]] = size
            elif len(dim) == 1:
                sizes.setdefault(dim[0], 1)
    return sizes


def broadcast(operand: Operand, shape: Sequence[int], sizes: dict[str, int]) -> Operand:
    """Return the operand of an argument of this shape, right-aligned; `()` for broadcast dims."""
    aligned = operand[len(operand) - len(shape) :]
    if 1 not in shape:
        return aligned
    return tuple(
        () if size == 1 and any(sizes[name] != 1 for name in dim) else dim
        for dim, size in zip(aligned, shape, strict=True)
    )
