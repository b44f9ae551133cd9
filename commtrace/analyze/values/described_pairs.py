"""Pairs of tensors with the layouts, dtypes and norms of both runs.

excess                          distance in multiples of the tolerance, as it was judged: above 1
                                is wrong; infinite for elements that are not finite; nan if unknown
layout_left, layout_right       layouts, empty if unknown
dtype_left, dtype_right         element types
norm_left, norm_right           norms, nan if unknown
order                           place of the tensor in the order of time of the first run
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.values.tolerance import scales

_OF_BOTH = ("layout", "dtype", "norm")


def described(judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return pairs that were judged with the columns above.

    Args:
        judged: distance, tolerance and verdict of each pair.
        ours: its tensor in the first run, a row of table `tensors`.
        theirs: its tensor in the second run.
    """
    # Small tensors are judged by their distance relative to others.
    distance = judged["distance"] * scales(ours, theirs)
    excess = distance / judged["tolerance"]
    is_not_finite = judged["is_wrong"] & (excess <= 1)
    sides = {"left": ours, "right": theirs}
    described = {
        f"{name}_{side}": table[name] for name in _OF_BOTH for side, table in sides.items()
    }
    return judged.assign(
        excess=excess.where(~is_not_finite, np.inf), **described, order=ours["order"]
    )
