"""Equal layers of table `by_module` as a row: `layers.0` to `layers.23` as `layers.0-23, each`.

Layers are siblings with numbers for names. They are equal if their trees make the same numbers of
calls with the same bytes. A layer that is blocked much longer than the others keeps its own rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from commtrace.units import text_of_ranks

_LONGER = 1.5
"""Multiple of the layers' median blocked time from which a layer keeps its own rows."""
_LEAST_SHARE = 0.01
"""Part of the recorded time that it must be longer by."""
_ALIKE = ["module_class", "num_calls", "payload_bytes", "wire_bytes"]


def folded_modules(table: pd.DataFrame) -> pd.DataFrame:
    """Return table `by_module` with a row for equal layers, whose numbers are means of a layer."""
    if table.empty:
        return table
    tree = _Tree(table.set_index("module", drop=False), {}, {})
    for path in reversed(tree.rows.index[1:]):  # submodules come before their module
        tree.children.setdefault(_parent(path), []).insert(0, path)
    known: dict[Hashable, int] = {}
    alike = tree.rows[_ALIKE].astype(object).where(tree.rows[_ALIKE].notna(), None)
    for path, *values in reversed(list(alike.itertuples(name=None))):
        below = [(_name(each), tree.shape[each]) for each in tree.children.get(path, [])]
        tree.shape[path] = known.setdefault((*values, *below), len(known))
    return pd.DataFrame(list(tree.below([""]))).astype(table.dtypes).reset_index(drop=True)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Rows by path; submodules of each path; modules of equal trees have an equal shape."""

    rows: pd.DataFrame
    children: dict[str, list[str]]
    shape: dict[str, int]

    def below(self, alike: list[str]) -> Iterator[pd.Series]:
        """Yield the row of modules that are alike, and the rows of their submodules."""
        own = self.rows.loc[alike]
        row = own.iloc[0].copy()
        if len(alike) > 1:
            numeric = own.select_dtypes("number").columns
            row[numeric] = own[numeric].mean()
            parts = zip(*(path.split(".") for path in alike), strict=True)
            row["module"] = ".".join(map(_numbers, parts))
            names = {*map(_name, alike)}
            row["name"] = f"{_numbers(names)}, each" if len(names) > 1 else row["name"]
        yield row
        for group in self.groups(self.children.get(alike[0], [])):
            ends = [path.removeprefix(alike[0]) for path in group]
            yield from self.below([path + end for path in alike for end in ends])

    def groups(self, paths: list[str]) -> list[list[str]]:
        """Return siblings in groups of equal layers, in order of the first of each."""
        found: dict[Hashable, list[str]] = {}
        for path in paths:
            found.setdefault(self.shape[path] if _name(path).isdigit() else path, []).append(path)
        groups: list[list[str]] = []
        for group in found.values():
            own = self.rows.loc[group]
            is_longer = own["blocked_ns"] > _LONGER * own["blocked_ns"].median()
            is_longer &= own["share"] - own["share"].median() > _LEAST_SHARE
            groups += [[path] for path in group if is_longer[path]]
            groups += filter(None, [[path for path in group if not is_longer[path]]])
        return sorted(groups, key=lambda group: paths.index(group[0]))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _numbers(names: Iterable[str]) -> str:
    """Return equal names once, and numbers as ranges: `0-3, 7`."""
    distinct = set(names)
    if len(distinct) == 1:
        return distinct.pop()
    return text_of_ranks(sorted(map(int, distinct))).partition(" ")[2]
