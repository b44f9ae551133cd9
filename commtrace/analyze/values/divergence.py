"""Divergence of two runs by module and step, and along the program, in tables of bounded size.

A row is a phase and a module, in the order of execution; a column is a step, or several adjacent
steps. A cell has its worst pair, whose distance is the largest multiple of the tolerance.
Modules are joined with those around them until the rows are few enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.comparison import ValueComparison
from commtrace.analyze.values.global_values import by_number
from commtrace.schema import PARAMETER

MOST_ROWS, MOST_COLUMNS = 120, 80
MOST_PLACES = 400


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of the map.

    Attributes:
        phase: the phase.
        module: path of the module; the first of several.
        last_module: path of the last module, which differs if the row has several by number.
    """

    phase: str
    module: str
    last_module: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of two runs.

    Attributes:
        rows: phases and modules, in the order of execution.
        columns: first and last step of each column.
        cells: `row`, `column`, `worst` (label of a pair, or -1 if none is known), its `excess` (nan
            if unknown), `num_pairs`, `num_unknown` and `num_wrong` of them, and `num_unpaired`:
            tensors of the first run without a counterpart.
        cell_of_pair: number of the cell of each pair, by the pair's label.
        depth: number of components of modules' paths; -1 if none is left out.
    """

    rows: tuple[MapRow, ...]
    columns: tuple[tuple[int, int], ...]
    cells: pd.DataFrame
    cell_of_pair: np.ndarray
    depth: int


def divergence(
    comparison: ValueComparison,
    left: Frames,
    *,
    most_rows: int = MOST_ROWS,
    most_columns: int = MOST_COLUMNS,
) -> Divergence:
    """Return the divergence of two runs by module and step.

    Args:
        comparison: their comparison.
        left: the first run of it, whose tensors without a counterpart are counted.
        most_rows: largest number of rows.
        most_columns: largest number of columns.
    """
    pairs = comparison.pairs
    everything = by_number(left).sort_values("order", kind="stable")
    unpaired = everything[~everything["order"].isin(pairs["order"])]
    names = ["step", "phase", "role", "module", "order"]
    entries = pd.concat(
        [pairs[names].assign(pair=pairs.index), unpaired[names].assign(pair=-1)], ignore_index=True
    ).sort_values("order", kind="stable")
    rows, row_of, depth = _rows(entries, most_rows)
    columns, column_of = _columns(entries["step"].to_numpy(), most_columns)
    entries = entries.assign(row=row_of, column=column_of)
    cells, cell_of = _cells(entries, pairs)
    by_pair = entries["pair"].to_numpy()
    cell_of_pair = np.full(len(pairs), -1)
    cell_of_pair[by_pair[by_pair >= 0]] = cell_of[by_pair >= 0]
    return Divergence(rows, columns, cells, cell_of_pair, depth)


def _cells(entries: pd.DataFrame, pairs: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the cells, and the number of the cell of each entry."""
    is_paired = (entries["pair"] >= 0).to_numpy()
    place = entries["pair"].clip(lower=0).to_numpy()
    excess, is_wrong = pairs["excess"].to_numpy("float64"), pairs["is_wrong"].to_numpy("bool")
    given = entries.assign(
        excess=np.where(is_paired, excess[place], np.nan),
        wrong=is_paired & is_wrong[place],
        paired=is_paired,
    )
    grouped = given.groupby(["row", "column"], sort=True)
    table = pd.DataFrame(
        {
            "num_pairs": grouped["paired"].sum(),
            "num_unpaired": grouped["paired"].size() - grouped["paired"].sum(),
            "num_unknown": grouped["paired"].sum() - grouped["excess"].count(),
            "num_wrong": grouped["wrong"].sum(),
            "excess": grouped["excess"].max(),
        }
    )
    known = given[given["excess"].notna()].sort_values("excess", ascending=False, kind="stable")
    worst = known.drop_duplicates(["row", "column"]).set_index(["row", "column"])["pair"]
    table["worst"] = worst.reindex(table.index).fillna(-1).astype("int64")
    return table.reset_index(), grouped.ngroup().to_numpy()


