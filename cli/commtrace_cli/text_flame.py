"""A flame graph in a terminal: a row per node, its bar below that of what it is part of.

    all communication              13.8 kB   100%  ████████████████████
    forward                         5.5 kB    40%  ████████
      layers.0                      2.8 kB    20%  ████
        wo > aten.mm > all_reduce   2.8 kB    20%  ████

What has one part alone, as large as itself, shares a row with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from commtrace.escaping import visible
from commtrace.units import text_of_value
from commtrace_cli.terminal import Text, colour_of_kind

if TYPE_CHECKING:
    import pandas as pd

UNITS = {"wire_bytes": "bytes", "time_ns": "ns", "blocked_ns": "ns", "num_calls": ""}
LEAST_BAR = 12
JOINED = " \u203a "
_NUMBERS = 18
"""How wide a value, its share, and the gaps between them are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line; `start` and `size` are parts of the whole, `kind` is empty but at a tree's ends."""

    depth: int
    name: str
    value: float
    start: float
    size: float
    kind: str


class Tree:
    """The nodes of a flame graph by their parents, with values of one measure."""

    def __init__(self, nodes: pd.DataFrame, value: str) -> None:
        self.nodes: list[Any] = list(nodes.itertuples(index=False))
        self.values: list[float] = nodes[value].tolist()
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            if node.parent >= 0 and self.values[node.id] > 0:
                self.children[node.parent].append(node.id)

    def rows(self, top: int = 0) -> Iterator[Row]:
        """A row per node below `top`, and of `top` itself, each before its parts."""
        yield from self._rows(top, 0, 0.0, "", self.values[top] or 1.0)

    def _rows(
        self, first: int, depth: int, start: float, above: str, whole: float
    ) -> Iterator[Row]:
        chain = self._chain(first)
        last, value = self.nodes[chain[-1]], self.values[first]
        modules = [self.nodes[node].name for node in chain if self.nodes[node].role == "module"]
        yield Row(
            depth=depth,
            name=self._name(chain, above),
            value=value,
            start=start / whole,
            size=value / whole,
            kind=last.name if last.role == "kind" else "",
        )
        for child in self.children[chain[-1]]:
            inside = modules[-1] if modules else above
            deeper = last.role != "run"  # which stands beside its phases
            yield from self._rows(child, depth + deeper, start, inside, whole)
            start += self.values[child]

    def _chain(self, node: int) -> list[int]:
        """The node, and those below it that are all that it has."""
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
            elif node.role == "op":
                texts.append(node.name)
            else:
                texts.append(node.name)
        return JOINED.join(texts)


def flame_lines(rows: Sequence[Row], value: str, num_ranks: int, width: int) -> list[Text]:
    """The rows as lines of a terminal `width` wide; values are what one rank does."""
    names = _names(rows)
    label = _label_width(names, width)
    bar = max(width - label - _NUMBERS, LEAST_BAR)
    return [
        _line(row, _cut(name, label), text_of_value(row.value / num_ranks, UNITS[value]), bar)
        for row, name in zip(rows, names, strict=True)
    ]


def num_cut(rows: Sequence[Row], width: int) -> int:
    """Number of names that are longer than a terminal `width` wide has room for."""
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
    line.append(f"{amount:>10}{row.size:>6.0%}  ", style="dim")
    line.append(" " * first)
    return line.append(
        "█" * (last - first), style=colour_of_kind(row.kind) if row.kind else "bright_black"
    )


def _cut(name: str, width: int) -> str:
    """The name in as many cells; of one that is longer, the end."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    indent = len(name) - len(name.lstrip())
    room = width - indent - 1
    return set_cell_size(f"{' ' * indent}…{name[-room:]}", width)


def largest(rows: Sequence[Row], most: int) -> list[Row]:
    """The `most` largest rows in their order; one is never without what it is part of."""
    order = sorted(range(len(rows)), key=lambda place: (-rows[place].value, place))
    return [rows[place] for place in sorted(order[:most])]
