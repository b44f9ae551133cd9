"""Table that displays its numbers with units.

It is a DataFrame of plain numbers; selections of its rows and columns display themselves in the
same way. The unit of a column determines the format of its values
(`commtrace.units.text_of_value`); instants are shown relative to the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from commtrace.escaping import visible
from commtrace.schema import INSTANT, MAY_BE_NEGATIVE, Column
from commtrace.units import text_of_value

_UNITS, _START, _MINUS = "commtrace_units", "commtrace_start_ns", "commtrace_minus"


class Table(pd.DataFrame):
    """A DataFrame with units, kept in `attrs`, which pandas preserves when selecting."""

    @property
    def _constructor(self) -> Any:
        return Table

    @classmethod
    def of(cls, frame: pd.DataFrame, columns: Sequence[Column], start_ns: int = 0) -> Any:
        """Return the rows of `frame` as a table with the units of `columns`."""
        table = cls(frame.copy(deep=False))
        table.attrs = {
            _UNITS: {each.name: each.unit for each in columns},
            _MINUS: {each.name: each.minus for each in columns if each.minus},
            _START: start_ns,
        }
        return table

    def shown(self) -> pd.DataFrame:
        """Return the rows as texts; unknown values in integer columns become a dash."""
        texts = {name: self._texts(name) for name in self.columns}
        return pd.DataFrame(texts, index=self.index)

    def _texts(self, name: str) -> Any:
        values, unit = self[name], self.attrs.get(_UNITS, {}).get(name)
        if not isinstance(values, pd.Series):
            return values
        if unit is None:  # a column added by the user
            return [visible(each) if isinstance(each, str) else each for each in values.tolist()]
        if unit == INSTANT:
            unit, values = "ns", (values - self.attrs[_START]).where(values >= 0, math.nan)
        elif values.dtype == "int64" and name not in MAY_BE_NEGATIVE:
            minus = self.attrs.get(_MINUS, {}).get(name, math.nan)
            values = values.astype(object).where(values >= 0, minus)
        return [text_of_value(value, unit) for value in values.tolist()]

    def _repr_html_(self) -> str:
        return self._few()._repr_html_()  # pyright: ignore[reportCallIssue]

    def __repr__(self) -> str:
        return repr(self._few())

    def _few(self) -> pd.DataFrame:
        """Return the rows as texts, but only both ends of a long table."""
        most = pd.get_option("display.max_rows") or len(self)
        if len(self) <= most:
            return Table.shown(self)
        return Table.shown(Table(self.iloc[[*range(most // 2), *range(-(most // 2), 0)]]))
