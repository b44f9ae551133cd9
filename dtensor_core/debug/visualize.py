"""`visualize_sharding`: which rank holds which part of a DTensor, as a table in the terminal.

A tensor of two dims is drawn as it is; of more dims, the two last ones that are cut make the table,
and each piece of the other ones has a table of its own. Ranks in one cell hold the same part, or
addends of it where a placement is Partial.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtensor_core.layout import Extent, cuts_of, held_extents
from dtensor_core.placement import sharded_dim
from dtensor_core.spec import Spec

_COLOURS = (
    "#4e79a7", "#e15759", "#59a14f", "#b07aa1", "#9c755f", "#d37295", "#499894", "#79706e",
)  # fmt: skip

Cell = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Tables of one DTensor: labels of rows and columns, and who holds a cell."""

    spec: Spec
    device: str
    rows: int
    columns: int
    holders: dict[Cell, list[int]]
    idle: list[int]

    @property
    def title(self) -> str:
        """The spec, and what its placements mean where that is not to be seen in the table."""
        placements = self.spec.placements
        title = f"{self.spec.text} on {self.device}"
        if any(placement.is_partial() for placement in placements):
            title += ", the ranks of a cell hold addends of it"
        if self.idle:
            title += f"; no part of it on {self.label(self.idle)}"
        return title

    def label(self, ranks: Sequence[int]) -> str:
        """Several ranks as one name: `cpu:0,1`."""
        return f"{self.device}:{','.join(map(str, ranks))}" if ranks else ""

    def range_text(self, dim: int, extent: Extent) -> str:
        """A part of a dim as a row or column is headed."""
        last = extent.offset + extent.size - 1
        ndim = len(self.spec.shape)
        name = ("Row", "Col")[dim] if ndim == 2 else f"dim {dim}:" if ndim > 2 else "Col"
        return f"{name} {extent.offset}-{last}"

    def extents(self, dim: int) -> list[Extent]:
        """The pieces that a dim is cut into."""
        return sorted({cell[dim] for cell in self.holders})

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """A heading, the column heads, and the rows with their heads; for each table."""
        ndim = len(self.spec.shape)
        rest = [dim for dim in range(ndim) if dim not in (self.rows, self.columns)]
        columns = self.extents(self.columns) if ndim else []
        rows = self.extents(self.rows) if self.rows >= 0 else [None]
        for fixed in itertools.product(*(self.extents(dim) for dim in rest)):
            at = dict(zip(rest, fixed, strict=True))
            cut = [dim for dim in rest if len(self.extents(dim)) > 1]
            heading = ", ".join(self.range_text(dim, at[dim]) for dim in cut)
            lines = [
                [
                    "" if row is None else self.range_text(self.rows, row),
                    *(
                        self._held({**at, self.rows: row, self.columns: column})
                        for column in columns
                    ),
                ]
                for row in rows
            ]
            yield heading, [self.range_text(self.columns, column) for column in columns], lines

    def _held(self, at: dict[int, Any]) -> str:
        cell = tuple(at[dim] for dim in range(len(self.spec.shape)))
        return self.label(self.holders.get(cell, []))


def visualize_sharding(dtensor: Any, header: str = "", use_rich: bool = False) -> None:
    """Print which rank holds which part of a DTensor; `header` is printed above it.

    Prints on the rank at coordinate 0 of every mesh axis only, and nothing for a tensor without
    elements. With `use_rich` the table has colours, where rich is installed.
    """
    spec: Spec = dtensor._spec
    coords = spec.coords
    if dtensor.numel() == 0 or coords is None or any(coords):
        return
    drawing = _draw(spec)
    if header:
        print(header)
    print(drawing.title)
    if not spec.shape:
        print(drawing.label(drawing.holders[()]))
        return
    show = _print_rich if use_rich and importlib.util.find_spec("rich") else _print_plain
    for heading, columns, rows in drawing.tables():
        if heading:
            print(f"\n{heading}")
        show(columns, rows)


def _draw(spec: Spec) -> _Drawing:
    holders: dict[Cell, list[int]] = {}
    idle: list[int] = []
    for coords in itertools.product(*(range(size) for size in spec.mesh_shape)):
        rank = int(spec.mesh.mesh[coords])
        held = [
            held_extents(size, cuts_of(spec.placements, spec.mesh_shape, coords, dim))
            for dim, size in enumerate(spec.shape)
        ]
        if any(not extent.size for extents in held for extent in extents):
            idle.append(rank)
            continue
        for cell in itertools.product(*held):
            holders.setdefault(cell, []).append(rank)
    cut = [
        dim for dim in range(len(spec.shape)) if any(sharded_dim(p) == dim for p in spec.placements)
    ]
    ndim = len(spec.shape)
    shown = sorted(
        [*range(ndim)] if ndim <= 2 else (cut[-2:] + [d for d in range(ndim) if d not in cut])[:2]
    )
    rows, columns = (shown[0], shown[1]) if len(shown) == 2 else (-1, 0)
    return _Drawing(spec, spec.mesh.device_type, rows, columns, holders, idle)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [["", *columns], *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(lines[0]))]
    if not widths[0]:
        lines, widths = [line[1:] for line in lines], widths[1:]
    rule = ["-" * width for width in widths]
    for line in (lines[0], rule, *lines[1:]):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(text.rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    import rich.box
    import rich.console
    import rich.table
    import rich.text

    table = rich.table.Table(box=rich.box.SQUARE, show_lines=True)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="center")
    colours = dict.fromkeys(cell for row in rows for cell in row[1:])
    for number, cell in enumerate(colours):
        colours[cell] = f"bold white on {_COLOURS[number % len(_COLOURS)]}"  # type: ignore[assignment]
    for row in rows:
        cells = [rich.text.Text(f" {cell} ", style=colours[cell] or "") for cell in row[1:]]
        table.add_row(row[0], *cells)
    rich.console.Console().print(table)
