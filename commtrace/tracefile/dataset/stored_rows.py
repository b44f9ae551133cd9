"""Rows of some ranks in a table of events, from which any columns are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from commtrace.schema import TABLES, Column
from commtrace.tracefile.dataset.reading import Dataset, reading_dataset
from commtrace.tracefile.dataset.table_files import RowGroup, TableFile
from commtrace.tracefile.reading import DamageError
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable
from commtrace.tracefile.validate import check_columns


class StoredRows:
    """Rows of some ranks in a table of events, in sequence; nothing is read until it is asked for.

    Args:
        dataset: the dataset.
        table: name of the table.
        ranks: the ranks.
        keep: takes a rank and a row group, and returns whether that is read; by default, all of
            them are.

    Attributes:
        num_rows: number of the rows.
    """

    _strings: StringTable

    def __init__(
        self,
        dataset: Dataset,
        table: str,
        ranks: Sequence[int],
        keep: Callable[[int, RowGroup], bool] | None = None,
    ) -> None:
        # A dataset of an earlier version has no files of a later table.
        ranks = ranks if table in dataset.manifest.rows else ()
        self._dataset, self._table, self._ranks = dataset, table, ranks
        self._files: list[TableFile] = []
        self._groups: list[list[RowGroup] | None] = [None] * len(ranks)
        if keep is not None:
            with reading_dataset(dataset.folder):
                self._open()
            self._groups = [
                [group for group in file.row_groups if keep(rank, group)]
                for file, rank in zip(self._files, ranks, strict=True)
            ]
        self._num_rows = [sum(num for *_, num in each) for each in self._stretches()]
        self.num_rows = sum(self._num_rows)

    def stretches(self) -> list[tuple[int, int, int]]:
        """Return rank, number of the first row in its file, and number of rows of each stretch."""
        return [each for of_rank in self._stretches() for each in of_rank]

    def _stretches(self) -> Iterator[list[tuple[int, int, int]]]:
        of_ranks = self._dataset.manifest.rows.get(self._table, {})
        for rank, groups in zip(self._ranks, self._groups, strict=True):
            if groups is None:
                yield [(rank, 0, of_ranks[rank])]
            else:
                yield [(rank, group.first, group.num_rows) for group in groups]

    def _open(self) -> None:
        self._strings = StringTable([""])
        self._files = [self._dataset.opened(self._table, rank) for rank in self._ranks]

    def columns(self, names: Sequence[str]) -> dict[str, ColumnValues]:
        """Read some columns.

        Raises:
            TraceError: a file is damaged or missing, or a column has impossible values.
        """
        columns = [each for each in TABLES[self._table] if each.name in names]
        num_rows = self.num_rows
        views = {
            column.name: np.zeros(num_rows, "float64" if column.type is float else "int64")
            for column in columns
        }
        try:
            self._read_into(views, columns)
        except Exception:  # without a context that is entered for each column
            with reading_dataset(self._dataset.folder):
                raise
        found: dict[str, Any] = {
            column.name: StringColumn(views[column.name], self._strings.strings)  # type: ignore[arg-type]
            if column.type is str
            else views[column.name]
            for column in columns
        }
        summary = f"cannot read the trace {self._dataset.folder}"
        check_columns(self._table, columns, found, summary)
        flags = {each.name: views[each.name] != 0 for each in columns if each.type is bool}
        return found | flags

    def _read_into(self, views: Mapping[str, np.ndarray], columns: Sequence[Column]) -> None:
        if not self._files:
            self._open()
        begin = 0
        for place, file in enumerate(self._files):
            groups, end = self._groups[place], begin + self._num_rows[place]
            parts = {name: view[begin:end] for name, view in views.items()}
            numbers = None if groups is None else [group.number for group in groups]
            file.read_columns(columns, parts, self._strings, numbers)
            rank = self._ranks[place]
            if "rank" in parts and not (parts["rank"] == rank).all():
                raise DamageError(f"rows of other ranks than {rank}", str(file.path))
            begin = end
