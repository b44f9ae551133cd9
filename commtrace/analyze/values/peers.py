"""Layouts of plain tensors that the same code has elsewhere: in other layers, calls and steps.

Layers of a model run the same code. If the output of one is right on all ranks, that of another is
no part of a tensor; and if that of one is a sum over ranks which a later layer has not reduced,
while others have, the reduction is missing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.values.flow import flow_of
from commtrace.analyze.values.global_values import parts
from commtrace.analyze.values.in_parts import IN_PARTS, shows_little
from commtrace.schema import OUTPUT, OUTPUT_GRADIENT, RESULT

_OF_CODE = ["phase", "role", "name", "op", "layer", "line"]


def with_peers(judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs that were judged, with what their peers show.

    A wrong tensor of unknown layout is wrong for certain if peers are right on each rank. Column
    `is_unreduced` is true of sums over ranks whose peers were reduced; these are wrong.
    """
    code = judged[["phase", "role", "name", "op"]].assign(
        layer=_without_numbers(judged["module"]) + " " + ours["module_class"].astype(str),
        line=ours["source_file"].astype(str) + ":" + ours["source_line"].astype(str),
    )
    is_right = (~judged["is_wrong"] & judged["distance"].notna() & (ours["norm"] != 0)).to_numpy()
    is_sum = judged["is_sum"].to_numpy()
    is_in_parts = (theirs["layout"] == IN_PARTS).to_numpy()
    is_whole = is_right & ~is_sum & (theirs["layout"] != "").to_numpy()
    code = code.assign(whole=is_whole, sums=is_sum, is_in_parts=is_in_parts)
    groups = code.groupby([*_OF_CODE, "is_in_parts"], sort=False)
    num_whole = groups["whole"].transform("sum").to_numpy()
    num_sums = groups["sums"].transform("sum").to_numpy()
    is_unreduced = is_sum & (num_whole >= num_sums)
    is_learned = judged["is_wrong"].to_numpy() & (num_whole > 0) & (num_sums == 0)
    is_learned &= judged["role"].isin((OUTPUT, OUTPUT_GRADIENT)).to_numpy()
    is_learned &= ~shows_little(theirs, judged["tolerance"].to_numpy())
    return judged.assign(
        is_wrong=judged["is_wrong"] | is_unreduced,
        is_certain=judged["is_certain"] | is_unreduced | is_learned,
        is_unreduced=is_unreduced,
    )


def _without_numbers(names: pd.Series) -> pd.Series:
    return names.astype(str).str.replace(r"(?<![^.])\d+(?![^.])", "#", regex=True)


def unreduced_before(
    place: int, judged: pd.DataFrame, labels: np.ndarray, run: Frames, at: pd.Series
) -> int:
    """Return the place of the sum over ranks that was not reduced before a wrong tensor.

    It is the output of a module, or else the result of an operator, that the tensor was computed
    from, and since which nothing was communicated; without one, the place of the tensor itself.

    Args:
        place: of the wrong tensor.
        judged: pairs in order of time.
        labels: numbers of the second run's tensors in `parts`.
        run: the second run.
        at: when each of these was observed on the first rank that holds it.
    """
    own = run.comm[run.comm["rank"] == parts(run)["rank"].min()]
    issued = np.sort(own["issue_ns"].to_numpy())
    num_before = np.searchsorted(issued, at.to_numpy())
    is_sum = (judged["is_sum"] & ~judged["is_wrong"]).to_numpy()
    is_sum = is_sum & (num_before == num_before[place])
    by_label = {int(labels[each]): int(each) for each in np.flatnonzero(is_sum[:place])}
    sums = [by_label[each] for each in flow_of(run).sources(int(labels[place]), {*by_label})]
    outputs = [each for each in sums if judged["role"].iloc[each] != RESULT]
    return max(outputs or sums, default=place)
