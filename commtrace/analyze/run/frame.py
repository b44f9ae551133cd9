"""The tables of a trace as DataFrames: the input of every analysis.

`frames_of` takes a trace and returns `Frames`, in which every table and column of the schema is
present even where nothing was recorded. Dtypes follow the schema:

    int -> int64    float -> float64    bool -> bool    str -> category

A lone surrogate, which can be written neither to a file nor to a terminal, becomes an escape.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from commtrace.escaping import encodable
from commtrace.schema import TABLES, Column
from commtrace.settings import DEFAULTS, Settings, speeds_of_links
from commtrace.tracefile import StringColumn, Trace

T = TypeVar("T")

DTYPES: dict[type, str] = {int: "int64", float: "float64", bool: "bool", str: "category"}

_FEW = 16
"""Number of categories below which their type is kept."""


@dataclass(frozen=True, eq=False)  # without slots: cached properties need it
class Frames:
    """One run as DataFrames.

    Attributes:
        run: Facts about the run, by name.
        path: File that the trace was read from, if any.
        settings: Settings of the project in which the run is analysed: thresholds of findings, the
            findings that are muted, and speeds of links.

    The other attributes are the tables of the schema.
    """

    run: Mapping[str, Any]
    comm: pd.DataFrame
    ops: pd.DataFrame
    kernels: pd.DataFrame
    fingerprints: pd.DataFrame
    host_events: pd.DataFrame
    pipeline_actions: pd.DataFrame
    later_waits: pd.DataFrame
    syncs: pd.DataFrame
    communicators: pd.DataFrame
    removed_calls: pd.DataFrame
    groups: pd.DataFrame
    ranks: pd.DataFrame
    steps: pd.DataFrame
    sources: pd.DataFrame
    path: Path | None = None
    settings: Settings = DEFAULTS

    @cached_property
    def computed(self) -> dict[Callable[..., Any], Any]:
        """Results of functions of this run, which `cached_per_run` keeps."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the run without results, which other processes compute anew."""
        return {name: value for name, value in self.__dict__.items() if name != "computed"}

    def with_link(self, link: str | Mapping[str, str] | None) -> Frames:
        """Return the run with other speeds of links in its settings, if some are given.

        Args:
            link: The speed of all links, such as `400 Gbit/s`, or speeds by mesh axis or group.

        Raises:
            UsageError: It is not a speed.
        """
        if link is None:
            return self
        return self.with_settings(replace(self.settings, link=speeds_of_links(link)))

    def with_settings(self, settings: Settings) -> Frames:
        """Return the run as other settings have it."""
        return replace(self, settings=settings)

    def in_memory(self, **other: Any) -> Frames:
        """Return the run with all of its tables in memory, and some of its attributes changed."""
        return Frames(**{each.name: getattr(self, each.name) for each in fields(Frames)} | other)

    @property
    def num_ranks(self) -> int:
        """Number of recorded ranks, which can be smaller than the number of ranks that ran."""
        return len(self.ranks) or int(self.comm["rank"].nunique())

    def by_ranks(
        self,
        function: Callable[..., T],
        *args: Any,
        fold: Callable[[list[T]], T] | None = None,
    ) -> list[T]:
        """Return `function(part, *args)` of parts with all rows of some ranks each.

        A run in memory is a single part; `parts` describes the parts of a stored run.

        Args:
            function: Takes a part and `args`.
            args: Its further arguments.
            fold: Combines results to a result as small as each of them, so that a run of many
                parts has a single result.
        """
        return [function(self, *args)]

    def value_of(self, answer: Callable[[Frames], T], compute: Callable[[Frames], T]) -> T:
        """Return what `compute` returns of the run and caches; `answer` identifies it."""
        return compute(self)

    @property
    def whole(self) -> Frames:
        """The run that this is a part of; itself if it is not a part."""
        return self

    def of_each_call(
        self, answer: Callable[[Frames], Any], compute: Callable[[Frames], Any]
    ) -> Any:
        """Return what `compute` returns of the run, a row per call; see `of_each_call`."""
        return compute(self)

    def of_each_part(
        self, answer: Callable[[Frames], Any], compute: Callable[[Frames], Any]
    ) -> Any:
        """Return what `compute` returns of this part, a table; see `of_each_part`."""
        return compute(self)

    def arrays_of(self, facts: Any, in_memory: Callable[[Frames], Any]) -> Any:
        """Return arrays with an entry for each match; see `matching.across_ranks`."""
        return in_memory(self)

    def narrowed(
        self,
        ranks: Collection[int] | None = None,
        rows: pd.Index | None = None,
        stretches: Sequence[tuple[int, int]] | None = None,
    ) -> Frames:
        """Return a part that has the given rows of this part, and maybe others.

        The part of a stored run reads nothing else.

        Args:
            ranks: The only ranks that are asked for; by default all.
            rows: The only rows of table `comm` that are asked for; by default all.
            stretches: The only stretches of time, in ns since the start of the run, whose rows are
                asked for, in tables `ops` and `kernels`, and in `comm` unless `rows` are given; by
                default all.
        """
        return self

    def parts_by_ranks(self) -> Iterator[Frames]:
        """Yield parts with all rows of some ranks each, in the order of table `comm`."""
        yield self

    def rows_of(self, answer: Callable[[Frames], Any], part: Frames) -> Any:
        """Return the rows of some calls in what `answer` returns of the run, a row per call.

        Args:
            answer: Function decorated by `of_each_call`.
            part: Has these calls in its table `comm`.
        """
        return answer(self).loc[part.comm.index]

    def calls_at(self, rows: Any) -> pd.DataFrame:
        """Return calls by their rows in table `comm`."""
        return self.comm.loc[rows]

    @property
    def num_calls(self) -> int:
        """Number of recorded calls."""
        return len(self.comm)

    @property
    def is_stored(self) -> bool:
        """True if its tables `comm`, `ops` and `kernels` are read in parts."""
        return False

    @cached_property
    def start_ns(self) -> int:
        """Start of the first rank, in Unix ns; 0 in a trace without any event."""
        return max(first_instant_ns(self), 0)

    @cached_property
    def timed_steps(self) -> pd.DataFrame:
        """Rows of table `steps` whose start and end are both known."""
        return self.steps[(self.steps["start_ns"] >= 0) & (self.steps["end_ns"] >= 0)]


