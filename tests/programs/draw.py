"""Random choices under constraints: a tensor with a property, a partner for it, a dim, a layout.

A `Draw` holds the tensors of an unfinished program with their values on a single device. If no
tensor of the program fits, a new one is created.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core import Partial, Placement, Replicate, Shard, _StridedShard
from tests.programs.database import Sampled
from tests.programs.given import MEMORIES, Given
from tests.programs.program import PRECISIONS

MESHES = (
    *((2,), (3,), (4,), (1,), (5,), (6,), (7,), (8,)),
    *((2, 2), (2, 3), (3, 2), (3, 1), (2, 4)),
    *((2, 1, 2), (2, 2, 2), (1, 3, 2)),
)
_MESH_WEIGHTS = (8, 6, 6, 1, 1, 2, 1, 2, 8, 3, 2, 1, 1, 2, 2, 1)
_SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12)
_SIZE_WEIGHTS = (1, 4, 6, 7, 8, 6, 5, 4, 4, 2)
MOST_ELEMENTS = 3000


# Dtypes of programs, with weights.
_DTYPES = {
    torch.float64: 14,
    torch.float32: 3,
    torch.bfloat16: 1,
    torch.float16: 1,
    torch.complex128: 2,
    torch.int64: 2,
}
_SHAPES = ((5, 5), (5,), (10, 5), (5, 10), (5, 5, 5), (2, 3), (3, 3), (2, 3, 4), ())


class Draw:
    """The state of an unfinished program, and its random generator."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.mesh_shape = self.dice.choices(MESHES, _MESH_WEIGHTS)[0]
        self.dtype = self.dice.choices(list(_DTYPES), list(_DTYPES.values()))[0]
        self.rough = self.dtype is torch.float32
        kinds = ("normal", "exact", "special")
        self.kind = self.dice.choices(kinds, (8, 3, 0 if self.dtype.is_complex else 1))[0]
        self.values: dict[str, Any] = {}
        self.given: list[Given] = []
        self.new(self.shape(self.one_of((2, 3))))

    @property
    def floating(self) -> torch.dtype:
        """The narrowest floating type of the program."""
        return self.dtype if self.dtype in PRECISIONS else torch.float64

    def tensors(self) -> dict[str, torch.Tensor]:
        """The variables that are tensors."""
        return {name: v for name, v in self.values.items() if isinstance(v, torch.Tensor)}

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.dice.random() < probability

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Choose one of them."""
        return self.dice.choice(choices)

    def size(self) -> int:
        """Choose the size of a dimension."""
        return self.dice.choices(_SIZES, _SIZE_WEIGHTS)[0]

    def shape(self, ndim: int) -> tuple[int, ...]:
        """Choose a shape with few elements; often one from torch's operator database."""
        usual = [shape for shape in _SHAPES if len(shape) == ndim]
        if usual and self.chance(0.4):
            return self.one_of(usual)
        return tuple(self.size() for _ in range(ndim))

    def tensor(
        self, fits: Callable[[torch.Tensor], bool] = lambda _: True, *, ndim: int | None = None
    ) -> str:
        """Choose a tensor of numbers that fits, newer ones more often; create one if none fits."""
        found = [
            name
            for name, value in self.tensors().items()
            if self.is_usual(value) and (ndim is None or value.ndim == ndim) and fits(value)
        ]
        if found and self.chance(0.9):
            return self.dice.choices(found, range(1, len(found) + 1))[0]
        while True:
            shape = self.shape(self.dice.choice((1, 2, 2, 3, 3, 4)) if ndim is None else ndim)
            if fits(torch.empty(shape)):
                return self.new(shape)

    def of_dtype(self, *dtypes: torch.dtype) -> str | None:
        """Choose a tensor of the program with any of these dtypes."""
        found = [name for name, value in self.tensors().items() if value.dtype in dtypes]
        return self.dice.choice(found) if found else None

    def is_usual(self, value: torch.Tensor) -> bool:
        """True for floating tensors, and for tensors of the program's dtype."""
        return value.is_floating_point() or value.dtype is self.dtype

    def new(self, shape: Sequence[int], dtype: torch.dtype | None = None, high: int = 5) -> str:
        """Create an input tensor with a random layout."""
        if dtype is None:
            wide = self.dtype is torch.float32 and self.chance(0.5)
            dtype = torch.float64 if wide else self.dtype
        memory = self.dice.choices(MEMORIES, (12, 2, 2, 1))[0]
        placements = self.layout(len(shape), dtype, pending=high == 5)
        if memory == "expanded" and any(each.is_partial() for each in placements):
            memory = "dense"  # rounding of partial sums makes equal numbers unequal: no ties
        return self.add(
            Given(
                name=f"a{len(self.given)}",
                shape=tuple(shape),
                dtype=dtype,
                high=high,
                seed=self.dice.randrange(1 << 30),
                requires_grad=_differentiable(dtype) and self.chance(0.6) and tuple(shape) != (0,),
                placements=placements,
                values=self.kind,
                memory=memory,
                tight=self.chance(0.5),
            )
        )

    def sample(self, sample: Sampled, tensor: torch.Tensor) -> str:
        """Create an input from a tensor of the operator database, with a random layout."""
        dtype, shape = tensor.dtype, tuple(tensor.shape)
        return self.add(
            Given(
                name=f"a{len(self.given)}",
                shape=shape,
                dtype=dtype,
                high=0,
                seed=self.dice.randrange(1 << 30),
                requires_grad=_differentiable(dtype) and self.chance(0.5) and shape != (0,),
                placements=self.layout(len(shape), dtype, pending=_differentiable(dtype)),
                sample=sample,
            )
        )

    def add(self, given: Given) -> str:
        """Add an input to the program."""
        self.given.append(given)
        self.values[given.name] = given.full().requires_grad_(given.requires_grad)
        return given.name

    def layout(self, ndim: int, dtype: torch.dtype, *, pending: bool) -> tuple[Placement, ...]:
        """Choose placements for a tensor; all Partials have the same reduction."""
        strided = [
            _StridedShard(self.dice.randrange(ndim), split_factor=self.one_of((2, 2, 3)))
            for _ in range(1 if ndim and self.chance(0.2) else 0)
        ]
        choices: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(ndim)), *strided]
        weights = [2, *(3 for _ in range(ndim)), *(3 for _ in strided)]
        if pending and dtype is not torch.bool and self.chance(0.35):
            choices.append(Partial(self.one_of(_reductions(dtype))))
            weights.append(4)
        return tuple(self.dice.choices(choices, weights)[0] for _ in self.mesh_shape)

    def partner(self, name: str) -> str:
        """Choose a floating tensor that broadcasts with this tensor."""
        shape = self.values[name].shape
        found = [
            other
            for other, value in self.tensors().items()
            if self.is_usual(value) and _broadcast_size(shape, value.shape) <= MOST_ELEMENTS
        ]
        if found and self.chance(0.6):
            return self.one_of(found)
        return self.new(self.reduced(shape))

    def reduced(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Choose a shape that broadcasts to this shape."""
        kept = shape[self.dice.randrange(len(shape) + 1) if self.chance(0.3) else 0 :]
        return tuple(1 if self.chance(0.2) else size for size in kept)

    def dim(self, name: str) -> int:
        """Choose a dimension of a tensor that has any, counted from either end."""
        ndim = self.values[name].ndim
        return self.dice.randrange(-ndim, ndim)

    def dims(self, name: str) -> list[int]:
        """Choose some dimensions of a tensor that has any."""
        ndim = self.values[name].ndim
        return sorted(self.dice.sample(range(ndim), self.dice.randint(1, ndim)))

    def scalar(self) -> float:
        """Choose a number that is not an integer."""
        return self.one_of((0.5, 1.5, -0.75, 2.25, 0.3125))

    def factors(self, count: int) -> list[int]:
        """Choose sizes with this product."""
        sizes: list[int] = []
        while count > 1 and len(sizes) < 3:
            divisors = [n for n in range(2, count + 1) if count % n == 0]
            sizes.append(self.one_of(divisors))
            count //= sizes[-1]
        if count > 1:
            sizes.append(count)
        if self.chance(0.2):
            sizes.insert(self.dice.randint(0, len(sizes)), 1)
        return sizes


def _broadcast_size(one: Sequence[int], other: Sequence[int]) -> float:
    """Number of elements of two broadcast shapes; infinite if they do not broadcast."""
    try:
        return torch.broadcast_shapes(one, other).numel()
    except RuntimeError:
        return float("inf")


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _reductions(dtype: torch.dtype) -> tuple[str, ...]:
    """Reductions for partial placements of a tensor of this dtype."""
    if dtype.is_complex:
        return ("sum", "sum", "avg")
    if not dtype.is_floating_point:
        return ("sum", "sum", "max", "min", "product")
    return ("sum", "sum", "sum", "max", "min", "avg", "product")
