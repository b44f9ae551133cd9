"""The wrong gradient behind a norm, or behind a factor that all gradients have in common.

A wrong gradient may be the cause of a tensor that the program computes from all gradients between
the backward pass and the optimizer's step, such as their norm, and of a factor that all gradients
then share.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from commtrace.analyze.values.faults import multiple, sketches_of
from commtrace.schema import GRADIENT, NAMED, RESULT, UNCLIPPED

_OF_GRADIENTS = (UNCLIPPED, GRADIENT)
_BACKWARD = "backward"
_LEAST_ALIKE = 3
_CLOSE = 1e-3
_OF_TOLERANCE = 4
_WELL_WITHIN = 0.25
"""Part of its tolerance up to which a gradient has no factor that rounding might hide."""


def cause_of(place: int, judged: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame) -> int:
    """Return the place of the wrong gradient that explains a wrong tensor after the backward pass.

    It is the first gradient of the step that is wrong in another way than the others; if there is
    none, the wrong tensor itself. A factor that not all gradients have is not from a norm, but
    makes the norm wrong.
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
        sides = ([sketches_of(side.iloc[each]) for each in wrong] for side in (ours, theirs))
        factors = np.array([multiple(x, y, close) for x, y in zip(*sides, strict=True)])
        common = _common(factors, close)
        others = wrong[~(np.abs(factors - common) <= close * abs(common))]
        if math.isnan(common) or (is_sum and _has_right(judged.iloc[own])):
            return int(wrong[0])
        if len(others):
            return int(others[0])
    return place


def _has_right(gradients: pd.DataFrame) -> bool:
    is_right = gradients["distance"] <= _WELL_WITHIN * gradients["tolerance"]
    return bool((is_right & gradients["is_certain"] & (gradients["norm_left"] > 0)).any())


def _common(factors: np.ndarray, close: float) -> float:
    """Return the factor that most wrong gradients have; nan if they share none."""
    known = np.sort(factors[np.isfinite(factors)])
    if len(known) < _LEAST_ALIKE:
        return math.nan
    middle = float(known[len(known) // 2])
    num_alike = int((np.abs(known - middle) <= close * abs(middle)).sum())
    return middle if num_alike >= _LEAST_ALIKE and 2 * num_alike > len(factors) else math.nan
