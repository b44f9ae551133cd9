"""Time that intervals cover within other intervals, by key, however many there are.

The intervals of a key are joined once; each question is then a search in their cumulative length.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.intervals import merged


class CoveredTime:
    """Union of the intervals of each key; answers how much of a span it covers."""

    def __init__(self, keys: pd.Series, start: pd.Series, end: pd.Series) -> None:
        given = pd.DataFrame({"key": keys, "start": start, "end": end}).astype("int64")
        joined = merged(given[given["end"] > given["start"]], ["key"]).sort_values("start")
        lasts = joined["end"] - joined["start"]
        self._start, self._end = joined["start"].to_numpy(), joined["end"].to_numpy()
        # Time covered before each interval; those of a key are in order and do not overlap.
        self._before = (lasts.groupby(joined["key"]).cumsum() - lasts).to_numpy()
        self._places = pd.DataFrame(
            {"key": joined["key"], "start": joined["start"], "place": np.arange(len(joined))}
        )

    def within(self, keys: pd.Series, begin: pd.Series, end: pd.Series) -> pd.Series:
        """Return the covered time between `begin` and `end` of each row, in their unit."""
        lasts = self._until(keys, end) - self._until(keys, begin)
        return pd.Series(lasts, index=keys.index)

    def _until(self, keys: pd.Series, instant: pd.Series) -> np.ndarray:
        """Return the time that the intervals of each key cover before an instant."""
        if not len(self._places):
            return np.zeros(len(keys), dtype="int64")
        asked = pd.DataFrame(
            {"key": keys.to_numpy("int64"), "at": instant.to_numpy("int64")}
        ).sort_values("at", kind="stable")
        found = pd.merge_asof(asked, self._places, left_on="at", right_on="start", by="key")
        places = np.full(len(asked), -1)
        places[asked.index] = found["place"].fillna(-1)
        at = instant.to_numpy("int64")
        last = self._before[places] + np.minimum(at, self._end[places]) - self._start[places]
        return np.where(places >= 0, last, 0)
