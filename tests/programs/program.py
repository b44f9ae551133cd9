"""Programs: input tensors, and statements on them, as source text.

The same statements run on plain tensors and on DTensors, so a program that fails can be printed as
a script. Names are `a0, a1, ...` for inputs and `v0, v1, ...` for results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from types import CodeType
from typing import NamedTuple

import torch

from tests.programs.given import Given

NAME = re.compile(r"\b[av]\d+\b")
_OPERATOR = re.compile(r"""\bop_?\(['"]([^'"]+)['"]""")


class Precision(NamedTuple):
    """Tolerance of results, and the size of nudges that test their stability."""

    tolerance: float
    stable: float
    nudge: float


# By the narrowest type of a program.
PRECISIONS = {
    torch.float64: Precision(1e-8, 1e-9, 1e-11),
    torch.float32: Precision(2e-3, 2e-4, 2e-6),
    torch.float16: Precision(2e-2, 8e-3, 5e-4),
    torch.bfloat16: Precision(1.5e-1, 6e-2, 4e-3),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement `targets = code`.

    Attributes:
        several: The code returns a list or tuple.
        in_place: The code may change the value of a variable.
        raises: One device refuses the code.
    """

    targets: tuple[str, ...]
    code: str
    several: bool = False
    in_place: bool = False
    raises: bool = False

    def compiled(self) -> CodeType:
        """Compile the right-hand side."""
        return _compile(self.code)

    def reads(self) -> set[str]:
        """The names on the right-hand side."""
        return names_in(self.code)

    def operators(self) -> list[str]:
        """The operators of the database that are called by name."""
        return _OPERATOR.findall(self.code)

    def __str__(self) -> str:
        if self.raises:
            return self.code
        targets = ", ".join(self.targets) + ("," if self.several else "")
        return f"{targets} = {self.code}"


def names_in(code: str) -> set[str]:
    """The variables of an expression."""
    return set(NAME.findall(code))


@lru_cache(maxsize=4096)
def _compile(code: str) -> CodeType:
    return compile(code, code, "eval")


@dataclass(frozen=True, slots=True)
class Program:
    """Inputs, statements, and the results to differentiate.

    `dtype` is the narrowest floating type of its values.
    """

    mesh_shape: tuple[int, ...]
    given: tuple[Given, ...]
    statements: tuple[Statement, ...]
    differentiated: tuple[str, ...]
    dtype: torch.dtype = torch.float64

    @property
    def ranks(self) -> int:
        """Number of ranks of the mesh."""
        return prod(self.mesh_shape)

    @property
    def precision(self) -> Precision:
        """Precision of the comparison, by the narrowest type also under autocast."""
        precision = PRECISIONS[self.dtype]
        if any("autocast(" in each.code for each in self.statements):
            return max(precision, PRECISIONS[torch.bfloat16])
        return precision

    def targets(self) -> set[str]:
        """The names of all results."""
        return {name for statement in self.statements for name in statement.targets}

    def without(self, dropped: set[str]) -> Program:
        """The program without these variables and all that depend on them."""
        gone = set(dropped)
        kept: list[Statement] = []
        for statement in self.statements:
            if gone & statement.reads() or gone & set(statement.targets):
                gone |= set(statement.targets)
            else:
                kept.append(statement)
        read = set().union(*(statement.reads() for statement in kept))
        differentiated = tuple(name for name in self.differentiated if name not in gone)
        given = tuple(g for g in self.given if g.name in read or g.name in differentiated)
        return replace(self, given=given, statements=tuple(kept), differentiated=differentiated)

    def script(self) -> str:
        """The program as Python that runs from the repository's root."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "import torch"
        yield "import torch.nn.functional as F"
        yield "from dtensor_core import init_device_mesh"
        yield "from dtensor_core.testing import run_threads"
        yield "from tests.programs.database import Sampled, op, op_, sampled"
        yield "from tests.programs.given import Given, placements_of"
        yield "from tests.programs.lay import lay, redistribute, summed"
        yield "from tests.programs.lists import autocast, foreach, plain, with_plain"
        yield ""
        yield ""
        yield "def body():"
        yield f'    mesh = init_device_mesh("cpu", {self.mesh_shape})'
        for given in self.given:
            yield f"    {given.name} = lay({given.source()}, mesh)"
        for statement in self.statements:
            if statement.raises:
                yield "    try:"
                yield f"        print('no error', {statement.code})"
                yield "    except Exception as error:"
                yield f"        print({statement.code!r}, repr(error))"
                continue
            yield f"    {statement}"
            yield f"    print({statement.code!r}, {', '.join(statement.targets)})"
        if self.differentiated:
            yield f"    ({total(self.differentiated)}).backward()"
            for given in self.given:
                if given.requires_grad:
                    yield f'    print("gradient of {given.name}", {given.name}.grad)'
        yield ""
        yield ""
        yield f"run_threads(body, {self.ranks})"


def total(names: tuple[str, ...]) -> str:
    """Expression of the scalar to differentiate: every element contributes, each differently."""
    return " + ".join(f"summed({name})" for name in names)
