"""Columns of a spool, joined from the pieces that its batches hold.

A table's rows are those written as rows, the calls in progress of the last batch, and those written
as numbers, which take all other columns from their call site:

    comm.issue_ns    [rows | outstanding | numbers]
    comm.module      [rows | outstanding | module of the call site]

A column is allocated once, in its final length, and every piece is decoded into its place. The
memory of all rows is charged to the allowance of the file before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commtrace.schema import TABLES, Column
from commtrace.tracefile.arrays import taken, zeros
from commtrace.tracefile.encoding import (
    Description,
    decode_into,
    require_codes,
    require_rows,
    value_of_missing,
)
from commtrace.tracefile.reading import Allowance, DamageError, distinct, is_int
from commtrace.tracefile.spool import (
    FOUND_STEPS,
    OF_EACH,
    OUTSTANDING,
    SITE,
    SMALL_RANK_TABLES,
    SPOOL_TABLES,
    numbers_of,
    sites_of,
)
from commtrace.tracefile.trace import ColumnValues, StringColumn

Encoded = Mapping[str, tuple[Description, memoryview]]
"""Description and bytes of columns, by name."""

_TABLES = (*TABLES, FOUND_STEPS)
_LASTING = {"groups", OUTSTANDING, *map(sites_of, OF_EACH)}
_RANKED = ("ops", "fingerprints", *SMALL_RANK_TABLES)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a batch."""

    rows: int
    columns: Encoded
    batch: str


@dataclass(slots=True)
class _Pieces:
    """Rows of a table or pseudo-table, in order of batches."""

    name: str
    pieces: list[_Piece] = field(default_factory=list)
    rows: int = 0
    num_aged: int = 0

    def age(self) -> None:
        """Drop the pieces that were there at the last call."""
        self.rows -= sum(piece.rows for piece in self.pieces[: self.num_aged])
        del self.pieces[: self.num_aged]
        self.num_aged = len(self.pieces)

    def fill(self, values: np.ndarray, column: Column, most: int) -> None:
        """Decode a column; codes of strings must be below `most`."""
        begin = 0
        for piece in self.pieces:
            part = values[begin : begin + piece.rows]
            begin += piece.rows
            place = f"tables.{self.name}.columns.{column.name}"
            if column.name not in piece.columns:
                part[:] = value_of_missing(column)
                continue
            try:
                decode_into(part, *piece.columns[column.name], column.type)
            except DamageError as error:
                raise DamageError(error.found, f"{piece.batch}, {place}") from error
            if column.type is str:
                require_codes(part, most, place)


