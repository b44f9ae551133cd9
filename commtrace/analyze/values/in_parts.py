"""Layouts of plain tensors that a comparison learns from the tensors of the first run.

on one rank    no other rank has the module or the parameter at all, as in a stage of a pipeline
in parts       the ranks' tensors have as many elements together as the first run's tensor has

The elements of a part are unknown, so that its sketches say nothing. Sums, norms and the largest
magnitude do not depend on the places of elements, so that parts are compared by these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.tensor_shapes import numel
from commtrace.analyze.values.global_values import (
    ALL_EQUAL,
    FACTS,
    KEY,
    ON_ONE_RANK,
    OWN_DATA,
    SKETCHES,
    with_rows,
)
from commtrace.schema import (
    GRADIENT,
    INPUT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    RESULT,
    STATE,
    UNCLIPPED,
    UPDATED,
)

IN_PARTS = "in parts on ranks"
"""Layout of a tensor whose parts ranks hold, in an unknown order."""
_OF_TENSOR = ["step", "phase", "role", "module", "module_call", "name", "op", "occurrence"]
_SMALL_MEAN = 0.1
_COARSE = 1e-3
_OF_NAME = ["role", "module", "name"]
_ACTIVATIONS = (INPUT, OUTPUT, RESULT)
_OF_PARAMETERS = (UNCLIPPED, GRADIENT, STATE, UPDATED)
_OF_DATA = (INPUT, OUTPUT, OUTPUT_GRADIENT, RESULT)


def with_learned_layouts(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return table `tensors` of the second run with the layouts that the first run shows.

    Each tensor in parts is added as a row whose sketches are unknown.
    """
    right = with_lone_ranks(right)
    rows = [*_whole(left, right)]
    return with_rows(right, pd.DataFrame(rows)) if rows else right


def with_lone_ranks(side: pd.DataFrame) -> pd.DataFrame:
    """Return table `tensors` with a layout for tensors of unknown layout on a single rank."""
    is_unknown = (side["layout"] == "") & ~side["mesh"].str.startswith(OWN_DATA)
    # The module of a parameter is its owner; results outside of modules are not of one rank alone.
    # Layers of other stages may begin with equal weights under the same name.
    ranks = side["rank"].where(side["rank"] >= 0)
    is_lone = ranks.groupby(side["module"]).transform("nunique") == 1
    is_lone &= is_unknown & (side["module"] != "")
    return side.assign(layout=side["layout"].where(~is_lone, ON_ONE_RANK))