def first_instant_ns(part: Frames) -> int:
    """Return the first instant of a run or a part; -1 if there is none."""
    instants = (
        *(part.ranks["start_ns"], part.comm["issue_ns"]),
        *(part.ops["start_ns"], part.kernels["start_ns"]),
    )
    known = [column[column >= 0].min() for column in instants if (column >= 0).any()]
    return int(min(known, default=-1))


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several tables with their labels, and the categories of all of them."""
    tables = [table for table in tables if len(table)] or [*tables[:1]]
    if len(tables) == 1:
        return tables[0]
    index = tables[0].index.append([table.index for table in tables[1:]])
    return pd.DataFrame(
        {str(name): _joined([table[name] for table in tables]) for name in tables[0]}, index=index
    )


def _joined(values: list[pd.Series]) -> Any:
    if isinstance(values[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(values, sort_categories=True)
    return np.concatenate([each.to_numpy() for each in values])


def in_order(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a table sorted stably by some columns of numbers.

    The rows of a recording are already in order, which is cheaper to check than to sort.
    """
    is_behind = np.zeros(max(len(table) - 1, 0), dtype=bool)
    for name in reversed(by):
        values = table[name].to_numpy()
        is_behind &= values[1:] == values[:-1]
        is_behind |= values[1:] < values[:-1]
    return table.sort_values([*by], kind="stable") if is_behind.any() else table


def frames_of(trace: Trace, settings: Settings = DEFAULTS) -> Frames:
    """Return the tables of a trace in memory."""
    run, tables = tables_of(trace)
    return Frames(run=run, path=trace.path, settings=settings, **tables)


