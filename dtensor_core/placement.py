"""Placements: the layout of a tensor along a mesh axis. Values only, without communication.

`Shard(dim)` splits a dimension into `torch.chunk` pieces. `Replicate()` holds the full tensor
everywhere. `Partial(reduce_op)` holds partial values whose reduction over the axis is the value.
`_StridedShard` takes the same share of each of `split_factor` equal blocks. Placements are
interned: equal means identical, so they hash and compare at pointer speed. Shard arithmetic is in
`layout`, the steps between placements in `redistribute.transitions`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, ClassVar

import torch

from dtensor_core.errors import PlacementError
from dtensor_core.torch_internals import placements as _torch
from dtensor_core.torch_internals.compilation import (
    maybe_unwrap_fake_script_object,
    register_constant,
)

REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
# An alias that programs use; it is kept as written.
_ALIASES = {"prod": "product"}
# The reduction of norms: `norm2` of values a, b is sqrt(a² + b²). Made by norm operators.
_NORM = re.compile(r"norm\d+(\.\d+)?")


def norm_exponent(reduce_op: str) -> float | None:
    """Return the p of a reduction of p-norms, None for the other reductions."""
    return float(reduce_op.removeprefix("norm")) if _NORM.fullmatch(reduce_op) else None


def reduction(reduce_op: str) -> str:
    """Return the name of a reduction as collectives know it."""
    return _ALIASES.get(reduce_op, reduce_op)


class Placement:
    """Base class of the placements. Instances are frozen; equal instances are the same object."""

    # The slots of a subclass are the arguments of its constructor, in order.
    __slots__ = ("__weakref__", "num_blocks", "sharded_dim", "text")

    sharded_dim: int | None
    """The dimension that the placement shards, strided or not; None if it shards none."""
    num_blocks: int
    """The number of blocks of a sharded dimension: 1 but for a strided shard."""
    text: str
    """The short form, such as `S(0)`."""
    letter: ClassVar[str]
    """S for a shard of any kind, R or P; the row and column in the table of transitions."""

    _interned: ClassVar[dict[tuple[Any, ...], Placement]] = {}

    @classmethod
    def _intern(cls, *arguments: Any) -> Any:
        key = (cls, *arguments)
        known = Placement._interned.get(key)
        if known is None:
            made = object.__new__(cls)
            for name, argument in zip(cls.__slots__, arguments, strict=True):
                object.__setattr__(made, name, argument)
            object.__setattr__(made, "sharded_dim", getattr(made, "dim", None))
            object.__setattr__(made, "num_blocks", getattr(made, "split_factor", 1))
            object.__setattr__(made, "text", made._short())
            # One atomic step: threads that make equal placements at once get the same object.
            known = Placement._interned.setdefault(key, made)
        return known

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self.__slots__))

    # Equality is identity; explicit so that torch.compile can treat placements as constants.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """Return an expression for this placement and the names in it, as a constant of a graph."""
        make, arguments = self.__reduce__()
        name = f"dtensor_core_{make.__name__}"
        return f"{name}{arguments!r}", {name: make}

    def __copy__(self) -> Placement:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        return self

    def __str__(self) -> str:
        return self.text

    def _short(self) -> str:
        return self.letter

    def is_shard(self, dim: int | None = None) -> bool:
        """True for `Shard`, of dimension `dim` if given."""
        return False

    def is_replicate(self) -> bool:
        """True for `Replicate`."""
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True for `Partial`, with reduction `reduce_op` if given."""
        return False


