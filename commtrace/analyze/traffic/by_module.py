"""Communication by module, as a tree.

A module's *inclusive* measures cover its calls and its submodules' calls. Its *own* measures
cover the calls attributed to the module itself, without submodules (0 if there are none, and no
bandwidth). The first row, with path "" and depth 0, is the entire run; its own calls are the
root module's, and all calls outside of any module. Rows are in depth-first order, siblings by name
with numbers by value:

    path                  depth   num_calls   own_num_calls
    ""                    0       7           1
    layers                1       6           0
    layers.0              2       6           2
    layers.0.attention    3       4           4
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, measures, summed, totals_of_part
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_each_part
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

_SUMS = ("num_calls", "payload_bytes", "wire_bytes", "time_ns", "device_ns", "blocked_ns", "share")
OWN = (*_SUMS, "algbw_bytes_per_s", "busbw_bytes_per_s")

COLUMNS = (
    Column("module", str, "", "path of the module, empty for the entire run"),
    Column("name", str, "", "last component of the path"),
    Column("depth", int, "", "number of components of the path"),
    Column(
        "module_class", str, "", "class name, if recorded with a call or an operator", title="Class"
    ),
    *MEASURES,
    *(
        Column(
            f"own_{column.name}",
            float,
            column.unit,
            f"{column.meaning}; without submodules",
            title=f"{column.heading}, own",
        )
        for column in MEASURES
        if column.name in OWN
    ),
)


def by_module(frames: Frames) -> pd.DataFrame:
    """Return a row per module in which communication happens, in the tree's order."""
    sums, classes_of_parts = zip(*frames.by_ranks(_of_part), strict=True)
    own = summed(sums)
    if own.empty:
        return typed(own, COLUMNS)
    own.index = own.index.astype(object)
    ancestry = [(path, ancestor) for path in own.index for ancestor in ancestors(path)]
    tree = own.loc[[path for path, _ in ancestry]]
    inclusive = tree.groupby([ancestor for _, ancestor in ancestry], sort=False).sum(min_count=1)
    paths = sorted(inclusive.index, key=natural_key)
    table = measures(frames, inclusive.loc[paths])
    own_measures = measures(frames, own).reindex(paths)
    makes_calls = own_measures.index.isin(own.index)
    for name in OWN:
        values = own_measures[name]
        # A module without own calls has sums of 0; those of calls with unknown values are unknown.
        table[f"own_{name}"] = values.where(makes_calls, 0.0) if name in _SUMS else values
    classes = _classes(classes_of_parts)
    table.insert(0, "module", paths)
    table.insert(1, "name", [path.rpartition(".")[2] for path in paths])
    table.insert(2, "depth", [len(parts(path)) for path in paths])
    table.insert(3, "module_class", [classes.get(path, "") for path in paths])
    return typed(table, COLUMNS)


BY_MODULE = Analysis(
    "by_module",
    "By module",
    "Which modules communicate, with and without their submodules?",
    by_module,
    COLUMNS,
    topic="Where from",
    shown=(
        "module module_class num_calls own_num_calls wire_bytes "
        "own_wire_bytes blocked_ns own_blocked_ns share"
    ),
)


def parts(path: str) -> list[str]:
    """Return the components of a module's path; none for the entire run.

    >>> parts("layers.0.attention")
    ['layers', '0', 'attention']
    """
    return path.split(".") if path else []


def ancestors(path: str) -> list[str]:
    """Return the paths from the entire run down to `path` itself.

    >>> ancestors("layers.0")
    ['', 'layers', 'layers.0']
    """
    names = parts(path)
    return [".".join(names[:depth]) for depth in range(len(names) + 1)]


def natural_key(path: str) -> list[list[tuple[int, int, str]]]:
    """Return a sort key that puts `layers.2` before `layers.10`, and modules before submodules."""
    return [
        [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in _pieces(name)]
        for name in parts(path)
    ]


def _pieces(name: str) -> Iterable[str]:
    return filter(None, re.split(r"([0-9]+)", name))


def _of_part(part: Frames) -> tuple[pd.DataFrame, pd.DataFrame]:
    return totals_of_part(part, ("module",)), _classes_of_part(part)


def _classes(parts: Sequence[pd.DataFrame]) -> dict[str, str]:
    """Return the class name of each module, where a call or an operator recorded it."""
    # Operators first, since calls take precedence.
    named = pd.concat(parts).sort_values("is_of_call", kind="stable")
    return dict(zip(named["module"], named["module_class"], strict=True))


@of_each_part
def _classes_of_part(part: Frames) -> pd.DataFrame:
    """Return the class names that operators and calls recorded, by `module`."""
    tables = [
        table[["module", "module_class"]].drop_duplicates().assign(is_of_call=is_of_call)
        for table, is_of_call in ((part.ops, False), (part.comm, True))
    ]
    named = pd.concat(tables, ignore_index=True).astype({"module": object, "module_class": object})
    return named[named["module_class"] != ""]
