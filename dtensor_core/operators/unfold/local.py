"""Patches of a row-sharded image as columns and back, and gradients of windows.

A row of patches makes many columns. Columns are sharded by number, possibly within such a row, in
which case two ranks compute it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.windows import WindowPart, Windows, extent, fitted
from dtensor_core.redistribute.halo_exchange import Rows
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

_Ints = Sequence[int]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of patches: `windows` of dim `dim`, each of `width` columns."""

    windows: Windows
    width: int
    dim: int

    def patches(self, shard: AxisSharding) -> tuple[Extent, Extent]:
        """Return the columns of a rank, and the rows of patches that contain them."""
        count = self.windows.count * self.width
        own = local_extent(count, shard.num_shards, shard.coord)
        end = -(-(own.offset + own.size) // self.width)
        return own, extent(own.offset // self.width, end) if own.size else Extent(0, 0)

    def rows_read(self, shard: AxisSharding) -> Extent:
        """Return the rows that the columns of a rank are made from."""
        return self.windows.rows_read(self.patches(shard)[1])

    def windows_reading(self, shard: AxisSharding) -> Extent:
        """Return the columns that the rows of a rank contribute to."""
        own = local_extent(self.windows.size, shard.num_shards, shard.coord)
        found = self.windows.windows_reading(own)
        return Extent(found.offset * self.width, found.size * self.width)

    def to_columns(self, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
        """Make the operator from rows to columns."""
        own, patches = self.patches(shards[self.dim])
        part = WindowPart.of_windows(self.windows, patches)

        def local(
            x: torch.Tensor, kernel: _Ints, gap: _Ints, pad: _Ints, step: _Ints
        ) -> torch.Tensor:
            (x,) = rows([x])
            if not own.size or 0 in x.shape:
                shape = [*x.shape[:-3], x.shape[-3] * kernel[0] * kernel[-1], own.size]
                return depending(x.new_zeros(shape), x)
            x = fitted(x, self.dim, part.needs, part.block)
            made = op(x, kernel, gap, [0, pad[-1]], step)
            first = own.offset - patches.offset * self.width
            return made.narrow(self.dim, first, own.size).contiguous()

        return local

    def to_image(self, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
        """Make the operator that sums columns into rows."""
        dim, shard = self.dim, shards[self.dim]
        own = local_extent(self.windows.size, shard.num_shards, shard.coord)
        part = WindowPart.of_rows(self.windows, own)

        def local(
            x: torch.Tensor, size: _Ints, kernel: _Ints, gap: _Ints, pad: _Ints, step: _Ints
        ) -> torch.Tensor:
            (x,) = rows([x])
            if not own.size or 0 in x.shape:
                channels = x.shape[-2] // (kernel[0] * kernel[-1])
                shape = [*x.shape[:-2], channels, own.size, size[-1]]
                return depending(x.new_zeros(shape), x)
            x = x.unflatten(dim, (part.needs.size, self.width))
            x = fitted(x, dim, part.needs, part.block).flatten(dim)
            made = op(x, [part.made.size, size[-1]], kernel, gap, [0, pad[-1]], step)
            return fitted(made, dim, part.made, own).contiguous()

        return local


def with_local_sizes(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the gradient of windows of this rank's part."""
    out = outputs[0]
    assert out is not None
    if 0 in inputs[0].local_shape:
        return lambda grad, *_: grad.new_zeros(out.local_shape)
    return lambda grad, _, *args: op(grad, list(out.local_shape), *args)
