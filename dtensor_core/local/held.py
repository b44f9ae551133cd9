"""Reading and writing at positions of which a rank holds some.

A rank that reads answers zeros for what it has not; one that writes does so into a tensor that is
longer by one, where what belongs to others lands and is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.local.operator import Local, LocalMaker
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


class Held:
    """Which positions of dimension `dim` of an argument this rank holds, in local order."""

    def __init__(self, spec: Spec, dim: int) -> None:
        self.dim, self.size = dim, spec.shape[dim] if spec.ndim else 1
        self.pieces = spec.held(dim) if spec.ndim else ()
        self.count = sum(piece.size for piece in self.pieces) if spec.ndim else 1
        self.all = self.count == self.size

    def local(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Local positions, 0 where the rank has none, and where it has none."""
        index = torch.where(index < 0, index + self.size, index)
        found, elsewhere, start = (
            torch.zeros_like(index),
            torch.ones_like(index, dtype=torch.bool),
            0,
        )
        for piece in self.pieces:
            here = (index >= piece.offset) & (index < piece.offset + piece.size)
            found = torch.where(here, index - piece.offset + start, found)
            elsewhere &= ~here
            start += piece.size
        return found, elsewhere

    def dumped(self, index: torch.Tensor) -> torch.Tensor:
        """Local positions; those of others are the one behind the last."""
        found, elsewhere = self.local(index)
        return found.masked_fill_(elsewhere, self.count)

    def longer(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor with a place for what belongs to others."""
        shape = list(x.shape)
        shape[self.dim] = 1
        return torch.cat([x, x.new_zeros(shape)], self.dim)

    def shorter(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor without that place."""
        return x.narrow(self.dim, 0, self.count)

    def not_empty(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor, or zeros to read from where the rank holds nothing."""
        if self.count:
            return x
        shape = [1 if dim == self.dim else size for dim, size in enumerate(x.shape)]
        return depending(x.new_zeros(shape), x)


def reading(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Read by an index along a dimension; where it points elsewhere the result is zero."""

    def read(x: torch.Tensor, dim: int, index: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        held = Held(inputs[0], dim % max(x.ndim, 1))
        if held.all:
            return op(x, dim, index, **kwargs)
        found, elsewhere = held.local(index)
        result = op(held.not_empty(x), dim, found, **kwargs)
        if elsewhere.ndim != result.ndim or elsewhere.shape != result.shape:
            elsewhere = elsewhere.reshape(-1, *[1] * (result.ndim - held.dim - elsewhere.ndim))
        return result.masked_fill_(elsewhere, 0)

    return read


def writing(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write by the index at position 2 along the dimension at position 1."""
    in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]
    functional = getattr(aten, op._schema.name.removeprefix("aten::").removesuffix("_"))  # pyright: ignore

    def write(x: torch.Tensor, dim: int, index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        held = Held(inputs[0], dim % max(x.ndim, 1))
        if held.all:
            return op(x, dim, index, *args, **kwargs)
        made = held.shorter(functional(held.longer(x), dim, held.dumped(index), *args, **kwargs))
        return x.copy_(made) if in_place else made.contiguous()

    return write


def slice_into(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Each rank writes the positions of the slice that it holds."""
    write = writing(aten.index_copy.default, inputs, outputs)

    def into(
        x: torch.Tensor,
        part: torch.Tensor,
        dim: int = 0,
        start: Any = None,
        end: Any = None,
        step: int = 1,
    ) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, start, end, step)
        places = torch.arange(inputs[0].shape[dim], device=x.device)[slice(start, end, step)]
        return write(x, dim, places, part.to(x.dtype))

    return into


def select_into(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """The rank that has the position writes it."""
    write = writing(aten.index_copy.default, inputs, outputs)

    def into(x: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
        if inputs[0].local_shape[dim] == inputs[0].shape[dim]:
            return op(x, part, dim, index)
        place = torch.tensor([index], device=x.device)
        return write(x, dim, place, part.unsqueeze(dim).to(x.dtype))

    return into


def reading_at(dims: Sequence[int], first: int) -> LocalMaker:
    """Read by several indices, whose dims start at `first` in the result."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        parts = [held for held in (Held(inputs[0], dim) for dim in dims) if not held.all]

        def read(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
            mine = list(indices)
            wide = torch.broadcast_shapes(*(each.shape for each in mine if each is not None))
            missing: list[torch.Tensor] = []
            for held in parts:
                mine[held.dim], elsewhere = held.local(_index_of(mine, held.dim))
                missing.append(elsewhere.expand(wide))
                x = held.not_empty(x)
            result = op(x, mine)
            for elsewhere in missing:
                behind = result.ndim - first - len(wide)
                result.masked_fill_(elsewhere.reshape((*wide, *[1] * behind)), 0)
            return result

        return read if parts else op

    return maker


def _index_of(indices: Sequence[torch.Tensor | None], dim: int) -> torch.Tensor:
    index = indices[dim]
    assert index is not None
    return index


def _flat(index: torch.Tensor, shape: Sequence[int]) -> list[torch.Tensor]:
    """The indices along all dims of places in a flattened tensor of this global shape."""
    index = torch.where(index < 0, index + torch.Size(shape).numel(), index)
    return list(torch.unravel_index(index, torch.Size(shape)))


def taking(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Read at places in the flattened tensor."""
    shape = inputs[0].shape
    read = reading_at(range(len(shape)), 0)(aten.index.Tensor, inputs, outputs)
    if read is aten.index.Tensor:
        return op
    return lambda x, index: read(x, _flat(index, shape))


def putting_flat(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write at places in the flattened tensor."""
    shape = inputs[0].shape
    put = putting_at(range(len(shape)))(op, inputs, outputs)
    if put is op:
        return op
    return lambda x, index, source, *adds, **kwargs: put(
        x, _flat(index, shape), source.reshape(index.shape), *adds, **kwargs
    )


def putting_at(dims: Sequence[int]) -> LocalMaker:
    """Write by several indices."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        parts = [held for held in (Held(inputs[0], dim) for dim in dims) if not held.all]
        in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]

        def put(
            x: torch.Tensor,
            indices: Sequence[torch.Tensor | None],
            values: torch.Tensor,
            accumulate: bool = False,
            unsafe: bool = False,
        ) -> torch.Tensor:
            mine, made = list(indices), x
            for held in parts:
                mine[held.dim] = held.dumped(_index_of(mine, held.dim))
                made = held.longer(made)
            made = aten.index_put(made, mine, values, accumulate)
            for held in parts:
                made = held.shorter(made)
            return x.copy_(made) if in_place else made.contiguous()

        return put if parts else op

    return maker