class Shard(Placement):
    """Dimension `dim` is split into `torch.chunk` pieces over the axis."""

    __slots__ = ("dim",)
    letter = "S"

    dim: int
    """The sharded tensor dimension; may be negative until it is applied to a tensor."""

    def __new__(cls, dim: int) -> Shard:
        """Return the interned instance for `dim`."""
        if not isinstance(dim, int):
            raise PlacementError(f"Shard takes an integer dimension, got {dim!r}")
        return cls._intern(dim)

    def is_shard(self, dim: int | None = None) -> bool:
        """True, unless another dimension is given."""
        return dim is None or dim == self.dim

    @staticmethod
    def local_shard_size_and_offset(
        curr_local_size: int, num_chunks: int, rank: int
    ) -> tuple[int, int]:
        """Return length and offset of chunk `rank` of a dimension; an empty chunk is at its end.

        Args:
            curr_local_size: The size of the dimension.
            num_chunks: The number of chunks.
            rank: The number of the chunk.
        """
        chunk = -(-curr_local_size // num_chunks)
        offset = min(chunk * rank, curr_local_size)
        return min(chunk, curr_local_size - offset), offset

    def _split_tensor(
        self,
        tensor: torch.Tensor,
        num_chunks: int,
        *,
        with_padding: bool = True,
        contiguous: bool = True,
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Split a tensor into a piece per coordinate; torch's name, used by tests.

        With padding, all pieces are as long as the longest. Also returns the padding of each piece.
        """
        size = tensor.size(self.dim)
        chunks = [self.local_shard_size_and_offset(size, num_chunks, n) for n in range(num_chunks)]
        pieces = [tensor.narrow(self.dim, offset, length) for length, offset in chunks]
        short = [chunks[0][0] - length for length, _ in chunks] if with_padding else []
        after = [0] * (2 * (tensor.ndim - self.dim) - 1)
        if any(short):
            pieces = [
                torch.nn.functional.pad(piece, (*after, missing))
                for piece, missing in zip(pieces, short, strict=True)
            ]
        return [piece.contiguous() for piece in pieces] if contiguous else pieces, short

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"

    def _short(self) -> str:
        return f"S({self.dim})"


class _StridedShard(Placement):
    """Dimension `dim` is divided into `split_factor` equal blocks; each rank has its chunk of each.

    A shard becomes strided when its dimension is flattened behind an unsharded dimension: in
    `[b, h] -> [(b h)]` with h sharded, the result is `_StridedShard(0, split_factor=b)`.
    """

    __slots__ = ("dim", "split_factor")
    letter = "S"

    dim: int
    """The sharded tensor dimension."""
    split_factor: int
    """The number of equal blocks that the dimension is divided into."""

    def __new__(cls, dim: int, *, split_factor: int) -> _StridedShard:
        if split_factor < 1:
            raise PlacementError(f"_StridedShard takes a positive split_factor, got {split_factor}")
        return cls._intern(dim, split_factor)

    def __reduce__(self) -> tuple[Any, ...]:
        return (strided_shard, (self.dim, self.split_factor))

    def __repr__(self) -> str:
        return f"_StridedShard(dim={self.dim}, sf={self.split_factor})"

    def _short(self) -> str:
        return f"_S({self.dim}, {self.split_factor})"


def strided_shard(dim: int, split_factor: int) -> _StridedShard:
    """Make a strided shard from positional arguments, for unpickling."""
    return _StridedShard(dim, split_factor=split_factor)


@lru_cache(maxsize=1024)
def shard_in_blocks(dim: int, num_blocks: int) -> Placement:
    """Return the shard of each of `num_blocks` equal blocks; a plain shard for a single block."""
    return Shard(dim) if num_blocks == 1 else _StridedShard(dim, split_factor=num_blocks)


class Replicate(Placement):
    """Every rank of the axis holds the full tensor."""

    __slots__ = ()
    letter = "R"

    def __new__(cls) -> Replicate:
        """Return the interned instance."""
        return cls._intern()

    def is_replicate(self) -> bool:
        """True."""
        return True

    def __repr__(self) -> str:
        return "Replicate()"


class Partial(Placement):
    """Every rank holds a partial value; `reduce_op` over the axis reduces them to the value."""

    __slots__ = ("reduce_op",)
    letter = "P"

    reduce_op: str
    """The name of the pending reduction."""

    def __new__(cls, reduce_op: str = "sum") -> Partial:
        """Return the interned instance for `reduce_op`; see `REDUCE_OPS`."""
        known = reduce_op in REDUCE_OPS or reduce_op in _ALIASES
        if not known and norm_exponent(reduce_op) is None:
            raise PlacementError(
                f"Partial takes one of {', '.join(REDUCE_OPS)} as reduce_op, got {reduce_op!r}"
            )
        return cls._intern(reduce_op)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True, unless another reduction is given."""
        return reduce_op is None or reduce_op == self.reduce_op

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def _short(self) -> str:
        return f"P({self.reduce_op})"


def as_placement(value: Any) -> Placement:
    """Return a placement as ours: unchanged, or converted from torch's DTensor.

    Also unwraps placements returned by graphs of torch.compile.

    Raises:
        PlacementError: The value is no placement.
    """
    value = maybe_unwrap_fake_script_object(value)
    if isinstance(value, Placement):
        return value
    if isinstance(value, _torch.Shard):
        return Shard(value.dim)
    if isinstance(value, _torch.StridedShard):
        return _StridedShard(value.dim, split_factor=value.split_factor)
    if isinstance(value, _torch.Replicate):
        return Replicate()
    if type(value).__name__ == "_NormPartial":
        return Partial(f"norm{value.norm_type}")
    if type(value).__name__ == "Partial" and isinstance(value, _torch.Partial):
        return Partial(value.reduce_op)
    raise PlacementError(f"{value!r} is no placement; use Shard(dim), Replicate() or Partial()")


# torch.compile treats placements as constants, and queries the real ones while it traces.
register_constant(
    Placement,
    (
        "is_shard", "is_replicate", "is_partial", "__eq__", "__hash__", "__repr__", "__str__",
    ),
)  # fmt: skip
