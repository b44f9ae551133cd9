"""Layouts of parameters and buffers, which stay the same in all steps.

A parameter that is whole when the model is first called, or in parts that add up, stays so. Its
gradient and states are wrong for certain if the optimizer's step leaves it wrong, too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import KEY, SKETCHES
from commtrace.analyze.values.in_parts import of_parted_holders
from commtrace.analyze.values.tolerance import is_coarse
from commtrace.schema import BUFFER, GRADIENT, OUTPUT, PARAMETER, STATE, UNCLIPPED, UPDATED

_OF_GRADIENTS = (UNCLIPPED, GRADIENT)
_WITH_AN_UPDATE = (*_OF_GRADIENTS, STATE)
_AT_FIRST = (PARAMETER, BUFFER)
_MOST = 0.5
"""Share of an update's parameters that local steps leave different, at least."""
_PARTED = 1e-5
"""Share of the norm above which replicas are no longer equal."""


def with_kept_layouts(
    judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame, table: pd.DataFrame
) -> pd.DataFrame:
    """Return pairs with certain verdicts where the layout of the parameter is known.

    An updated parameter belongs to the next step, which begins meanwhile: a gradient leads to the
    next values of its name. Replicas that a step leaves different are wrong, even if rounding in
    the program's dtype would hide the difference.

    Args:
        judged: the pairs.
        ours: their tensors in the first run, whose replicas may differ by design.
        theirs: their tensors in the second run.
        table: all tensors of the second run.
    """
    role, is_wrong = judged["role"], judged["is_wrong"].to_numpy()
    is_right = ~is_wrong & judged["distance"].notna().to_numpy()
    is_begun = is_right & ~judged["is_sum"].to_numpy() & role.isin(_AT_FIRST).to_numpy()
    owner = judged["name"].where(role != STATE, judged["name"].str.rpartition(".")[0])
    is_known = owner.isin({*judged["name"][is_begun]}).to_numpy()
    is_known = is_known & (judged["right_on"] < 0).to_numpy()
    is_updated = (role == UPDATED).to_numpy()
    is_one = ours["layout"] != ""
    is_parted = is_known & is_updated & _have_parted(theirs, table) & is_one.to_numpy()
    is_alone = _step_alone(judged, theirs, is_wrong, owner)
    is_wrong = (is_wrong | is_parted) & ~is_alone
    becomes_alone = pd.Series(np.where(is_updated, is_alone, np.nan), index=judged.index)
    is_before = role.isin(_OF_GRADIENTS) & (becomes_alone.groupby(owner).bfill() == 1.0)
    is_behind = (role == STATE) & (becomes_alone.groupby(owner).ffill() == 1.0)
    is_wrong &= ~((is_before | is_behind) & (theirs["layout"] == "")).to_numpy()
    becomes_wrong = pd.Series(np.where(is_updated, is_wrong, np.nan), index=judged.index)
    later, earlier = becomes_wrong.groupby(owner).bfill(), becomes_wrong.groupby(owner).ffill()
    is_followed = np.where(role == STATE, earlier, later) == 1.0
    is_sure = is_updated | (role == BUFFER) | (role.isin(_WITH_AN_UPDATE) & is_followed)
    # An optimizer that reduces gradients itself, into other memory, leaves them as they are.
    is_own = (theirs["layout"] == "") | of_parted_holders(theirs)
    is_plain = is_wrong & role.isin(_OF_GRADIENTS).to_numpy() & is_own.to_numpy()
    # A step in a coarse dtype may be smaller than it shows, unless replicas part in others.
    hides = is_coarse(judged["tolerance"].to_numpy()) & is_parted.any()
    num_reduced_later = int((is_plain & (later == 0.0) & ~hides).sum())
    is_local = is_plain & (2 * num_reduced_later > is_plain.sum())
    return judged.assign(
        is_wrong=is_wrong & ~is_local,
        is_certain=judged["is_certain"] | is_wrong & is_known & is_sure,
    )


def _step_alone(
    judged: pd.DataFrame, theirs: pd.DataFrame, is_wrong: np.ndarray, owner: pd.Series
) -> np.ndarray:
    """Return which updated parameters ranks have made equal and right again by their next use.

    Workers of local SGD step alone and then take the mean of all. The next update shows it, or the
    outputs of most parameters' modules, which are right; the last update is like those before.
    """
    is_updated = (judged["role"] == UPDATED).to_numpy()
    is_plain = (theirs["layout"] == "").to_numpy()
    is_equal = pd.Series(~is_plain & ~is_wrong, index=owner.index)
    following = is_equal[is_updated].groupby(owner[is_updated]).shift(-1, fill_value=False)
    by_update = following.reindex(owner.index, fill_value=False).to_numpy()
    is_shown = (judged["role"] == OUTPUT) & judged["distance"].notna()
    is_shown &= ~is_coarse(judged["tolerance"].to_numpy())
    is_right = pd.Series(np.where(is_shown, ~is_wrong, np.nan), index=owner.index)
    next_output = is_right.groupby(judged["module"].astype(str)).bfill().to_numpy()
    is_left = is_plain & is_wrong & is_updated
    parted = pd.Series(np.where(is_left, next_output, np.nan), index=owner.index)
    parted = parted.groupby(owner).ffill().where(is_left & np.isnan(next_output), parted)
    updates = judged["step"].where(is_updated, -2)
    share = (parted == 1.0).groupby(updates).transform("mean")
    return is_updated & is_plain & (by_update | ((parted == 1.0) & (share > _MOST)).to_numpy())


def _have_parted(theirs: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Return the mask of tensors that all ranks of the run have, with different values."""
    plain = table[(table["layout"] == "") & (table["role"] == UPDATED)]
    if plain.empty:
        return np.zeros(len(theirs), dtype=bool)
    of_tensor = plain.groupby([*KEY, "shape"], observed=True)
    spread = (of_tensor[[*SKETCHES]].max() - of_tensor[[*SKETCHES]].min()).max(axis=1)
    is_everywhere = of_tensor["rank"].nunique() == table.loc[table["rank"] >= 0, "rank"].nunique()
    parted = spread[is_everywhere & (spread > _PARTED * of_tensor["norm"].max())].index
    is_of_them = pd.MultiIndex.from_frame(theirs[[*KEY, "shape"]]).isin(parted)
    return is_of_them & (theirs["layout"] == "").to_numpy()
