"""Positions of a sharded dimension: those that a rank holds, and writes at them.

A rank that writes does so into a tensor with an extra position, where writes to positions of other
ranks land and are dropped. A position that no rank has is an error on every rank that sees it,
without communication. On a CPU `range_of` checks for it; where that would require waiting for a
device, the kernel gets a position that it refuses itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.errors import OutOfRangeError
from dtensor_core.layout import Extent
from dtensor_core.operators.kernels.local_operator import Local, refusing
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending, is_at_hand, no_modes

aten = torch.ops.aten


# Operators that count negative positions from the end; all others refuse them.
_FROM_THE_END = frozenset(
    {"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"}
    | {"index_fill", "take", "put", "embedding_renorm"}
)
# torch's error messages, where they differ from that of most kernels.
_FLAT = "out of range: tried to access index {at} on a tensor of {size} elements."
_TARGET = "Target {at} is out of bounds."
_MESSAGES = {"take": _FLAT, "put": _FLAT}
_MESSAGES |= dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward"], _TARGET)


def _name(op: Local) -> str:
    return op._schema.name.removeprefix("aten::").removesuffix("_")  # pyright: ignore


def first_of(op: Local, size: int) -> int:
    """Return the least position that an operator accepts in a dimension of this size."""
    return -size if _name(op) in _FROM_THE_END else 0


def range_of(op: Local, index: torch.Tensor, dim: int, size: int) -> tuple[int, int] | None:
    """Return the least and the largest position; None if unknown without waiting for a device.

    Raises:
        OutOfRangeError: The operator does not accept a position in a dimension of this size.
    """
    if not index.numel():
        return 0, 0
    if not is_at_hand(index):
        return None
    with no_modes():
        least, most = map(int, index.aminmax())
        first = first_of(op, size)
        if first <= least and most < size:
            return least, most
        at = int(index[(index < first) | (index >= size)][0])
    message = _MESSAGES.get(_name(op), "index out of range in self")
    raise OutOfRangeError(
        f"{op}: {message.format(at=at, size=size)}",
        found=f"index {at} is out of bounds for dimension {dim} with size {size}",
        why="no rank holds it",
        hint=f"positions from {first} to {size - 1}",
    )


class LocalPositions:
    """Positions of dimension `dim` of an argument of `op` that this rank holds, in local order.

    Attributes:
        all: True if every rank holds all positions.
    """

    def __init__(self, op: Local, spec: Spec, dim: int) -> None:
        self.dim, self.size, self._op = dim, spec.shape[dim] if spec.ndim else 1, op
        self.pieces = (spec.extents(dim) if spec.ndim else ()) or (Extent(0, 0),)
        self.count = sum(piece.size for piece in self.pieces) if spec.ndim else 1
        self.all = not spec.ndim or spec.num_shards_map[dim] == 1

    def local(self, index: torch.Tensor, instead: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return local positions, `instead` where the rank has none, and a mask of these cases.

        Positions that no rank has are replaced by a position in no local tensor, if checking them
        would require waiting for a device.

        Raises:
            OutOfRangeError: No rank has a position.
        """
        known = range_of(self._op, index, self.dim, self.size)
        if first_of(self._op, 1) < 0 and (known is None or known[0] < 0):
            index = torch.where(index < 0, index + self.size, index)
        found, elsewhere = self._found(index)
        if known is not None:
            return found.masked_fill_(elsewhere, instead), elsewhere
        # For a position in range this is `instead`. For any other it is at least the global size, a
        # position that no local tensor has.
        beyond = (index - index.remainder(self.size)).abs() + instead
        return torch.where(elsewhere, beyond, found), elsewhere

    def _found(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return local positions, and a mask of those that the rank does not hold."""
        if len(self.pieces) == 1:
            shifted, size = index - self.pieces[0].offset, self.pieces[0].size
            return shifted, (shifted < 0) | (shifted >= size)
        # A flattened dimension may be held in thousands of pieces.
        starts = itertools.accumulate((piece.size for piece in self.pieces), initial=0)
        held = sorted(each for each in zip(self.pieces, starts, strict=False) if each[0].size)
        if not held:
            return index, torch.ones_like(index, dtype=torch.bool)
        offsets, sizes, starts = index.new_tensor(
            [(piece.offset, piece.size, start) for piece, start in held]
        ).T.contiguous()
        which = (torch.bucketize(index.contiguous(), offsets, right=True) - 1).clamp_(min=0)
        shifted = index - offsets[which]
        return shifted + starts[which], (shifted < 0) | (shifted >= sizes[which])

    def or_padding(self, index: torch.Tensor) -> torch.Tensor:
        """Return local positions, or the position behind the last for other ranks' positions."""
        return self.local(index, self.count)[0]

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """Append a position to the local tensor that receives the writes for other ranks."""
        shape = list(x.shape)
        shape[self.dim] = 1
        return torch.cat([x, x.new_zeros(shape)], self.dim)

    def unpadded(self, x: torch.Tensor) -> torch.Tensor:
        """Remove the position that `padded` appended."""
        return x.narrow(self.dim, 0, self.count)

    def not_empty(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor, or zeros to read from if the rank holds nothing."""
        if self.count:
            return x
        shape = [1 if dim == self.dim else size for dim, size in enumerate(x.shape)]
        return depending(x.new_zeros(shape), x)


def writing(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write by the index at position 2 along the dimension at position 1."""
    in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]
    # The overload by its name: to look for it, torch prints the arguments for each that differs.
    functional: Any = op
    if in_place:
        packet, _, overload = str(op).removeprefix("aten.").partition(".")
        functional = getattr(getattr(aten, packet.removesuffix("_")), overload)

    of_all = refusing(op, inputs, op)

    def write(x: torch.Tensor, dim: int, index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        positions = LocalPositions(op, inputs[0], dim % max(x.ndim, 1))
        if positions.all:
            return of_all(x, dim, index, *args, **kwargs)
        made = positions.unpadded(
            functional(positions.padded(x), dim, positions.or_padding(index), *args, **kwargs)
        )
        return x.copy_(made) if in_place else made.contiguous()

    return write