class SpoolColumns:
    """Collects the pieces of successive batches, and joins them into complete columns."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._strings = [""]
        self._pieces = {name: _Pieces(name) for name in SPOOL_TABLES}

    def begin_batch(self, strings: Sequence[str]) -> None:
        """Begin a batch, which adds strings and replaces the calls in progress."""
        self._strings.extend(strings)
        self._pieces[OUTSTANDING] = _Pieces(OUTSTANDING)

    def add(self, name: str, rows: int, columns: Encoded, batch: str) -> None:
        """Add the rows of a table; the file's allowance has been charged."""
        pieces = self._pieces[name]
        pieces.pieces.append(_Piece(rows, columns, batch))
        pieces.rows += rows

    def age(self) -> None:
        """Drop the rows of events that were there at the last call; what later rows need stays."""
        for name, pieces in self._pieces.items():
            if name not in _LASTING:
                pieces.age()

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        names = [table, numbers_of(table) if table in OF_EACH else ""]
        names += [OUTSTANDING] if table == "comm" else []
        return sum(self._pieces[name].rows for name in names if name)

    def tables(
        self,
        rank: Any,
        taken_for: Sequence[Any],
        only: Mapping[str, Collection[str] | None] | None = None,
    ) -> dict[str, dict[str, ColumnValues]]:
        """Return the columns of all tables, or only those named, with each rank's rows by id.

        Args:
            rank: the rank of the process.
            taken_for: ranks that the process took itself for before it knew its own.
            only: names of columns by table.
        """
        distinct(self._strings)
        former = self._former_ranks(rank, taken_for)
        tables: dict[str, dict[str, ColumnValues]] = {}
        for name in _TABLES if only is None else only:
            sites = self._sites(name)
            order = self._order(name, sites)
            names = only[name] if only is not None else None
            tables[name] = {
                column.name: self._column(name, column, sites, order)
                for column in SPOOL_TABLES[name]
                if names is None or column.name in names
            }
            if former and name in _RANKED and "rank" in tables[name]:
                _replace(tables[name]["rank"], former, rank)
        return tables

    def _sites(self, table: str) -> np.ndarray | None:
        """Return the number of the call site of each event that is written as numbers."""
        if table not in OF_EACH:
            return None
        pieces = self._pieces[numbers_of(table)]
        _, sites = zeros(pieces.rows)
        pieces.fill(sites, SITE, 0)
        require_codes(sites, self._pieces[sites_of(table)].rows, f"sites of {table}")
        # The memory is charged before each call site is copied into its rows.
        require_rows(pieces.rows, len(TABLES[table]), self._allowance, table)
        return sites

    def _column(
        self, table: str, column: Column, sites: np.ndarray | None, order: np.ndarray | None
    ) -> ColumnValues:
        written = [self._pieces[table], *([self._pieces[OUTSTANDING]] if table == "comm" else [])]
        rows = sum(pieces.rows for pieces in written) + (0 if sites is None else len(sites))
        values, view = zeros(rows, of_floats=column.type is float)
        begin = 0
        for pieces in written:
            pieces.fill(view[begin : begin + pieces.rows], column, len(self._strings))
            begin += pieces.rows
        if sites is not None and len(sites):
            self._fill_events(view[begin:], table, column, sites)
        ordered = StringColumn(values, self._strings) if column.type is str else values
        return ordered if order is None else taken(ordered, order)

    def _fill_events(
        self, values: np.ndarray, table: str, column: Column, sites: np.ndarray
    ) -> None:
        """Fill the rows of the events that are written as numbers."""
        if column.name in OF_EACH[table]:
            self._pieces[numbers_of(table)].fill(values, column, 0)
            return
        shared = self._pieces[sites_of(table)]
        _, of_sites = zeros(shared.rows, of_floats=column.type is float)
        shared.fill(of_sites, column, len(self._strings))
        # Sites are numbers of rows; the mode is the one that needs no buffer for `out`.
        np.take(of_sites, sites, out=values, mode="clip")

    def _order(self, table: str, sites: np.ndarray | None) -> np.ndarray | None:
        """Return the places of the rows, each rank's by id; None if they are in order."""
        by_name = {column.name: column for column in SPOOL_TABLES[table]}
        if "id" not in by_name:
            return None
        ids, ranks = (self._numbers(table, by_name[name], sites) for name in ("id", "rank"))
        return None if (ids[1:] >= ids[:-1]).all() else np.lexsort((ids, ranks))

    def _numbers(self, table: str, column: Column, sites: np.ndarray | None) -> np.ndarray:
        return np.asarray(self._column(table, column, sites, None))

    def _former_ranks(self, rank: Any, taken_for: Sequence[Any]) -> set[int]:
        """Return the ranks whose rows were recorded before the process knew its rank.

        A rank that made calls is kept, since threads may play several ranks.
        """
        former = set(filter(is_int, taken_for))
        if not former or not is_int(rank):
            return set()
        ranks = self._numbers("comm", TABLES["comm"][0], self._sites("comm"))
        return former - set(np.unique(ranks).tolist())


def _replace(ranks: ColumnValues, former: Collection[int], rank: int) -> None:
    view = np.frombuffer(ranks, dtype=np.int64)  # type: ignore[arg-type] - it is an array
    view[np.isin(view, list(former))] = rank
