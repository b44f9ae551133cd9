"""Windows on the rows of a dimension: which rows a rank needs for its part of a result.

Convolutions, pooling and their like see, from one place of a dimension, a window of the rows of
another tensor's: window w has the rows w * step - pad ... + reach. From the cut of a result follows
which rows of the arguments a rank needs, and neighbours hold those. What it then works on is a
block: whole windows, aligned as those of the whole tensor, zeros where these lie beyond its edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dtensor_core.layout import Extent


def extent(start: int, end: int) -> Extent:
    """The rows from start to end; none where that is before."""
    return Extent(start, max(end - start, 0))


def meeting(one: Extent, other: Extent) -> Extent:
    """What two extents have in common."""
    low = max(one.offset, other.offset)
    return extent(low, min(one.offset + one.size, other.offset + other.size))


@dataclass(frozen=True, slots=True)
class Windows:
    """`count` windows of `reach` rows on `size` rows, `step` apart, the first `pad` rows before."""

    size: int
    count: int
    step: int
    reach: int
    pad: int = 0

    def block(self, windows: Extent) -> Extent:
        """The rows that windows see, those beyond the edges included."""
        start = windows.offset * self.step - self.pad
        return extent(start, start + (windows.size - 1) * self.step + self.reach)

    def seen(self, windows: Extent) -> Extent:
        """The rows that windows see."""
        block = self.block(windows)
        if not windows.size:
            return Extent(0, 0)
        return extent(max(block.offset, 0), min(block.offset + block.size, self.size))

    def seeing(self, rows: Extent) -> Extent:
        """The windows that see any of the rows."""
        if not rows.size:
            return Extent(0, 0)
        first = -(-(rows.offset + self.pad - self.reach + 1) // self.step)
        last = (rows.offset + rows.size - 1 + self.pad) // self.step
        return extent(max(first, 0), min(last + 1, self.count))

    def around(self, rows: Extent) -> Extent:
        """Windows, also beyond the edges, whose block has all of the rows."""
        first = (rows.offset + self.pad - self.reach + 1) // self.step
        end = rows.offset + rows.size - 1 + self.pad
        last = max(end // self.step, -(-(end - self.reach + 1) // self.step))
        return extent(first, last + 1)


@dataclass(frozen=True, slots=True)
class Shares:
    """`count` windows that share out `size` rows, as evenly as rows allow; neighbours may overlap.

    Window w has the rows from w * size / count, rounded down, to (w + 1) * size / count, rounded
    up.
    """

    size: int
    count: int

    def seen(self, windows: Extent) -> Extent:
        """The rows that windows see."""
        if not windows.size:
            return Extent(0, 0)
        start, end = windows.offset, windows.offset + windows.size
        return extent(start * self.size // self.count, -(-end * self.size // self.count))

    def seeing(self, rows: Extent) -> Extent:
        """The windows that see any of the rows."""
        if not rows.size:
            return Extent(0, 0)
        start, end = rows.offset, rows.offset + rows.size
        return extent(start * self.count // self.size, -(-end * self.count // self.size))

    def alike(self, windows: Extent) -> list[tuple[list[int], list[int]]]:
        """Windows of one size each, and their rows; both count from the first of all."""
        first, found = self.seen(windows).offset, dict[int, tuple[list[int], list[int]]]()
        for number in range(windows.size):
            rows = self.seen(Extent(windows.offset + number, 1))
            places, taken = found.setdefault(rows.size, ([], []))
            places.append(number)
            taken.extend(range(rows.offset - first, rows.offset - first + rows.size))
        return list(found.values()) or [([], [])]


def fitted(tensor: torch.Tensor, dim: int, rows: Extent, wanted: Extent) -> torch.Tensor:
    """Of the rows that a tensor has those wanted, zeros where it has none."""
    before = rows.offset - wanted.offset if rows.size else 0
    behind = wanted.size - rows.size - before
    if before <= 0 and behind <= 0:
        return tensor.narrow(dim, -before, wanted.size)
    pads = [0, 0] * (tensor.ndim - dim - 1) + [before, behind]
    return torch.ops.aten.constant_pad_nd.default(tensor, pads)


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank works on along one dimension, for the rows (or windows) `own` of a result.

    Of the other tensor it `needs` an extent; fitted into `block` that gives the extent `made` of
    the result, of which `own` is a part.
    """

    needs: Extent
    block: Extent
    made: Extent
    own: Extent

    @staticmethod
    def of_windows(windows: Windows, own: Extent) -> Part:
        """For a result that has a row for each window."""
        return Part(windows.seen(own), windows.block(own), own, own) if own.size else _nothing(own)

    @staticmethod
    def of_rows(windows: Windows, own: Extent) -> Part:
        """For a result that has what the windows see."""
        around = windows.around(own)
        made = windows.block(around)
        return Part(windows.seeing(own), around, made, own) if own.size else _nothing(own)

    @staticmethod
    def within(windows: Windows, own: Extent) -> Part:
        """For windows, of an operator that pads: a block ends where the dimension does.

        It begins so that the padding before it is that of windows which are left out after.
        """
        needs = windows.seen(own)
        end = min(max(needs.offset + needs.size, needs.offset + windows.reach), windows.size)
        first = own.offset - min(own.offset, -(-windows.pad // windows.step))
        first = min(first, max(end - windows.reach, 0) // windows.step)  # never less than a window
        block = extent(first * windows.step, end)
        made = extent(first, own.offset + own.size)
        return Part(needs, block, made, own) if own.size else _nothing(own)


def _nothing(own: Extent) -> Part:
    return Part(Extent(0, 0), Extent(0, 0), own, own)
