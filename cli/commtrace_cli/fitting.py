"""Columns that fit a terminal: numbers are shown whole or not at all, and what is missing is said.

The texts of a table come in, a rich table goes out, with the names of the columns that were left
out and the number of cells that were cut. Columns are given room in the order of `importance`; a
long text gets a third of the width, and what is left over goes to those that were cut.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from commtrace.units import counted
from commtrace_cli.terminal import Text

GAP = 2
LEAST_TEXT = 12
"""A text column is not made narrower than that."""
MOST_NAMED = 8

_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table as wide as there is room; `left_out` are the headings of columns without room."""

    table: Table
    left_out: tuple[str, ...]
    num_cut: int


def fitted(
    headings: Mapping[str, str],
    texts: Mapping[str, Sequence[str]],
    *,
    width: int,
    numbers: Container[str] = (),
    importance: Sequence[str] = (),
    title: str = "",
) -> Fitted:
    """The table of `texts`, by column, that fits into `width`; all of it where it does.

    `importance` names columns, the most important first; others follow in their order.
    """
    natural = {
        name: max(map(cell_len, [heading, *texts[name]])) for name, heading in headings.items()
    }
    order = [*importance, *(name for name in headings if name not in importance)]
    widths = _widths(natural, width, numbers, order)
    shown = [name for name in headings if name in widths]
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    for name in shown:
        justify = "right" if name in numbers else "left"
        table.add_column(Text(_cut(headings[name], widths[name])), justify=justify, no_wrap=True)
    num_cut = 0
    for row in zip(*(texts[name] for name in shown), strict=True):
        cells = [_cut(text, widths[name]) for name, text in zip(shown, row, strict=True)]
        num_cut += sum(cell != text for cell, text in zip(cells, row, strict=True))
        table.add_row(*map(Text, cells))
    left_out = tuple(headings[name] for name in headings if name not in widths)
    return Fitted(table, left_out, num_cut)


def _widths(
    natural: Mapping[str, int], width: int, numbers: Container[str], order: Sequence[str]
) -> dict[str, int]:
    """The width of each column that there is room for; of the first one in any case."""
    if sum(natural.values()) + GAP * (len(natural) - 1) <= width:
        return dict(natural)
    chosen: dict[str, int] = {}
    room = width + GAP
    for name in order:
        most = natural[name] if name in numbers else max(LEAST_TEXT, width // 3)
        wanted = min(natural[name], most)
        if wanted + GAP <= room or not chosen:
            chosen[name] = min(wanted, max(width, 1))
            room -= chosen[name] + GAP
    for name in chosen:
        more = min(natural[name] - chosen[name], max(room, 0))
        chosen[name] += more
        room -= more
    return chosen


def _cut(text: str, width: int) -> str:
    """The text in as many cells; of a longer one its end, set in as it was."""
    if cell_len(text) <= width:
        return text
    indent = min(len(text) - len(text.lstrip()), max(width - 2, 0))
    rest = text[indent:]
    while rest and cell_len(rest) > width - indent - 1:
        rest = rest[1:]
    return set_cell_size(f"{' ' * indent}{_ELLIPSIS}{rest}", width)


def told(left_out: Sequence[str], num_cut: int, how: str, *, what: str = "cell") -> str:
    """A sentence on what a narrow terminal does not show; `how` says how to have it.

    >>> told(["busbw"], 2, "with --csv")
    '1 column left out (busbw), 2 cells cut: in a wider terminal, or with --csv'
    """
    parts = []
    if left_out:
        named = ", ".join(left_out[:MOST_NAMED]) + (", ..." if len(left_out) > MOST_NAMED else "")
        parts.append(f"{counted(len(left_out), 'column')} left out ({named})")
    if num_cut:
        parts.append(f"{counted(num_cut, what)} cut")
    return f"{', '.join(parts)}: in a wider terminal, or {how}" if parts else ""
