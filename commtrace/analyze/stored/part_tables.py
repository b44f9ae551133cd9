"""Tables of single parts of a run, kept in files for later passes.

    FOLDER/stragglers.delayed_calls/00003.arrow    table of the fourth part
    FOLDER/lateness.lateness/run.arrow             table of the whole run

The columns are numbers and texts, or categories of texts; the index has the labels of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from commtrace.analyze.stored.kept_files import new_arrow_file, read_columns
from commtrace.errors import NotKeptError

_LABEL = "label: "


@dataclass(frozen=True, slots=True)
class PartTables:
    """Tables of the parts of a run.

    Attributes:
        folder: Folder of the files.
    """

    folder: Path

    def kept(
        self, name: str, part: int | None, compute: Callable[[], pd.DataFrame]
    ) -> pd.DataFrame:
        """Return a table of a part, or of the run; it is computed and written when first used.

        If it cannot be written, the next caller computes it again.

        Raises:
            TraceError: The file is damaged.
        """
        path = self.folder / name / ("run.arrow" if part is None else f"{part:05d}.arrow")
        if not path.is_file():
            table = compute()
            with suppress(NotKeptError):
                self._write(path, table)
            return table
        columns = read_columns(path)
        label = [*columns][-1]
        labels = pd.Index(columns.pop(label), name=label.removeprefix(_LABEL) or None)
        return pd.DataFrame(columns, index=labels, copy=False)

    def _write(self, path: Path, table: pd.DataFrame) -> None:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        label = f"{_LABEL}{table.index.name or ''}"
        stored = pa.Table.from_pandas(table.assign(**{label: table.index}), preserve_index=False)
        with new_arrow_file(path, stored.schema) as writer:
            writer.write_table(stored.combine_chunks())
