"""Windows on the rows of a dimension, and the rows a rank needs for its part of a result.

Convolutions, pooling and similar operators read, at each position of a dimension, a window of rows
of another tensor: window w has the rows w * step - pad ... + reach. The sharding of a result
determines the rows of the arguments that a rank needs, some of which its neighbours hold. The rank
then works on a block: complete windows, aligned as in the full tensor, with zeros beyond its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dtensor_core.layout import Extent


def extent(start: int, end: int) -> Extent:
    """Return the rows from start to end; empty if end precedes start."""
    return Extent(start, max(end - start, 0))


def meeting(one: Extent, other: Extent) -> Extent:
    """Return the intersection of two extents."""
    low = max(one.offset, other.offset)
    return extent(low, min(one.offset + one.size, other.offset + other.size))


def per_dim(values: int | Sequence[int], number: int) -> list[int]:
    """Return the setting of each of `number` dims; a single setting is shared by all."""
    given = [values] if isinstance(values, int) else [*values]
    return given * (number // len(given))


@dataclass(frozen=True, slots=True)
class Windows:
    """Regular windows on `size` rows: `count` of `reach` rows each, `step` apart.

    The first window starts `pad` rows before the first row.
    """

    size: int
    count: int
    step: int
    reach: int
    pad: int = 0

    def block(self, windows: Extent) -> Extent:
        """Return the rows that windows read, including those beyond the edges."""
        start = windows.offset * self.step - self.pad
        return extent(start, start + (windows.size - 1) * self.step + self.reach)

    def rows_read(self, windows: Extent) -> Extent:
        """Return the rows that windows read."""
        block = self.block(windows)
        if not windows.size:
            return Extent(0, 0)
        return extent(max(block.offset, 0), min(block.offset + block.size, self.size))

    def windows_reading(self, rows: Extent) -> Extent:
        """Return the windows that read any of the rows."""
        if not rows.size:
            return Extent(0, 0)
        first = -(-(rows.offset + self.pad - self.reach + 1) // self.step)
        last = (rows.offset + rows.size - 1 + self.pad) // self.step
        return extent(max(first, 0), min(last + 1, self.count))

    def around(self, rows: Extent) -> Extent:
        """Return windows, possibly beyond the edges, whose block contains all of the rows."""
        first = (rows.offset + self.pad - self.reach + 1) // self.step
        end = rows.offset + rows.size - 1 + self.pad
        last = max(end // self.step, -(-(end - self.reach + 1) // self.step))
        return extent(first, last + 1)


@dataclass(frozen=True, slots=True)
class Shares:
    """Adaptive windows: `count` windows that divide `size` rows evenly; neighbours may overlap.

    Window w has the rows from w * size / count, rounded down, to (w + 1) * size / count, rounded
    up.
    """

    size: int
    count: int

    def rows_read(self, windows: Extent) -> Extent:
        """Return the rows that windows read."""
        if not windows.size:
            return Extent(0, 0)
        start, end = windows.offset, windows.offset + windows.size
        return extent(start * self.size // self.count, -(-end * self.size // self.count))

    def windows_reading(self, rows: Extent) -> Extent:
        """Return the windows that read any of the rows."""
        if not rows.size:
            return Extent(0, 0)
        start, end = rows.offset, rows.offset + rows.size
        return extent(start * self.count // self.size, -(-end * self.count // self.size))

    def by_size(self, windows: Extent) -> list[tuple[list[int], list[int]]]:
        """Group windows by size; each group has windows and their rows, counted from the first."""
        first, found = self.rows_read(windows).offset, dict[int, tuple[list[int], list[int]]]()
        for number in range(windows.size):
            rows = self.rows_read(Extent(windows.offset + number, 1))
            places, taken = found.setdefault(rows.size, ([], []))
            places.append(number)
            taken.extend(range(rows.offset - first, rows.offset - first + rows.size))
        # A rank without windows still has one group, from which it makes its empty result.
        return list(found.values()) or [([], [])]


def fitted(tensor: torch.Tensor, dim: int, rows: Extent, wanted: Extent) -> torch.Tensor:
    """Select the wanted rows from a tensor that holds `rows`, with zeros for missing rows."""
    before = rows.offset - wanted.offset if rows.size else 0
    behind = wanted.size - rows.size - before
    if before <= 0 and behind <= 0:
        return tensor.narrow(dim, -before, wanted.size)
    pads = [0, 0] * (tensor.ndim - dim - 1) + [before, behind]
    return torch.ops.aten.constant_pad_nd.default(tensor, pads)


@dataclass(frozen=True, slots=True)
class WindowPart:
    """A rank's work along a dimension for the rows (or windows) `own` of a result.

    The rank needs the extent `needs` of the other tensor. Fitted into `block`, it gives the extent
    `made` of the result, which contains `own`.
    """

    needs: Extent
    block: Extent
    made: Extent
    own: Extent

    @staticmethod
    def of_windows(windows: Windows, own: Extent) -> WindowPart:
        """Return the part for a result with a row per window."""
        if not own.size:
            return _nothing(own)
        return WindowPart(windows.rows_read(own), windows.block(own), own, own)

    @staticmethod
    def of_rows(windows: Windows, own: Extent) -> WindowPart:
        """Return the part for a result with the rows that the windows read."""
        around = windows.around(own)
        made = windows.block(around)
        if not own.size:
            return _nothing(own)
        return WindowPart(windows.windows_reading(own), around, made, own)

    @staticmethod
    def within(windows: Windows, own: Extent) -> WindowPart:
        """Return the part for windows of an operator that pads; a block ends with the dimension.

        The block starts so that its leading padding affects only windows that are dropped
        afterwards.
        """
        needs = windows.rows_read(own)
        end = min(max(needs.offset + needs.size, needs.offset + windows.reach), windows.size)
        first = own.offset - min(own.offset, -(-windows.pad // windows.step))
        first = min(first, max(end - windows.reach, 0) // windows.step)  # never less than a window
        block = extent(first * windows.step, end)
        made = extent(first, own.offset + own.size)
        return WindowPart(needs, block, made, own) if own.size else _nothing(own)


def _nothing(own: Extent) -> WindowPart:
    return WindowPart(Extent(0, 0), Extent(0, 0), own, own)
