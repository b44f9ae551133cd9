"""Time that the intervals of each key cover within other intervals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.covered import NOTHING, Covered


class CoveredTime:
    """Union of the intervals of each key, such as a rank or a stream."""

    def __init__(self, keys: pd.Series, start: pd.Series, end: pd.Series) -> None:
        key, first, last = (np.asarray(each, dtype="int64") for each in (keys, start, end))
        order = np.argsort(key, kind="stable")
        key, first, last = key[order], first[order], last[order]
        edges = [*np.flatnonzero(np.diff(key, prepend=key[:1] - 1)).tolist(), len(key)]
        self._of: dict[Any, Covered] = {
            int(key[begin]): Covered.by(first[begin:after], last[begin:after])
            for begin, after in pairwise(edges)
        }

    def within(self, keys: pd.Series, begin: pd.Series, end: pd.Series) -> pd.Series:
        """Return the covered time between `begin` and `end` of each row, in their unit."""
        found = np.zeros(len(keys), dtype="int64")
        first, last = begin.to_numpy("int64"), end.to_numpy("int64")
        for key, places in keys.groupby(keys.to_numpy()).indices.items():
            found[places] = self._of.get(key, NOTHING).within(first[places], last[places])
        return pd.Series(found, index=keys.index)
