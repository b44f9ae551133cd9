"""Evidence of parameters on their gradients and states, and of gradients on their norms.

A parameter that is whole, or in parts that add up, when the model is first called is that in all
steps. Its gradient at the optimizer's step is wrong for certain if the step leaves it wrong, too.
A wrong gradient may be the cause of what the program computes from all gradients between the
backward pass and the step, such as their norm, and of a factor that all gradients then share.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import KEY, SKETCHES
from commtrace.schema import (
    BUFFER,
    GRADIENT,
    NAMED,
    PARAMETER,
    RESULT,
    STATE,
    UNCLIPPED,
    UPDATED,
)

_OF_GRADIENTS = (UNCLIPPED, GRADIENT)
_WITH_AN_UPDATE = (*_OF_GRADIENTS, STATE)
_AT_FIRST = (PARAMETER, BUFFER)
_BACKWARD = "backward"
_LEAST_ALIKE = 3
_CLOSE = 1e-3
_OF_TOLERANCE = 4
_PARTED = 1e-5
"""Share of the norm above which replicas are no longer equal."""


def with_parameters(
    judged: pd.DataFrame, theirs: pd.DataFrame, table: pd.DataFrame
) -> pd.DataFrame:
    """Return pairs that were judged, certain where the layout of the parameter is known.

    What the optimizer leaves is of the next step, which begins meanwhile: the next values of the
    name are those that a gradient leads to. Replicas that a step leaves different are wrong,
    however little the rounding of the program lets one see.

    Args:
        judged: the pairs.
        theirs: their tensors in the second run.
        table: all tensors of the second run.
    """
    role, is_wrong = judged["role"], judged["is_wrong"].to_numpy()
    is_right = ~is_wrong & judged["distance"].notna().to_numpy()
    is_begun = is_right & (theirs["layout"] != "").to_numpy() & role.isin(_AT_FIRST).to_numpy()
    owner = judged["name"].where(role != STATE, judged["name"].str.rpartition(".")[0])
    is_known = owner.isin({*judged["name"][is_begun]}).to_numpy()
    is_known = is_known & (judged["right_on"] < 0).to_numpy()
    is_updated = (role == UPDATED).to_numpy()
    is_parted = is_known & is_updated & _have_parted(theirs, table)
    is_wrong = is_wrong | is_parted
    becomes_wrong = pd.Series(np.where(is_updated, is_wrong, np.nan), index=judged.index)
    later, earlier = becomes_wrong.groupby(owner).bfill(), becomes_wrong.groupby(owner).ffill()
    is_followed = np.where(role == STATE, earlier, later) == 1.0
    is_sure = is_updated | (role == BUFFER) | (role.isin(_WITH_AN_UPDATE) & is_followed)
    # An optimizer that reduces gradients itself, into other memory, leaves them as they are.
    is_plain = is_wrong & role.isin(_OF_GRADIENTS).to_numpy() & (theirs["layout"] == "").to_numpy()
    num_reduced_later = int((is_plain & (later == 0.0)).sum())
    is_local = is_plain & (2 * num_reduced_later > is_plain.sum())
    return judged.assign(
        is_wrong=is_wrong & ~is_local,
        is_certain=judged["is_certain"] | is_wrong & is_known & is_sure,
    )


def _have_parted(theirs: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Return which tensors all ranks of the run have, and have different."""
    plain = table[(table["layout"] == "") & (table["role"] == UPDATED)]
    if plain.empty:
        return np.zeros(len(theirs), dtype=bool)
    of_tensor = plain.groupby([*KEY, "shape"], observed=True)
    spread = (of_tensor[[*SKETCHES]].max() - of_tensor[[*SKETCHES]].min()).max(axis=1)
    is_everywhere = of_tensor["rank"].nunique() == table.loc[table["rank"] >= 0, "rank"].nunique()
    parted = spread[is_everywhere & (spread > _PARTED * of_tensor["norm"].max())].index
    is_of_them = pd.MultiIndex.from_frame(theirs[[*KEY, "shape"]]).isin(parted)
    return is_of_them & (theirs["layout"] == "").to_numpy()


def cause_of(place: int, judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> int:
    """Return the place of the wrong gradient that explains a wrong tensor after the backward pass.

    It is the first one of the step that is wrong in another way than all others; without one, the
    place of the wrong tensor itself.
    """
    row = judged.iloc[place]
    same = np.flatnonzero(judged["step"] == row["step"])
    backward = same[judged["phase"].iloc[same] == _BACKWARD]
    if len(backward) and place < backward[-1]:
        return place
    is_sum = row["role"] in (RESULT, NAMED) and not row["module"]
    if not is_sum and row["role"] not in _OF_GRADIENTS:
        return place
    for role in _OF_GRADIENTS:
        own = same[(judged["role"].iloc[same] == role) & (same >= (0 if is_sum else place))]
        wrong = own[judged["is_wrong"].iloc[own].to_numpy()]
        if not len(wrong):
            continue
        close = max(_CLOSE, _OF_TOLERANCE * float(judged["rounding"].iloc[wrong].max()))
        factors = np.array([_factor(ours.iloc[each], theirs.iloc[each], close) for each in wrong])
        common = _common(factors, close)
        others = wrong[~(np.abs(factors - common) <= close * abs(common))]
        if math.isnan(common):
            return int(wrong[0])
        if len(others):
            return int(others[0])
    return place


def _common(factors: np.ndarray, close: float) -> float:
    """Return the factor that most wrong gradients have; nan if they share none."""
    known = np.sort(factors[np.isfinite(factors)])
    if len(known) < _LEAST_ALIKE:
        return math.nan
    middle = float(known[len(known) // 2])
    num_alike = int((np.abs(known - middle) <= close * abs(middle)).sum())
    return middle if num_alike >= _LEAST_ALIKE and 2 * num_alike > len(factors) else math.nan


def _factor(left: pd.Series, right: pd.Series, close: float) -> float:
    """Return the factor of a tensor that is a multiple of the right one; else nan."""
    x, y = (side[[*SKETCHES]].to_numpy("float64") for side in (left, right))
    if not np.any(x) or not np.all(np.isfinite(y)):
        return math.nan
    factor = float(x @ y / (x @ x))
    is_multiple = np.linalg.norm(factor * x - y) <= close * np.linalg.norm(y)
    return factor if is_multiple else math.nan
