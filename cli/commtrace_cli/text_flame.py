"""Flame graph in a terminal: one row per node, its bar below its parent's.

    all communication              13.8 kB   100%  ████████████████████
    forward                         5.5 kB    40%  ████████
      layers.0                      2.8 kB    20%  ████
        wo > aten.mm > all_reduce   2.8 kB    20%  ████

A node with a single child of equal size shares a row with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from commtrace.escaping import visible
from commtrace.units import text_of_mean, text_of_value
from commtrace_cli.fitting import shortened
from commtrace_cli.terminal import Text, colour_of_kind

if TYPE_CHECKING:
    import pandas as pd

UNITS = {"wire_bytes": "bytes", "time_ns": "ns", "blocked_ns": "ns", "num_calls": ""}
LEAST_BAR = 12
JOINED = " \u203a "
_AMOUNT = 10
"""Least width of a value with a gap before it."""
_NUMBERS = _AMOUNT + 8
"""Width of a value, its share, and the gaps between them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line; `start` and `size` are fractions of the total, `kind` is only set at leaves."""

    depth: int
    name: str
    value: float
    start: float
    size: float
    kind: str


class Tree:
    """Nodes of a flame graph by parent, with the values of a measure."""

    def __init__(self, nodes: pd.DataFrame, value: str) -> None:
        self.nodes: list[Any] = list(nodes.itertuples(index=False))
        self.values: list[float] = nodes[value].tolist()
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            if node.parent >= 0 and self.values[node.id] > 0:
                self.children[node.parent].append(node.id)

    def rows(self, top: int = 0) -> Iterator[Row]:
        """Yield a row for `top` and for each node below it, parents first."""
        yield from self._rows(top, 0, 0.0, "", self.values[top] or 1.0)

    def _rows(
        self, first: int, depth: int, start: float, above: str, total: float
    ) -> Iterator[Row]:
        chain = self._chain(first)
        last, value = self.nodes[chain[-1]], self.values[first]
        modules = [self.nodes[node].name for node in chain if self.nodes[node].role == "module"]
        yield Row(
            depth=depth,
            name=self._name(chain, above),
            value=value,
            start=start / total,
            size=value / total,
            kind=last.name if last.role == "kind" else "",
        )
        for child in self.children[chain[-1]]:
            inside = modules[-1] if modules else above
            deeper = last.role != "run"  # which is at the level of its phases
            yield from self._rows(child, depth + deeper, start, inside, total)
            start += self.values[child]

    def _chain(self, node: int) -> list[int]:
        """Return a node, followed by the nodes below it that hold its whole value."""
        chain = [node]
        while self.nodes[chain[-1]].role not in ("run", "phase"):
            below = self.children[chain[-1]]
            if len(below) != 1 or self.values[below[0]] != self.values[node]:
                break
            chain += below
        return chain

    def _name(self, chain: Sequence[int], above: str) -> str:
        from commtrace.figures.flame import NO_MODULE

        texts: list[str] = []
        for node in map(self.nodes.__getitem__, chain):
            if node.role == "run":
                texts.append("all communication")
            elif node.role == "module":
                path = node.name.removeprefix(f"{above}.") if above else node.name
                texts = [path or NO_MODULE]
            else:
                texts.append(node.name)
        return JOINED.join(texts)


def flame_lines(rows: Sequence[Row], value: str, num_ranks: int, width: int) -> list[Text]:
    """Return the rows as lines of a terminal `width` wide; values are the mean over ranks."""
    names = _names(rows)
    label = _label_width(names, width)
    amounts = [_amount(row.value / num_ranks, value, num_ranks) for row in rows]
    longest = max(_AMOUNT, *(len(text) + 2 for text in amounts))
    bar = max(width - label - _NUMBERS + _AMOUNT - longest, LEAST_BAR)
    return [
        _line(row, set_cell_size(shortened(name, label), label), amount.rjust(longest), bar)
        for row, name, amount in zip(rows, names, amounts, strict=True)
    ]


def _amount(mean: float, value: str, num_ranks: int) -> str:
    if value == "num_calls":
        return text_of_mean(mean, num_ranks)
    return text_of_value(mean, UNITS[value])


def num_truncated(rows: Sequence[Row], width: int) -> int:
    """Return the number of names too long for a terminal `width` wide."""
    names = _names(rows)
    label = _label_width(names, width)
    return sum(cell_len(name) > label for name in names)


def _names(rows: Sequence[Row]) -> list[str]:
    return ["  " * row.depth + visible(row.name) for row in rows]


def _label_width(names: Sequence[str], width: int) -> int:
    return min(max(map(cell_len, names)), max(width - _NUMBERS - 30, (width - _NUMBERS) // 2))


def _line(row: Row, name: str, amount: str, bar: int) -> Text:
    first = min(round(row.start * bar), bar - 1)
    last = max(round((row.start + row.size) * bar), first + 1)
    line = Text(name, style="bold" if not row.depth else "")
    line.append(f"{amount}{row.size:>6.0%}  ", style="dim")
    line.append(" " * first)
    return line.append(
        "█" * (last - first), style=colour_of_kind(row.kind) if row.kind else "bright_black"
    )


def largest(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the `most` largest rows in their order; a row never appears without its parent."""
    order = sorted(range(len(rows)), key=lambda place: (-rows[place].value, place))
    return [rows[place] for place in sorted(order[:most])]