def _whole(left: pd.DataFrame, right: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a row for each tensor that ranks hold in parts."""
    shapes = left[left["role"] != RESULT].groupby(_OF_NAME, observed=True)["shape"].agg(set)
    is_plain = right["layout"].isin(("", ALL_EQUAL)) & (right["role"] != RESULT)
    plain = right[is_plain]
    plain = plain[plain["norm"].notna()]
    known = shapes.reindex(pd.MultiIndex.from_frame(plain[_OF_NAME]))
    is_other = np.array(
        [
            isinstance(own, set) and len(own) == 1 and shape not in own
            for own, shape in zip(known, plain["shape"], strict=True)
        ],
        dtype=bool,
    )
    plain, known = plain[is_other], known[is_other]
    plain = plain.assign(whole=[next(iter(each)) for each in known])
    first = plain[plain["role"] == PARAMETER].sort_values("rank")
    first = first.assign(holder=first.groupby(["name", *FACTS, "shape"])["rank"].transform("min"))
    holders = {
        str(name): rows.drop_duplicates("rank").set_index("rank")["holder"]
        for name, rows in first.groupby("name")
    }
    for (*_, role, _, _, name, _, _), rows in plain.groupby(_OF_TENSOR, sort=False, observed=True):
        owner = name if role != STATE else name.rpartition(".")[0]
        found = _joined(rows, holders.get(owner) if role in _OF_PARAMETERS else None)
        if found is not None:
            yield found


def _joined(rows: pd.DataFrame, holders: pd.Series | None) -> dict[str, Any] | None:
    """Return the row of a tensor that ranks hold in parts; None if that is not known.

    Args:
        rows: the ranks' parts.
        holders: for each rank, the first rank with the same part of its parameter, if known.
    """
    rows = rows.sort_values("rank", kind="stable")
    whole = rows["whole"].iloc[0]
    size, sizes = numel(whole), [numel(each) for each in rows["shape"]]
    num_ranks = int(rows["num_ranks"].sum())
    different = rows.drop_duplicates([*FACTS, "shape"])
    holder = rows["rank"] if holders is None else rows["rank"].map(holders)
    of_holders = rows[rows["rank"] == holder]
    num_differing = 0
    if sum(map(numel, of_holders["shape"])) == size:
        parts, times = of_holders, 1.0
        of_first = of_holders.set_index("rank")[[*FACTS]].reindex(holder).to_numpy("float64")
        num_differing = int((of_first != rows[[*FACTS]].to_numpy("float64")).any(axis=1).sum())
    elif sum(map(numel, different["shape"])) == size:
        parts, times = different, 1.0
    elif sum(sizes) == size:
        parts, times = rows, 1.0
    elif len(different) == 1 and sizes[0] and size % sizes[0] == 0 and num_ranks * sizes[0] >= size:
        parts, times = different, size / sizes[0]
    else:
        return None
    return {
        **rows.iloc[0].drop("whole").to_dict(),
        **dict.fromkeys(SKETCHES, math.nan),
        "shape": whole,
        "layout": IN_PARTS,
        "rank": -1,
        "num_ranks": num_ranks,
        "num_differing": num_differing,
        "total": math.fsum(parts["total"]) * times,
        "norm": math.sqrt(math.fsum(parts["norm"] ** 2) * times),
        "largest": parts["largest"].max(),
        "num_nan": parts["num_nan"].sum(),
        "num_inf": parts["num_inf"].sum(),
    }


def of_parted_holders(side: pd.DataFrame) -> pd.Series:
    """Return which tensors are of parameters whose parts several ranks hold, with other values.

    That is by design if only one of these ranks needs the right value, for its optimizer.
    """
    is_of_parameter = side["role"].isin(_OF_PARAMETERS)
    return (side["layout"] == IN_PARTS) & is_of_parameter & (side["num_differing"] > 0)


def distances_without_order(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the distance of each pair as sums and norms show it, whatever the order of elements.

    The sum of elements is a further sketch, with equal weights. Rounding all elements in the same
    direction changes it by more than their norm, so it is measured against itself, too.
    """
    norm = np.fmax(left["norm"], right["norm"])
    of_total = (left["total"] - right["total"]).abs() / np.fmax(norm, right["total"].abs())
    of_total = of_total.where(norm > 0, 0.0).to_numpy("float64")
    return np.fmax(of_total, distances_of_norms(left, right))


def distances_of_norms(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return the difference of the norms of each pair, relative to the larger."""
    norm = np.fmax(left["norm"], right["norm"])
    return ((left["norm"] - right["norm"]).abs() / norm).where(norm > 0, 0.0).to_numpy("float64")


def distances_of_all_calls(left: pd.DataFrame, right: pd.DataFrame) -> np.ndarray:
    """Return, for pairs in parts, the joint distance of all calls of a module in a step; else nan.

    A rank's micro-batch is a part of the batch, but not of a single device's micro-batch.
    """
    found = np.full(len(left), np.nan)
    places = np.flatnonzero((right["layout"] == IN_PARTS) & right["role"].isin(_OF_DATA))
    keys = [left[name].iloc[places] for name in ("step", "phase", "role", "module", "name")]
    sums = []
    for side in (left, right):
        own = side.iloc[places][["total", "norm"]].assign(norm=lambda each: each["norm"] ** 2)
        together = own.groupby(keys).transform("sum")
        sums.append(together.assign(norm=together["norm"] ** 0.5))
    found[places] = distances_without_order(*sums)
    return found


def shows_little(
    right: pd.DataFrame, tolerance: np.ndarray, distance: np.ndarray | None = None
) -> np.ndarray:
    """Return which tensors show little by being right: a few numbers may be so by chance.

    A normalization leaves activations a mean of zero and their norm in any case. In coarse
    dtypes, single numbers, and sums and norms of parts, are close to the right values even if
    tensors are wrong, and show little unless their distance is small.
    """
    has_no_mean = right["total"].abs() <= _SMALL_MEAN * right["norm"]
    is_normalized = (has_no_mean & right["role"].isin(_ACTIVATIONS)).to_numpy()
    is_in_parts = (right["layout"] == IN_PARTS).to_numpy()
    is_scalar = right["shape"].isin(("[]", "[1]")).to_numpy()
    is_coarse = tolerance > _COARSE
    if distance is not None:
        is_coarse &= ~(distance <= _COARSE)
    is_little = is_in_parts & (is_normalized | is_coarse) | is_scalar & is_coarse
    return is_little | are_counts(right)


def are_counts(side: pd.DataFrame) -> np.ndarray:
    """Return which tensors hold whole numbers, such as the number of tokens of each expert.

    Decisions give these, which other activations may leave as they are.
    """
    return ((side["total"] % 1 == 0) & (side["largest"] % 1 == 0)).to_numpy()


def may_be_in_another_order(right: pd.DataFrame) -> np.ndarray:
    """Return which tensors a single rank has, which may have received its tokens in any order."""
    of_tokens = right["role"].isin(_OF_DATA)
    return ((right["layout"] == ON_ONE_RANK) & (right["rank"] >= 0) & of_tokens).to_numpy()


def ranks_parts(table: pd.DataFrame) -> Callable[[np.ndarray], set[int]]:
    """Return a function that adds all ranks' parts to tensors of unknown layout, by labels."""
    number = table.groupby([*KEY], sort=False, observed=True).ngroup()
    plain = number[table["layout"] == ""]
    by_number = {key: set(labels) for key, labels in plain.groupby(plain).groups.items()}
    of_ranks = number[table["layout"].isin(("", IN_PARTS))].to_dict()

    def parts_of(labels: np.ndarray) -> set[int]:
        found = {int(label) for label in labels}
        return found.union(*(by_number.get(of_ranks.get(label), ()) for label in found))

    return parts_of
