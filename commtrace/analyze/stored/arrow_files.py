"""Compressed files of a record batch or several, of which single columns can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write
from commtrace.tracefile.reading import DamageError, reading


@contextmanager
def new_file(path: Path, schema: Any) -> Iterator[Any]:
    """Yield a writer of a file, which is there once it is complete.

    Raises:
        OutputError: It cannot be written.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with (
        atomic_write(path) as unfinished,
        unfinished.open("wb") as file,
        pa.ipc.new_file(file, schema, options=options) as writer,
    ):
        yield writer


def read_columns(path: Path, places: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the values of the columns at some places, by default of all.

    Raises:
        TraceError: The file is damaged.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    # Without any row, the type of texts is not known.
    texts = (pa.string(), pa.large_string(), pa.null())
    included = None if places is None else [*places]
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    with reading(f"cannot read what is prepared of the run in {path}"):
        try:
            # Not mapped into memory, since what is read is decompressed.
            table = pa.ipc.open_file(pa.OSFile(str(path)), options=options).read_all()
        except pa.ArrowException as error:
            raise DamageError(str(error)[:200], str(path)) from error
        return {
            name: column.to_numpy().astype(object)
            if column.type in texts
            else column.to_pandas(use_threads=False).array
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
