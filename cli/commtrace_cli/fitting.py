"""Fitting of table columns to a terminal: numbers are never truncated, omissions are reported.

Takes the texts of a table and returns a rich table, with the omitted columns and the number of
truncated cells. Columns get room in the order of `importance`. A long text gets a third of the
width, and the remaining width goes to the truncated columns.
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
"""Minimum width of a text column."""
MOST_NAMED = 8

_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table that fits; `left_out` holds the headings of the omitted columns."""

    table: Table
    left_out: tuple[str, ...]
    num_truncated: int


def fitted(
    headings: Mapping[str, str],
    texts: Mapping[str, Sequence[str]],
    *,
    width: int,
    numbers: Container[str] = (),
    importance: Sequence[str] = (),
    title: str = "",
) -> Fitted:
    """Return the table of `texts`, by column, that fits into `width`.

    Args:
        headings: heading of each column.
        texts: cells of each column.
        width: width of the terminal in cells.
        numbers: columns that must not be truncated.
        importance: columns, most important first; others follow in their order.
        title: title of the table.
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
        table.add_column(
            Text(shortened(headings[name], widths[name])), justify=justify, no_wrap=True
        )
    num_truncated = 0
    for row in zip(*(texts[name] for name in shown), strict=True):
        cells = [shortened(text, widths[name]) for name, text in zip(shown, row, strict=True)]
        num_truncated += sum(cell != text for cell, text in zip(cells, row, strict=True))
        table.add_row(*map(Text, cells))
    left_out = tuple(headings[name] for name in headings if name not in widths)
    return Fitted(table, left_out, num_truncated)


def _widths(
    natural: Mapping[str, int], width: int, numbers: Container[str], order: Sequence[str]
) -> dict[str, int]:
    """Return the width of each column that fits; the first column is always included."""
    if sum(natural.values()) + GAP * (len(natural) - 1) <= width:
        return dict(natural)
    chosen: dict[str, int] = {}
    room = width + GAP
    for name in order:
        most = natural[name] if name in numbers else max(LEAST_TEXT, width // 3)
        preferred = min(natural[name], most)
        if preferred + GAP <= room or not chosen:
            chosen[name] = min(preferred, max(width, 1))
            room -= chosen[name] + GAP
    for name in chosen:
        more = min(natural[name] - chosen[name], max(room, 0))
        chosen[name] += more
        room -= more
    return chosen


def shortened(text: str, width: int) -> str:
    """Shorten a text to `width` cells; keep its end and its indentation."""
    if cell_len(text) <= width:
        return text
    indent = min(len(text) - len(text.lstrip()), max(width - 2, 0))
    rest = text[indent:]
    while rest and cell_len(rest) > width - indent - 1:
        rest = rest[1:]
    return set_cell_size(f"{' ' * indent}{_ELLIPSIS}{rest}", width)


def omissions(
    left_out: Sequence[str], num_truncated: int, alternative: str, *, noun: str = "cell"
) -> str:
    """Format a note on the parts that a narrow terminal omits; and of the `alternative`.

    >>> omissions(["busbw"], 2, "with --csv")
    '1 column omitted (busbw), 2 cells truncated: in a wider terminal, or with --csv'
    """
    parts = []
    if left_out:
        named = ", ".join(left_out[:MOST_NAMED]) + (", ..." if len(left_out) > MOST_NAMED else "")
        parts.append(f"{counted(len(left_out), 'column')} omitted ({named})")
    if num_truncated:
        parts.append(f"{counted(num_truncated, noun)} truncated")
    return f"{', '.join(parts)}: in a wider terminal, or {alternative}" if parts else ""
