"""Rows per call, kept in files of numbers: what one sort of parts computes and another one reads.

    FOLDER/last_arrivals/columns.json      {"names": ["arrival", "last_rank"], "is_series": false}
    FOLDER/last_arrivals/0.00003.npy       column 0 of the fourth stretch of rows

Calls are numbered through the run; a stretch are those of one part by rank. A folder appears under
its name once it is complete, so that what an ended process has left is never read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.tracefile.reading import DamageError, reading

_ABOUT = "columns.json"


@dataclass(frozen=True, slots=True)
class RowStore:
    """Rows per call of a run.

    Attributes:
        folder: Folder of the files.
        edges: Number of the first row of each stretch, and behind them the number of all rows.
    """

    folder: Path
    edges: np.ndarray

    def has(self, name: str) -> bool:
        """Return whether rows of this name are complete."""
        return (self.folder / name / _ABOUT).is_file()

    def write(self, name: str, parts: Iterable[pd.Series | pd.DataFrame]) -> None:
        """Write the rows of all calls, which come in parts in any order.

        Raises:
            OSError: They cannot be written.
        """
        unfinished = self.folder / f"{name}.{os.getpid()}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            about: dict[str, Any] = {}
            for part in parts:
                is_series = isinstance(part, pd.Series)
                table = part.to_frame("value") if isinstance(part, pd.Series) else part
                about = {"names": [*table], "is_series": is_series}
                self._add(unfinished, table)
            (unfinished / _ABOUT).write_text(json.dumps(about))
            # Another process may have finished the same rows.
            with contextlib.suppress(OSError):
                unfinished.rename(self.folder / name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _add(self, folder: Path, table: pd.DataFrame) -> None:
        for stretch, places, own in self._in_stretches(table.index.to_numpy()):
            num_rows = int(self.edges[stretch + 1] - self.edges[stretch])
            for column, name in enumerate(table):
                values = table[name].to_numpy()[own]
                path = _path(folder, column, stretch)
                if len(values) == num_rows:
                    np.save(path, values[np.argsort(places, kind="stable")])
                    continue
                mode = "r+" if path.exists() else "w+"
                shape = {} if path.exists() else {"shape": (num_rows,), "dtype": values.dtype}
                rows = np.lib.format.open_memmap(path, mode=mode, **shape)
                rows[places] = values

    def read(self, name: str, rows: pd.Index) -> pd.Series | pd.DataFrame:
        """Return the rows of some calls.

        Raises:
            TraceError: A file is damaged.
        """
        folder = self.folder / name
        with reading(f"cannot read what is prepared of the run in {folder}"):
            about = json.loads((folder / _ABOUT).read_text())
            stretches = list(self._in_stretches(rows.to_numpy()))
            columns = {
                each: self._column(folder, column, stretches, len(rows))
                for column, each in enumerate(about["names"])
            }
            table = pd.DataFrame(columns, index=rows)
            return table["value"].rename(None) if about["is_series"] else table

    def _column(
        self, folder: Path, column: int, stretches: list[tuple[int, Any, Any]], num_rows: int
    ) -> np.ndarray:
        found: np.ndarray | None = None
        for stretch, places, own in stretches:
            values = np.load(_path(folder, column, stretch), mmap_mode="r", allow_pickle=False)
            if values.shape != (self.edges[stretch + 1] - self.edges[stretch],):
                raise DamageError(f"{len(values)} rows", str(_path(folder, column, stretch)))
            if found is None:
                found = np.empty(num_rows, dtype=values.dtype)
            found[own] = values[places]
        return np.empty(0) if found is None else found

    def _in_stretches(self, rows: np.ndarray) -> Iterator[tuple[int, Any, Any]]:
        """Yield each stretch that has some of the rows, with their places in it and in `rows`."""
        stretch = np.searchsorted(self.edges, rows, side="right") - 1
        for each in np.unique(stretch).tolist():
            own = np.flatnonzero(stretch == each)
            yield each, rows[own] - self.edges[each], own


def _path(folder: Path, column: int, stretch: int) -> Path:
    return folder / f"{column}.{stretch:05d}.npy"
