"""Time that the intervals of each key cover within other intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.covered import NOTHING, Covered


class CoveredTime:
    """Union of the intervals of each key, such as a rank or a stream."""

    def __init__(self, keys: pd.Series, start: pd.Series, end: pd.Series) -> None:
        given = pd.DataFrame({"key": keys, "start": start, "end": end}).astype("int64")
        self._of = {
            key: Covered.by(each["start"].to_numpy(), each["end"].to_numpy())
            for key, each in given.groupby("key")
        }

    def within(self, keys: pd.Series, begin: pd.Series, end: pd.Series) -> pd.Series:
        """Return the covered time between `begin` and `end` of each row, in their unit."""
        found = np.zeros(len(keys), dtype="int64")
        first, last = begin.to_numpy("int64"), end.to_numpy("int64")
        for key, places in keys.groupby(keys.to_numpy()).indices.items():
            found[places] = self._of.get(key, NOTHING).within(first[places], last[places])
        return pd.Series(found, index=keys.index)
