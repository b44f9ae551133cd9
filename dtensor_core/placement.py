"""Placements: how a tensor lies along one mesh axis. Values, nothing that communicates.

`Shard(dim)` cuts a dimension into `torch.chunk` pieces; `Replicate()` holds it whole everywhere;
`Partial(reduce_op)` holds addends whose reduction over the axis is the value; `_StridedShard`
takes the same share of each of `split_factor` equal blocks. Placements are interned: equal means
identical, so they hash and compare at pointer speed. The integers are in `layout`, the steps
between placements in `redistribute.transitions`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
import torch._C._distributed as _torch  # pyright: ignore[reportMissingModuleSource]
from torch._library.fake_class_registry import maybe_unwrap_fake_script_object
from torch._library.opaque_object import MemberType, register_opaque_type

from dtensor_core.errors import PlacementError

REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
# Another name that programs use; it stays as it is written.
_ALIASES = {"prod": "product"}
# The reduction of norms: `norm2` of addends a, b is sqrt(a² + b²). Made by norm operators.
_NORM = re.compile(r"norm\d+(\.\d+)?")


def norm_exponent(reduce_op: str) -> float | None:
    """The p of a reduction of p-norms, None for the other reductions."""
    return float(reduce_op.removeprefix("norm")) if _NORM.fullmatch(reduce_op) else None


def reduction(reduce_op: str) -> str:
    """The name under which collectives know a reduction."""
    return _ALIASES.get(reduce_op, reduce_op)


class Placement:
    """Base of the placements. Instances are frozen; equal instances are the same object."""

    # A kind's own slots are what its constructor takes, in order.
    __slots__ = ("__weakref__",)

    _interned: ClassVar[dict[tuple[Any, ...], Placement]] = {}

    @classmethod
    def _intern(cls, *arguments: Any) -> Any:
        key = (cls, *arguments)
        known = Placement._interned.get(key)
        if known is None:
            made = object.__new__(cls)
            for name, argument in zip(cls.__slots__, arguments, strict=True):
                object.__setattr__(made, name, argument)
            known = Placement._interned.setdefault(key, made)
        return known

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self.__slots__))

    # Equal is identical, said so that a compiler may take placements for values.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
        """An expression that makes this placement, and the names in it: a graph's constant."""
        make, arguments = self.__reduce__()
        name = f"dtensor_core_{make.__name__}"
        return f"{name}{arguments!r}", {name: make}

    def __copy__(self) -> Placement:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        return self

    def is_shard(self, dim: int | None = None) -> bool:
        """True for `Shard`, of that dimension if one is given."""
        return False

    def is_replicate(self) -> bool:
        """True for `Replicate`."""
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True for `Partial`, of that reduction if one is given."""
        return False


class Shard(Placement):
    """Dimension `dim` is cut into `torch.chunk` pieces over the axis."""

    __slots__ = ("dim",)

    dim: int
    """The tensor dimension that is cut; negative until it meets a tensor."""

    def __new__(cls, dim: int) -> Shard:
        """The one instance for `dim`."""
        if not isinstance(dim, int):
            raise PlacementError(f"Shard takes an integer dimension, got {dim!r}")
        return cls._intern(dim)

    def is_shard(self, dim: int | None = None) -> bool:
        """True, unless another dimension is asked for."""
        return dim is None or dim == self.dim

    @staticmethod
    def local_shard_size_and_offset(
        curr_local_size: int, num_chunks: int, rank: int
    ) -> tuple[int, int]:
        """How long chunk `rank` of a dimension is, and where it begins; an empty one at the end."""
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
        """A tensor's piece for each coordinate, as tests ask for it under torch's name.

        With padding, pieces are as long as the longest; by how much each was shorter is told.
        """
        size = tensor.size(self.dim)
        cuts = [self.local_shard_size_and_offset(size, num_chunks, n) for n in range(num_chunks)]
        pieces = [tensor.narrow(self.dim, offset, length) for length, offset in cuts]
        short = [cuts[0][0] - length for length, _ in cuts] if with_padding else []
        after = [0] * (2 * (tensor.ndim - self.dim) - 1)
        if any(short):
            pieces = [
                torch.nn.functional.pad(piece, (*after, missing))
                for piece, missing in zip(pieces, short, strict=True)
            ]
        return [piece.contiguous() for piece in pieces] if contiguous else pieces, short

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim})"

    def __str__(self) -> str:
        return f"S({self.dim})"


class _StridedShard(Placement):
    """Dimension `dim` is seen as `split_factor` equal blocks; each rank has its chunk of each.

    It is what a shard becomes when its dimension is flattened behind an unsharded one: in
    `[b, h] -> [(b h)]` with h sharded, the result is `_StridedShard(0, split_factor=b)`.
    """

    __slots__ = ("dim", "split_factor")

    dim: int
    """The tensor dimension that is cut."""
    split_factor: int
    """The number of equal blocks that the dimension is seen as."""

    def __new__(cls, dim: int, *, split_factor: int) -> _StridedShard:
        if split_factor < 1:
            raise PlacementError(f"_StridedShard takes a positive split_factor, got {split_factor}")
        return cls._intern(dim, split_factor)

    def __reduce__(self) -> tuple[Any, ...]:
        return (strided_shard, (self.dim, self.split_factor))

    def __repr__(self) -> str:
        return f"_StridedShard(dim={self.dim}, sf={self.split_factor})"

    def __str__(self) -> str:
        return f"_S({self.dim}, {self.split_factor})"


def strided_shard(dim: int, split_factor: int) -> _StridedShard:
    """The strided shard, by position: what a pickle calls."""
    return _StridedShard(dim, split_factor=split_factor)


class Replicate(Placement):
    """Every rank of the axis holds the whole tensor."""

    __slots__ = ()

    def __new__(cls) -> Replicate:
        """The one instance."""
        return cls._intern()

    def is_replicate(self) -> bool:
        """True."""
        return True

    def __repr__(self) -> str:
        return "Replicate()"

    def __str__(self) -> str:
        return "R"


class Partial(Placement):
    """Every rank holds an addend; the value is their reduction by `reduce_op` over the axis."""

    __slots__ = ("reduce_op",)

    reduce_op: str
    """Name of the reduction that the addends await."""

    def __new__(cls, reduce_op: str = "sum") -> Partial:
        """The one instance for `reduce_op`; see `REDUCE_OPS`."""
        known = reduce_op in REDUCE_OPS or reduce_op in _ALIASES
        if not known and norm_exponent(reduce_op) is None:
            raise PlacementError(
                f"Partial takes one of {', '.join(REDUCE_OPS)} as reduce_op, got {reduce_op!r}"
            )
        return cls._intern(reduce_op)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True, unless another reduction is asked for."""
        return reduce_op is None or reduce_op == self.reduce_op

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


def as_placement(value: Any) -> Placement:
    """A placement of ours: itself, or the equal of one of torch's DTensor.

    Graphs of torch.compile return placements wrapped.

    Raises PlacementError for anything else.
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


def sharded_dim(placement: Placement) -> int | None:
    """The dimension that a placement cuts, strided or not; None if it cuts none."""
    return placement.dim if isinstance(placement, (Shard, _StridedShard)) else None


def split_factor(placement: Placement) -> int:
    """The number of blocks a sharded dimension is seen as: 1 but for a strided shard."""
    return placement.split_factor if isinstance(placement, _StridedShard) else 1


# torch.compile takes placements for constants, and asks the real ones while it traces.
register_opaque_type(
    Placement,
    typ="value",
    members={
        name: MemberType.USE_REAL
        for name in (
            "is_shard", "is_replicate", "is_partial", "__eq__", "__hash__", "__repr__", "__str__",
        )
    },
)  # fmt: skip
