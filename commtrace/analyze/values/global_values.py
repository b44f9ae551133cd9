"""Fingerprints of global tensors, combined from the parts that ranks hold.

    placement    combination over the ranks of its axis
    S(dim)       sketches, totals and squares of norms add up
    R            all ranks hold the same part, which counts once
    P(sum)       sketches and totals add up; norm and largest element of the sum are unknown
    P(avg)       likewise, divided by the number of ranks
    other P      unknown

A tensor with missing ranks is unknown. A tensor without a known layout is separate on each rank,
unless it is equal on all ranks of the run, which are then taken to hold replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.stated_mesh import mesh_of
from commtrace.schema import CLIPPING, LOCAL_GRADIENT, LOSS, NAMED, NUM_SKETCHES, TABLES, Column

OWN_DATA = "data="
"""Prefix of the mesh of tensors that each rank computes from data of its own."""
SKETCHES = tuple([f"sketch_{number}" for number in range(NUM_SKETCHES)])
FACTS = (*SKETCHES, "total", "norm", "largest", "num_nan", "num_inf")
KEY = ("step", "phase", "role", "module", "module_call", "name", "op", "occurrence")
"""Columns that identify a tensor within a run, beside its layout."""

_OF_TABLE = {column.name: column for column in TABLES["fingerprints"]}
_KEPT = ("module_class", "source_file", "source_line", "source_function", "dtype", "shape")
# Ranks have gradients and losses of their own, which reductions combine.
_OF_REDUCTIONS = (LOSS, LOCAL_GRADIENT, CLIPPING)
ALL_EQUAL = "equal on all ranks"
"""Layout of tensors of unknown layout that all ranks have alike."""
ON_ONE_RANK = "on one rank"
"""Layout of tensors that no other rank has."""

COLUMNS = (
    *(_OF_TABLE[name] for name in ("step", "phase", "role", "module", "module_call", "name", "op")),
    Column("occurrence", int, "", "number of the tensor among those alike, from 0"),
    *(_OF_TABLE[name] for name in _KEPT),
    Column("layout", str, "", "placements by mesh axis, `dp:R tp:S(1)`; empty if unknown"),
    Column("rank", int, "", "the only rank of a tensor without a known layout; otherwise -1"),
    Column("num_ranks", int, "", "ranks that hold a part"),
    Column("num_differing", int, "", "ranks whose part differs from a replica on another rank"),
    Column("first_differing", int, "", "the first of these ranks"),
    Column("order", int, "", "place in the order of time, by the first rank"),
    *(_OF_TABLE[name] for name in FACTS),
)


@dataclass(frozen=True, slots=True)
class _Role:
    """Role of a rank in a layout.

    Attributes:
        part: number of the part that the rank holds; equal numbers are replicas.
        counts: this rank counts among its replicas; the others do not.
        weight: factor of its sketches; nan if they cannot be combined.
        num_parts: number of different parts.
        is_partial: the parts are partial sums.
        layout: the layout, with names of axes.
    """

    part: int
    counts: bool
    weight: float
    num_parts: int
    is_partial: bool
    layout: str


@lru_cache(maxsize=1 << 16)
def _role_of(mesh: str, placements: str, rank: int) -> _Role:
    """Return the role of a rank, which is alone if the layout is unknown or damaged."""
    stated = mesh_of(mesh, placements)
    places = [] if stated is None else np.argwhere(stated.ranks == rank).tolist()
    if stated is None or not places:
        return _Role(rank, True, 1.0, 1, False, "")
    part, num_parts, counts = 0, 1, True
    for letter, size, place in zip(stated.placements, stated.ranks.shape, places[0], strict=True):
        if letter == "R":
            counts &= place == 0
        else:
            part, num_parts = part * size + place, num_parts * size
    return _Role(part, counts, stated.weight, num_parts, stated.is_partial, stated.text)


def _fingerprints(part: Frames) -> pd.DataFrame:
    table = part.fingerprints
    table = table[~table["role"].isin(_OF_REDUCTIONS)]
    return pd.DataFrame({name: table[name] for name in _OF_TABLE})


@cached_per_run
def parts(frames: Frames) -> pd.DataFrame:
    """Return table `fingerprints` with the tensor that each row is a part of.

    The new columns are `occurrence`, `tensor` (a number), `part`, `counts`, `weight`, `num_parts`,
    `is_partial`, `layout`, `instance` (the rank of a tensor without a known layout, or -1) and
    `differs` (from the first of its replicas).
    """
    values = joined(frames.by_ranks(_fingerprints))
    for name in ("phase", "role", "module", "name", "op", "mesh", "placements"):
        values[name] = values[name].astype(str)
    values = values.sort_values(["rank", "id"], kind="stable").reset_index(drop=True)
    alike = ["rank", *KEY[:-1]]
    values["occurrence"] = values.groupby(alike, sort=False).cumcount()
    roles = [
        _role_of(*each)
        for each in zip(values["mesh"], values["placements"], values["rank"].tolist(), strict=True)
    ]
    for name in ("part", "counts", "weight", "num_parts", "is_partial", "layout"):
        values[name] = [getattr(role, name) for role in roles]
    _take_equal_for_replicas(values)
    is_alone = values["layout"] == ""
    values["instance"] = values["rank"].where(is_alone, -1)
    key = [*KEY, "shape", "mesh", "placements", "instance"]
    values["tensor"] = values.groupby(key, sort=False, observed=True).ngroup()
    first = values.groupby(["tensor", "part"], sort=False)[list(FACTS)].transform("first")
    facts = values[list(FACTS)]
    values["differs"] = ((facts != first) & ~(facts.isna() & first.isna())).any(axis=1)
    return values


def _take_equal_for_replicas(values: pd.DataFrame) -> None:
    """Make tensors of unknown layout replicas of each other if all ranks hold them alike."""
    num_ranks = values["rank"].nunique()
    # Values computed from a rank's own data can be equal by chance; a program names losses and
    # norms that it has reduced.
    is_comparable = ~values["mesh"].str.startswith(OWN_DATA) | (values["role"] == NAMED)
    unknown = values[(values["layout"] == "") & is_comparable]
    if num_ranks == 1:
        values.loc[unknown.index, "layout"] = ON_ONE_RANK
    if num_ranks < 2 or unknown.empty:
        return
    grouped = unknown.groupby([*KEY, "shape"], sort=False, observed=True)
    is_equal = grouped["rank"].transform("nunique") == num_ranks
    for name in FACTS:
        is_equal &= grouped[name].transform("nunique", dropna=False) == 1
    found = is_equal.index[is_equal]
    values.loc[found, "part"] = 0
    values.loc[found, "counts"] = values.loc[found, "rank"] == values["rank"].min()
    values.loc[found, "layout"] = ALL_EQUAL


def tensors(frames: Frames) -> pd.DataFrame:
    """Return a row for each observed tensor, in order of time."""
    return typed(by_number(frames), COLUMNS)


@cached_per_run
def by_number(frames: Frames) -> pd.DataFrame:
    """Return `tensors` by the numbers of tensors in `parts`, with more columns.

    They are `mesh`, `at_ns` on the first rank, and `apart`: the largest distance of a replica from
    the first.
    """
    rows = parts(frames)
    if rows.empty:
        return pd.DataFrame(columns=[column.name for column in COLUMNS])
    by_tensor = rows.groupby("tensor", sort=True)
    table = by_tensor[[*KEY, *_KEPT, "layout", "mesh", "num_parts", "is_partial"]].first()
    table["rank"] = by_tensor["instance"].first()
    table["num_ranks"] = by_tensor["rank"].nunique()
    table["num_differing"] = by_tensor["differs"].sum()
    differing = rows["rank"].where(rows["differs"])
    table["first_differing"] = differing.groupby(rows["tensor"]).min().fillna(-1)
    table["at_ns"] = by_tensor["at_ns"].first()
    table["apart"] = _apart(rows).reindex(table.index).fillna(0.0)
    table["order"] = _order(rows)
    counting = rows[rows["counts"]]
    weighted = counting[[*SKETCHES, "total"]].mul(counting["weight"], axis=0)
    sums = weighted.groupby(counting["tensor"]).sum(min_count=1)
    # A sum over parts of which one is unknown is unknown.
    has_unknown = weighted.isna().any(axis=1).groupby(counting["tensor"]).any()
    is_known = by_tensor["part"].nunique() == table["num_parts"]
    is_known &= ~has_unknown.reindex(table.index, fill_value=True)
    for name in (*SKETCHES, "total"):
        table[name] = sums[name].reindex(table.index).where(is_known)
    is_known &= ~table["is_partial"]
    squares = (counting["norm"] ** 2).groupby(counting["tensor"]).sum(min_count=1)
    table["norm"] = np.sqrt(squares.reindex(table.index)).where(is_known)
    largest = counting["largest"].groupby(counting["tensor"]).max()
    table["largest"] = largest.reindex(table.index).where(is_known)
    for name in ("num_nan", "num_inf"):
        counted = counting[name].groupby(counting["tensor"]).sum()
        table[name] = counted.reindex(table.index).where(is_known, -1)
    return table.sort_values("order", kind="stable")


def with_rows(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table by numbers of tensors, with more rows under new numbers, in order of time.

    Args:
        table: as `by_number` returns it.
        rows: with its columns at least.
    """
    first = int(table.index.max()) + 1
    rows = rows[[*table.columns]].set_axis(pd.RangeIndex(first, first + len(rows)))
    table = table.astype(dict.fromkeys(("module_class", "shape", "dtype"), str))
    joined = pd.concat([table, rows.astype(table.dtypes)])
    return joined.sort_values("order", kind="stable")


def _apart(rows: pd.DataFrame) -> pd.Series:
    """Return the largest distance of a replica from the first, for tensors with such replicas."""
    names = [*SKETCHES]
    differing = rows[rows["differs"] & ~rows["is_partial"]]
    first = rows.drop_duplicates(["tensor", "part"]).set_index(["tensor", "part"])[names]
    of_first = first.reindex(pd.MultiIndex.from_frame(differing[["tensor", "part"]]))
    apart = differing[names].to_numpy("float64") - of_first.to_numpy("float64")
    squares = pd.Series((apart**2).mean(axis=1), index=differing["tensor"])
    return squares.groupby(level=0).max() ** 0.5


def _order(rows: pd.DataFrame) -> pd.Series:
    """Return each tensor's place in time, as on the first rank that holds it."""
    first = rows.drop_duplicates("tensor")
    return first.set_index("tensor")["at_ns"].rank(method="first").astype("int64") - 1


TENSORS = Analysis(
    "tensors",
    "Tensors",
    "Which values did the tensors have, whatever their layout?",
    tensors,
    COLUMNS,
    topic="Values",
    shown="step phase role module name op shape dtype layout norm total num_differing",
    needs="fingerprints",
)
