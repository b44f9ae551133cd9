"""Rows per call, kept in files of numbers: computed by a sort of parts, and read by another.

    FOLDER/arrivals.last_arrivals/complete.json    types of columns, and rows of each piece
    FOLDER/arrivals.last_arrivals/00003.npy        piece of the fourth part that computed rows

Calls are numbered throughout the run; a *stretch* is the calls of a part by rank. A piece has the
rows of a part in order of their numbers: a whole stretch or, for a part by collectives, some rows
of each stretch. Integers take as few bytes as the piece needs. `complete.json` is written last, so
that leftovers of a process that ended early are never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.stored.kept_files import reading_kept, sealed, verified_size
from commtrace.tracefile.reading import DamageError

_COMPLETE = "complete.json"
_ROW = "number of row"
_VALUE = "value"


@dataclass(frozen=True, slots=True)
class RowStore:
    """Rows per call of a run.

    Attributes:
        folder: Folder of the files.
        edges: Number of the first row of each stretch, followed by the number of all rows.
    """

    folder: Path
    edges: np.ndarray
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether rows of this name are complete."""
        return (self.folder / name / _COMPLETE).is_file()

    def write(self, name: str, piece: int, rows: pd.Series | pd.DataFrame) -> dict[str, Any]:
        """Write the rows of a part, and return what `complete` needs to know about them.

        Raises:
            NotKeptError: They cannot be written.
        """
        table = rows.to_frame(_VALUE) if isinstance(rows, pd.Series) else rows
        table = table.sort_index()
        number = table.index.to_numpy("int64")
        columns = {str(each): table[each].to_numpy() for each in table}
        is_stretch = piece < len(self.edges) - 1 and np.array_equal(
            number, np.arange(self.edges[piece], self.edges[piece + 1])
        )
        stored = columns if is_stretch else {_ROW: number, **columns}
        records = np.empty(len(table), dtype=[(each, _least(stored[each])) for each in stored])
        for each, values in stored.items():
            records[each] = values
        with sealed(_path(self.folder / name, piece)) as file:
            np.lib.format.write_array(file, records, allow_pickle=False)
        return {
            "types": {each: values.dtype.str for each, values in columns.items()},
            "is_series": isinstance(rows, pd.Series),
            "is_stretch": is_stretch,
            "edges": np.searchsorted(number, self.edges).tolist(),
        }

    def complete(self, name: str, pieces: Sequence[dict[str, Any]]) -> None:
        """State that the pieces of all parts are written.

        Args:
            name: Name of the rows.
            pieces: What `write` has returned of each part.

        Raises:
            NotKeptError: That cannot be written.
        """
        facts = {
            "types": pieces[0]["types"],
            "is_series": pieces[0]["is_series"],
            "by_stretch": all(piece["is_stretch"] for piece in pieces),
            "edges": [piece["edges"] for piece in pieces],
        }
        with sealed(self.folder / name / _COMPLETE) as file:
            file.write(json.dumps(facts).encode("ascii"))

    def read(self, name: str, rows: pd.Index) -> pd.Series | pd.DataFrame:
        """Return the rows of some calls, which are in ascending order.

        Raises:
            TraceError: A file is damaged.
        """
        with reading_kept(self.folder / name):
            facts = self._facts(name)
            found = {each: np.empty(len(rows), dtype=of) for each, of in facts["types"].items()}
            for places, records in self._records(name, facts, rows.to_numpy()):
                for each, values in found.items():
                    values[places] = records[each]
            return _table(facts, found, rows)

    def read_piece(self, name: str, piece: int, rows: pd.Index) -> pd.Series | pd.DataFrame:
        """Return the rows of the part that computed a piece, of the calls `rows`.

        Raises:
            TraceError: A file is damaged.
        """
        with reading_kept(self.folder / name):
            facts = self._facts(name)
            records = self._piece(name, piece, len(rows))
            if _ROW in (records.dtype.names or ()) and (records[_ROW] != rows).any():
                raise DamageError("rows of other calls", str(_path(self.folder / name, piece)))
            found = {each: records[each].astype(of) for each, of in facts["types"].items()}
            return _table(facts, found, rows)

    def _facts(self, name: str) -> dict[str, Any]:
        if name not in self._known:
            path = self.folder / name / _COMPLETE
            facts = json.loads(path.read_bytes()[: verified_size(path)])
            edges = facts["edges"] = np.asarray(facts["edges"], dtype="int64")
            if edges.ndim != 2 or edges.shape[1:] != self.edges.shape:
                raise DamageError("rows of other parts", str(path))
            if any(np.dtype(of).kind not in "biuf" for of in facts["types"].values()):
                raise DamageError(f"columns of types {facts['types']}", str(path))
            if np.any(edges.sum(axis=0) != self.edges):
                raise DamageError("rows that are missing", str(path))
            self._known[name] = facts
        return self._known[name]

    def _records(
        self, name: str, facts: dict[str, Any], rows: np.ndarray
    ) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield records of the pieces, each with their places in `rows`."""
        if not len(rows):
            return
        first, last = np.searchsorted(self.edges, rows[[0, -1]], side="right") - 1
        if facts["by_stretch"]:
            for stretch in range(first, last + 1):
                begin, end = self.edges[[stretch, stretch + 1]]
                own = slice(*np.searchsorted(rows, [begin, end]))
                if own.start < own.stop:
                    records = self._piece(name, stretch, end - begin)
                    wanted = rows[own] - begin
                    are_all = wanted[-1] - wanted[0] == len(wanted) - 1
                    yield own, records[wanted[0] : wanted[-1] + 1] if are_all else records[wanted]
            return
        for piece, edges in enumerate(facts["edges"]):
            own = slice(edges[first], edges[last + 1])
            if own.start < own.stop:
                records = self._piece(name, piece, edges[-1])[own]
                places = np.searchsorted(rows, records[_ROW]).clip(max=len(rows) - 1)
                is_wanted = rows[places] == records[_ROW]
                yield places[is_wanted], records[is_wanted]

    def _piece(self, name: str, piece: int, num_rows: int) -> np.ndarray:
        path = _path(self.folder / name, piece)
        verified_size(path)
        records = np.load(path, mmap_mode="r", allow_pickle=False)
        if records.shape != (num_rows,) or records.dtype.names is None:
            raise DamageError(f"records of shape {records.shape}, not ({num_rows},)", str(path))
        return records


def _table(
    facts: dict[str, Any], columns: dict[str, np.ndarray], rows: pd.Index
) -> pd.Series | pd.DataFrame:
    if facts["is_series"]:
        return pd.Series(columns[_VALUE], index=rows, copy=False)
    return pd.DataFrame(columns, index=rows, copy=False)


def _least(values: np.ndarray) -> np.dtype[Any]:
    """Return the smallest signed type that has room for all values, if they are integers."""
    if values.dtype.kind == "i" and len(values):
        low, high = values.min(), values.max()
        for name in ("i1", "i2", "i4"):
            if np.iinfo(name).min <= low and high <= np.iinfo(name).max:
                return np.dtype(name)
    return values.dtype


def _path(folder: Path, piece: int) -> Path:
    return folder / f"{piece:05d}.npy"
