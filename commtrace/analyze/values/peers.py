"""Layouts of plain tensors that the same code has elsewhere: in other layers, calls and steps.

Layers of a model run the same code. If the output of one is right on all ranks, that of another is
no part of a tensor; and if that of one is a sum over ranks which a later layer has not reduced,
while others have, the reduction is missing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.values.in_parts import IN_PARTS
from commtrace.schema import RESULT

_OF_CODE = ["phase", "role", "name", "op", "layer", "line"]


def with_peers(judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs that were judged, with what their peers show.

    A wrong tensor of unknown layout is wrong for certain if peers are right on each rank. Column
    `is_unreduced` is true of sums over ranks whose peers were reduced; these are wrong.
    """
    code = judged[["phase", "role", "name", "op"]].assign(
        name=_without_numbers(judged["name"]),
        layer=_without_numbers(judged["module"]),
        line=ours["source_file"].astype(str) + ":" + ours["source_line"].astype(str),
    )
    is_right = (~judged["is_wrong"] & judged["distance"].notna() & (ours["norm"] != 0)).to_numpy()
    is_sum = judged["is_sum"].to_numpy()
    is_whole = is_right & ~is_sum & ~theirs["layout"].isin(("", IN_PARTS)).to_numpy()
    groups = code.assign(whole=is_whole, sums=is_sum).groupby(_OF_CODE, sort=False)
    num_whole = groups["whole"].transform("sum").to_numpy()
    num_sums = groups["sums"].transform("sum").to_numpy()
    is_unreduced = is_sum & (num_whole >= num_sums)
    is_learned = judged["is_wrong"].to_numpy() & (num_whole > 0) & (num_sums == 0)
    return judged.assign(
        is_wrong=judged["is_wrong"] | is_unreduced,
        is_certain=judged["is_certain"] | is_unreduced | is_learned,
        is_unreduced=is_unreduced,
    )


def _without_numbers(names: pd.Series) -> pd.Series:
    return names.astype(str).str.replace(r"(?<![^.])\d+(?![^.])", "#", regex=True)


def unreduced_before(place: int, judged: pd.DataFrame, calls_ns: np.ndarray, at: pd.Series) -> int:
    """Return the place of the sum over ranks that was not reduced before a wrong tensor.

    It is the last one right before it, of which nothing was communicated since; without one, the
    place of the wrong tensor itself.

    Args:
        place: of the wrong tensor.
        judged: pairs in order of time.
        calls_ns: when calls of communication were issued on the first rank, ascending.
        at: when each tensor of the second run was observed.
    """
    found = place
    for before in range(place - 1, -1, -1):
        row = judged.iloc[before]
        if not row["is_sum"] or row["is_wrong"] or row["step"] != judged["step"].iloc[place]:
            break
        since, until = at.iloc[before], at.iloc[place]
        if np.searchsorted(calls_ns, since) != np.searchsorted(calls_ns, until):
            break
        if found == place or row["role"] != RESULT:
            found = before
            if row["role"] != RESULT:
                break
    return found
