"""A program: tensors that are given, and statements on them, as source text.

The same statements run on plain tensors and on DTensors, so a program that fails can be printed as
a script. Names are `a0, a1, ...` for what is given and `v0, v1, ...` for results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType

import torch

from dtensor_core import Partial, Placement, Replicate, Shard

_NAME = re.compile(r"\b[av]\d+\b")


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that a program starts from: its values follow from its seed."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    high: int  # integers lie in [0, high)
    seed: int
    requires_grad: bool
    placements: tuple[Placement, ...]

    def source(self) -> str:
        """The Python that makes this."""
        return (
            f"Given({self.name!r}, {self.shape}, {self.dtype}, high={self.high}, seed={self.seed}, "
            f"requires_grad={self.requires_grad}, "
            f'placements=placements_of("{text_of(self.placements)}"))'
        )

    def whole(self, nudge: float = 0.0) -> torch.Tensor:
        """The values, as one device has them; floating ones off by about `nudge`."""
        dice = torch.Generator().manual_seed(self.seed)
        if self.dtype is torch.bool:
            return torch.rand(self.shape, generator=dice) < 0.6
        if not self.dtype.is_floating_point:
            return torch.randint(max(self.high, 1), self.shape, generator=dice, dtype=self.dtype)
        whole = torch.randn(self.shape, generator=dice, dtype=torch.float64)
        off = torch.randn(self.shape, generator=dice, dtype=torch.float64) * nudge
        return (whole + off).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Statement:
    """`targets = code`; `several` if that gives a list or tuple.

    `in_place` if it may change what a variable holds.
    """

    targets: tuple[str, ...]
    code: str
    several: bool = False
    in_place: bool = False

    def compiled(self) -> CodeType:
        """The code of the right-hand side."""
        return _compile(self.code)

    def reads(self) -> set[str]:
        """The names on the right-hand side."""
        return set(_NAME.findall(self.code))

    def __str__(self) -> str:
        targets = ", ".join(self.targets) + ("," if self.several else "")
        return f"{targets} = {self.code}"


@lru_cache(maxsize=4096)
def _compile(code: str) -> CodeType:
    return compile(code, code, "eval")


@dataclass(frozen=True, slots=True)
class Program:
    """What is given, what is done, and the results whose gradients are asked for."""

    mesh_shape: tuple[int, ...]
    given: tuple[Given, ...]
    statements: tuple[Statement, ...]
    differentiated: tuple[str, ...]
    rough: bool  # some values are in single precision

    @property
    def ranks(self) -> int:
        """How many ranks it runs on."""
        total = 1
        for size in self.mesh_shape:
            total *= size
        return total

    def without(self, dropped: set[str]) -> Program:
        """The program without these variables and all that is made of them."""
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
        """The program as Python that can be run from the repository's root."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "import torch"
        yield "import torch.nn.functional as F"
        yield "from dtensor_core import init_device_mesh"
        yield "from dtensor_core.testing import run_threads"
        yield "from tests.dtensor_core.programs.lay import lay, redistribute"
        yield "from tests.dtensor_core.programs.program import Given, placements_of"
        yield ""
        yield ""
        yield "def body():"
        yield f'    mesh = init_device_mesh("cpu", {self.mesh_shape})'
        for given in self.given:
            yield f"    {given.name} = lay({given.source()}, mesh)"
        for statement in self.statements:
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
    """The scalar whose gradient is taken: every element counts, each differently."""
    return " + ".join(f"{name}.sin().sum()" for name in names)


def placements_of(text: str) -> tuple[Placement, ...]:
    """Placements from text: `"R S1 Psum"`."""
    return tuple(_placement(word) for word in text.split())


def text_of(placements: tuple[Placement, ...]) -> str:
    """The text that `placements_of` reads."""
    return " ".join(_word(placement) for placement in placements)


def _word(placement: Placement) -> str:
    if isinstance(placement, Shard):
        return f"S{placement.dim}"
    return f"P{placement.reduce_op}" if isinstance(placement, Partial) else "R"


def _placement(word: str) -> Placement:
    if word[0] == "S":
        return Shard(int(word[1:]))
    return Replicate() if word == "R" else Partial(word[1:])
