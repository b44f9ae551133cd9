"""Reading and writing by several indices along sharded dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core.operators.kernels.local_operator import Local, LocalMaker
from dtensor_core.operators.kernels.local_positions import LocalPositions, range_of
from dtensor_core.spec import Spec

aten = torch.ops.aten


def reading_at(dims: Sequence[int], first: int) -> LocalMaker:
    """Read by several indices, whose dims start at `first` in the result."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        found = (LocalPositions(op, inputs[0], dim) for dim in dims)
        sharded = [positions for positions in found if not positions.all]

        def read(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
            mine = list(indices)
            wide = torch.broadcast_shapes(*(each.shape for each in mine if each is not None))
            missing: list[torch.Tensor] = []
            for positions in sharded:
                mine[positions.dim], elsewhere = positions.local(_index_of(mine, positions.dim))
                missing.append(elsewhere.expand(wide))
                x = positions.not_empty(x)
            result = op(x, mine)
            for elsewhere in missing:
                behind = result.ndim - first - len(wide)
                result.masked_fill_(elsewhere.reshape((*wide, *[1] * behind)), 0)
            return result

        return read if sharded else op

    return maker


def _index_of(indices: Sequence[torch.Tensor | None], dim: int) -> torch.Tensor:
    index = indices[dim]
    assert index is not None
    return index


def _flat(op: Local, index: torch.Tensor, shape: Sequence[int]) -> list[torch.Tensor]:
    """Return the indices along all dims of positions in a flattened tensor of this global shape.

    A position out of range gets a first index out of range.
    """
    size = torch.Size(shape).numel()
    range_of(op, index, 0, size)
    index = torch.where(index < 0, index + size, index)
    first = index.div(size // shape[0], rounding_mode="floor")
    rest = torch.unravel_index(index, torch.Size(shape))[1:]
    return [torch.where(index < 0, shape[0], first), *rest]


def taking(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Read at positions in the flattened tensor."""
    shape = inputs[0].shape
    read = reading_at(range(len(shape)), 0)(aten.index.Tensor, inputs, outputs)
    if read is aten.index.Tensor:
        return op
    return lambda x, index: read(x, _flat(op, index, shape))


def putting_flat(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Write at positions in the flattened tensor."""
    shape = inputs[0].shape
    put = putting_at(range(len(shape)))(op, inputs, outputs)
    if put is op:
        return op
    return lambda x, index, source, *adds, **kwargs: put(
        x, _flat(op, index, shape), source.reshape(index.shape), *adds, **kwargs
    )


def putting_at(dims: Sequence[int]) -> LocalMaker:
    """Write by several indices."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        found = (LocalPositions(op, inputs[0], dim) for dim in dims)
        sharded = [positions for positions in found if not positions.all]
        in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]

        def put(
            x: torch.Tensor,
            indices: Sequence[torch.Tensor | None],
            values: torch.Tensor,
            accumulate: bool = False,
            unsafe: bool = False,
        ) -> torch.Tensor:
            mine, made = list(indices), x
            for positions in sharded:
                # Positions of other ranks are redirected and not left out, since the number that
                # remains would depend on data.
                mine[positions.dim] = positions.or_padding(_index_of(mine, positions.dim))
                made = positions.padded(made)
            made = aten.index_put(made, mine, values, accumulate)
            for positions in sharded:
                made = positions.unpadded(made)
            return x.copy_(made) if in_place else made.contiguous()

        return put if sharded else op

    return maker
