"""Tables of some ranks of a dataset, or of some of their rows, whose columns are read when used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from commtrace.analyze.excerpts.excerpt import FOREVER
from commtrace.analyze.stored.lazy_table import LazyTable
from commtrace.schema import EVENT_TABLES, TABLES
from commtrace.tracefile.dataset import Dataset, RowGroup, StoredRows
from commtrace.tracefile.spool import SMALL_RANK_TABLES

NAMES = {table: tuple([column.name for column in columns]) for table, columns in TABLES.items()}
"""Names of the columns of each table."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of events that are asked for; None if all of them are.

    Attributes:
        ranks: Their ranks.
        rows: Rows of table `comm`, in order.
        stretches: Stretches of time, in ns since the start of the run, as in `Frames.narrowed`.
        start_ns: Start of the run, in Unix ns.
    """

    ranks: Collection[int] | None
    rows: pd.Index | None
    stretches: Sequence[tuple[int, int]] | None
    start_ns: int

    def may_be_in(self, group: RowGroup, table: str, first_row: int) -> bool:
        """Return False if no row of a row group is asked for.

        Args:
            group: The row group.
            table: Its table.
            first_row: Label of the first row of its rank in table `comm`.
        """
        if table == "comm" and self.rows is not None:
            first = first_row + group.first
            places = self.rows.searchsorted([first, first + group.num_rows])
            return bool(places[0] < places[1])
        return (
            self.stretches is None
            or FOREVER in self.stretches
            or any(
                group.may_touch(first + self.start_ns, last + self.start_ns)
                for first, last in self.stretches
            )
        )


def narrowed_tables(
    dataset: Dataset,
    small: Mapping[str, pd.DataFrame],
    ranks: Sequence[int],
    first: int,
    wanted: Wanted,
) -> dict[str, pd.DataFrame]:
    """Return the tables of a part, without row groups that have no row that is asked for.

    Args:
        dataset: The dataset.
        small: Tables of the run, without events.
        ranks: Ranks of the part.
        first: Label of its first row in table `comm`.
        wanted: The rows.
    """
    begins: dict[int, int] = {}
    for rank in ranks:
        begins[rank] = first
        first += dataset.num_rows("comm", rank)
    chosen = [rank for rank in ranks if wanted.ranks is None or rank in wanted.ranks]
    tables = tables_of_some(small, chosen)

    def keep(table: str, rank: int, group: RowGroup) -> bool:
        return wanted.may_be_in(group, table, begins[rank])

    for name in EVENT_TABLES:
        stored = StoredRows(dataset, name, chosen, partial(keep, name))
        labels = [
            np.arange(begin, begin + num_rows) + (begins[rank] if name == "comm" else 0)
            for rank, begin, num_rows in stored.stretches()
        ]
        index = pd.Index(np.concatenate([np.empty(0, dtype="int64"), *labels]))
        tables[name] = LazyTable(NAMES[name], index, stored.columns)
    return tables


def tables_of_some(
    small: Mapping[str, pd.DataFrame], ranks: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Return tables with the rows of some ranks in `ranks` and in the small tables of a rank."""
    tables = dict(small)
    for name in ("ranks", *SMALL_RANK_TABLES):
        own = tables[name][tables[name]["rank"].isin(ranks)]
        tables[name] = own.reset_index(drop=True)
    return tables
