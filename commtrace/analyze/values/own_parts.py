"""Tensors that ranks compute from parts alone, such as losses of their own part of the batch.

They have the shape of the first run's tensor and need not have its values, unless their sum has.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.flow import flow_of
from commtrace.analyze.values.global_values import KEY, OWN_DATA
from commtrace.schema import NAMED, OUTPUT, OUTPUT_GRADIENT, RESULT

_ROLES = (OUTPUT, OUTPUT_GRADIENT, RESULT, NAMED)


def computed_from_parts(
    left: pd.DataFrame, right: pd.DataFrame, labels: np.ndarray, is_sum: np.ndarray, run: Frames
) -> np.ndarray:
    """Return the mask of tensors that a rank computed from parts, without communication.

    A tensor computed from a rank's part of a sum that is right is not excused.

    Args:
        left: table `tensors` of the first run.
        right: table `tensors` of the second run.
        labels: numbers of the tensors in question.
        is_sum: mask of tensors whose sum over ranks is right.
        run: the second run.
    """
    flow = flow_of(run)
    if not flow.is_known:
        return np.zeros(len(labels), dtype=bool)
    unknown = right[right["layout"] == ""]
    shapes = pd.MultiIndex.from_frame(left[["module", "shape"]])
    is_part = ~pd.MultiIndex.from_frame(unknown[["module", "shape"]]).isin(shapes)
    is_part |= unknown["mesh"].str.startswith(OWN_DATA).to_numpy()
    among = {*unknown.index[unknown["role"].isin(_ROLES)].tolist()}
    sums = pd.MultiIndex.from_frame(right.loc[labels[is_sum], [*KEY]])
    among -= {*unknown.index[pd.MultiIndex.from_frame(unknown[[*KEY]]).isin(sums)].tolist()}
    begin = {*unknown.index[is_part].tolist()}
    return np.isin(labels, [*((flow.following_alone(begin, among) - begin) & among)])