def tables_of(trace: Trace) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Return the facts and the tables of a trace, with every column of the schema."""
    tables = {name: _frame(trace.tables.get(name, {}), columns) for name, columns in TABLES.items()}
    return {name: _encodable_fact(value) for name, value in trace.run.items()}, tables


def trace_of(frames: Frames) -> Trace:
    """Return a run in memory as a trace, which can be written to a file."""
    return Trace(
        run=dict(frames.run),
        tables={
            name: {each.name: _column_of(getattr(frames, name)[each.name]) for each in columns}
            for name, columns in TABLES.items()
        },
    )


def _column_of(values: pd.Series) -> Sequence[Any]:
    """Return a column of a table as a column of a trace."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = array("q", values.cat.codes.to_numpy("int64").tobytes())
        return StringColumn(codes, [str(each) for each in values.cat.categories])
    if values.dtype.kind == "O":
        return [str(each) for each in values]
    code = "d" if values.dtype.kind == "f" else "q"
    return array(code, values.to_numpy("float64" if code == "d" else "int64").tobytes())


def _encodable_fact(value: Any) -> Any:
    """Return a fact of the run with all of its text encodable as UTF-8."""
    if isinstance(value, list):
        return [_encodable_fact(each) for each in value]
    return encodable(value) if isinstance(value, str) else value


def _frame(table: Mapping[str, Sequence[Any]], columns: Sequence[Column]) -> pd.DataFrame:
    rows = len(next(iter(table.values()), ()))
    return pd.DataFrame(
        {
            column.name: values_of(table.get(column.name, [column.missing] * rows), column.type)
            for column in columns
        }
    )


def values_of(values: Sequence[Any], of_type: type) -> Any:
    """Return the values of a column as an array, or strings as a categorical."""
    if isinstance(values, StringColumn):
        return categorical(values)
    if of_type is str:
        return pd.Categorical([encodable(str(value)) for value in values])
    # A copy of a large column takes longer than reading it.
    return np.asarray(values).astype(DTYPES[of_type], copy=False)


def texts_of(values: pd.Series, text_of: Callable[[str], str]) -> pd.Series:
    """Return what a function returns of each text, as a categorical: it is called once for each.

    Args:
        values: Texts, as a categorical or not.
        text_of: The function; a missing value is passed as an empty text.
    """
    if not isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype("category")
    # The last one is that of code -1.
    texts = [*(text_of(str(each)) for each in values.cat.categories), text_of("")]
    names = sorted(set(texts))
    places = np.asarray([names.index(text) for text in texts])
    dtype = (_type_of_few if len(names) < _FEW else _type_of)(tuple(names))
    codes = places[values.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, dtype=dtype, validate=False), values.index)


def categorical(column: StringColumn) -> Any:
    """Convert to a categorical of the strings that occur in the column, in sorted order."""
    codes = np.asarray(column.codes, dtype="int64")
    # All columns of a file share its strings, so some of them do not occur in this one.
    used = np.flatnonzero(np.bincount(codes, minlength=len(column.strings))).tolist()
    strings = {code: str(column.strings[code]) for code in used}
    texts = {code: each if each.isascii() else encodable(each) for code, each in strings.items()}
    # Two strings may have the same text once they are escaped.
    names = sorted(set(texts.values()))
    places = {name: place for place, name in enumerate(names)}
    # Of the type that the codes of as many categories have, so that they are converted once.
    renumbered = np.zeros(len(column.strings), dtype=np.min_scalar_type(-max(len(names), 1)))
    renumbered[used] = [places[texts[code]] for code in used]
    dtype = (_type_of_few if len(names) < _FEW else _type_of)(tuple(names))
    own = renumbered.take(codes, mode="clip") if len(codes) else codes
    return pd.Categorical.from_codes(own, dtype=dtype, validate=False)


def _type_of(names: tuple[str, ...]) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names))


_type_of_few = lru_cache(maxsize=1024)(_type_of)
"""Many columns have few categories, and share them."""