def _columns(steps: np.ndarray, most: int) -> tuple[tuple[tuple[int, int], ...], np.ndarray]:
    """Return the steps of each column, and the column of each entry."""
    found, number = np.unique(steps, return_inverse=True)
    width = -(-len(found) // most)
    columns = tuple(
        (int(found[place]), int(found[min(place + width, len(found)) - 1]))
        for place in range(0, len(found), width)
    )
    return columns, number // width


def _rows(entries: pd.DataFrame, most: int) -> tuple[tuple[MapRow, ...], np.ndarray, int]:
    """Return the rows, the row of each entry, and the depth of modules."""
    modules = entries["module"].astype(str)
    unique = modules.unique()
    deepest = max((name.count(".") + 1 for name in unique), default=1)
    for depth in range(deepest, 0, -1):
        short = {name: ".".join(name.split(".")[:depth]) for name in unique}
        table = entries.assign(module=modules.map(short), phase=entries["phase"].astype(str))
        number = table.groupby(["phase", "module"], sort=False).ngroup().to_numpy()
        if number.max() < most:
            break
    names = table.loc[~pd.Series(number, table.index).duplicated(), ["phase", "module"]]
    order = _in_order_of_execution(table, number)
    keys = list(names.itertuples(index=False, name=None))
    blocks = _blocks([keys[place] for place in order], most)
    rows, of_number = [], np.zeros(len(keys), "int64")
    for place, block in enumerate(blocks):
        first, last = (keys[order[at]] for at in (block[0], block[-1]))
        rows.append(MapRow(first[0], first[1], last[1]))
        of_number[[order[at] for at in block]] = place
    return tuple(rows), of_number[number], -1 if depth == deepest else depth


def _in_order_of_execution(table: pd.DataFrame, number: np.ndarray) -> list[int]:
    """Return the numbers of rows, phase by phase, in the order of execution.

    The first step that a row occurs in counts. Parameters are all observed before the first module
    runs, so they count only for modules that have nothing else.
    """
    begin = table.groupby("step")["order"].transform("min")
    when = pd.DataFrame(
        {
            "number": number,
            "phase": table["phase"],
            "is_parameter": table["role"] == PARAMETER,
            "step": table["step"],
            "at": table["order"] - begin,
        }
    )
    when = when.sort_values(["is_parameter", "step", "at"], kind="stable")
    first = when.drop_duplicates("number")
    by_phase = first.drop_duplicates("phase").sort_values(["is_parameter", "at"], kind="stable")
    phase = {name: place for place, name in enumerate(by_phase["phase"])}
    first = first.assign(phase=first["phase"].map(phase))
    return first.sort_values(["phase", "is_parameter", "at"], kind="stable")["number"].tolist()


def _blocks(keys: list[tuple[str, str]], most: int) -> list[list[int]]:
    """Return adjacent places that share a row; all of the same phase."""
    width = 1
    while True:
        blocks: list[list[int]] = []
        for place, (phase, _) in enumerate(keys):
            is_same = bool(blocks) and keys[blocks[-1][0]][0] == phase
            if is_same and len(blocks[-1]) < width:
                blocks[-1].append(place)
            else:
                blocks.append([place])
        if len(blocks) <= max(most, len({phase for phase, _ in keys})):
            return blocks
        width = max(width + 1, -(-len(keys) // most))


def along_the_program(comparison: ValueComparison, *, most: int = MOST_PLACES) -> pd.DataFrame:
    """Return the worst distance of each stretch of the program, in order.

    Returns:
        `first` and `last` pair, `worst` (label of the worst pair, -1 if none is known), its
        distance in multiples of the tolerance (`excess`), `num_wrong`, and the first pair's `step`.
    """
    pairs = comparison.pairs
    width = max(-(-len(pairs) // most), 1)
    place = np.arange(len(pairs)) // width
    given = pd.DataFrame(
        {
            "place": place,
            "pair": pairs.index,
            "excess": pairs["excess"].to_numpy(),
            "is_wrong": pairs["is_wrong"].to_numpy(),
            "step": pairs["step"].to_numpy(),
        }
    )
    grouped = given.groupby("place")
    table = pd.DataFrame(
        {
            "first": grouped["pair"].first(),
            "last": grouped["pair"].last(),
            "num_wrong": grouped["is_wrong"].sum(),
            "step": grouped["step"].first(),
        }
    )
    known = given[given["excess"].notna()].sort_values("excess", ascending=False, kind="stable")
    worst = known.drop_duplicates("place").set_index("place")["pair"].reindex(table.index)
    table["worst"] = worst.fillna(-1).astype("int64")
    at = worst.fillna(table["first"]).astype("int64")
    excess = pairs["excess"].to_numpy()[at]
    # Of elements that are nan or infinite, the distance of the others is known.
    of_others = pairs["distance"].to_numpy()[at] / pairs["tolerance"].to_numpy()[at]
    table["excess"] = np.where(worst.isna(), np.nan, np.where(np.isinf(excess), of_others, excess))
    return table.reset_index(drop=True)
