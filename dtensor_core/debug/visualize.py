"""`visualize_sharding`: a table of the ranks that hold each part of a DTensor, in the terminal.

A tensor of up to two dims is drawn in a single table. For more dims, the last two sharded dims make
the table, and each piece of the other dims has a separate table. Ranks in the same cell hold the
same part, or partial values of it if a placement is Partial.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtensor_core.layout import Extent, held_extents, shardings_of
from dtensor_core.spec import Spec

_COLOURS = (
    "#4e79a7", "#e15759", "#59a14f", "#b07aa1", "#9c755f", "#d37295", "#499894", "#79706e",
)  # fmt: skip

Cell = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Tables of a DTensor: labels of rows and columns, and the ranks that hold each cell."""

    spec: Spec
    device: str
    rows: int
    columns: int
    holders: dict[Cell, list[int]]
    idle: list[int]

    @property
    def title(self) -> str:
        """The spec, and the effects of its placements that the table does not show."""
        placements = self.spec.placements
        title = f"{self.spec.text} on {self.device}"
        if any(placement.is_partial() for placement in placements):
            title += ", the ranks of a cell hold partial sums of it"
        if self.idle:
            title += f"; no part of it on {self.label(self.idle)}"
        return title

    def label(self, ranks: Sequence[int]) -> str:
        """Format several ranks as a single name: `cpu:0,1`."""
        return f"{self.device}:{','.join(map(str, ranks))}" if ranks else ""

    def range_text(self, dim: int, extent: Extent) -> str:
        """Format a part of a dim as the heading of a row or column."""
        last = extent.offset + extent.size - 1
        ndim = len(self.spec.shape)
        name = ("Row", "Col")[dim] if ndim == 2 else f"dim {dim}:" if ndim > 2 else "Col"
        return f"{name} {extent.offset}-{last}"

    def extents(self, dim: int) -> list[Extent]:
        """Return the pieces that a dim is split into."""
        return sorted({cell[dim] for cell in self.holders})

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Yield heading, column headings, and rows with their headings, for each table."""
        ndim = len(self.spec.shape)
        rest = [dim for dim in range(ndim) if dim not in (self.rows, self.columns)]
        columns = self.extents(self.columns) if ndim else []
        rows = self.extents(self.rows) if self.rows >= 0 else [None]
        for fixed in itertools.product(*(self.extents(dim) for dim in rest)):
            at = dict(zip(rest, fixed, strict=True))
            sharded = [dim for dim in rest if len(self.extents(dim)) > 1]
            heading = ", ".join(self.range_text(dim, at[dim]) for dim in sharded)
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
    """Print a table of the ranks that hold each part of a DTensor, below `header`.

    Prints only on the rank at coordinate 0 of every mesh axis, and nothing for a tensor without
    elements.

    Args:
        dtensor: The tensor.
        header: A line printed above the table, if not empty.
        use_rich: True if the table is coloured, provided that rich is installed.
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
            held_extents(size, shardings_of(spec.placements, spec.mesh_shape, coords, dim))
            for dim, size in enumerate(spec.shape)
        ]
        if any(not extent.size for extents in held for extent in extents):
            idle.append(rank)
            continue
        for cell in itertools.product(*held):
            holders.setdefault(cell, []).append(rank)
    sharded = [
        dim for dim in range(len(spec.shape)) if any(p.sharded_dim == dim for p in spec.placements)
    ]
    ndim = len(spec.shape)
    shown = sorted(
        [*range(ndim)]
        if ndim <= 2
        else (sharded[-2:] + [d for d in range(ndim) if d not in sharded])[:2]
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
