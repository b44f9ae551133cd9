"""Reading of a dataset: all of it, or some ranks and columns.

    dataset = open_dataset(Path("RUN.comm"))
    dataset.ranks, dataset.num_rows("comm", 3)
    trace = dataset.trace(ranks=[3], columns={"comm": ["kind", "issue_ns"]})

The result is validated like any trace. Nothing that is read is trusted: the rows of a file are
compared with the manifest before memory is allocated.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.errors import (
    EmptyTraceError,
    NewerTraceError,
    NotATraceError,
    TraceError,
    TruncatedTraceError,
    UsageError,
)
from commtrace.schema import EVENT_TABLES, TABLES, Column
from commtrace.tracefile.dataset.layout import (
    MANIFEST,
    Manifest,
    Part,
    dataset_folder,
    parts_of,
    read_manifest,
    table_path,
)
from commtrace.tracefile.dataset.parquet_format import pyarrow
from commtrace.tracefile.dataset.table_files import TableFile, footer_digest
from commtrace.tracefile.facts import require_run_facts
from commtrace.tracefile.joining.collection import files_in
from commtrace.tracefile.reading import DamageError, reading
from commtrace.tracefile.spool import RANK_TABLES
from commtrace.tracefile.trace import (
    Columns,
    ColumnValues,
    StringColumn,
    StringTable,
    Trace,
    column_of,
    table_of,
)
from commtrace.tracefile.validate import validated

EventColumns = Mapping[str, Collection[str]]
"""EventColumns of columns by table."""

_PREPARE = "`commtrace merge {folder}` prepares it again"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Dataset of a run; nothing but the manifest has been read.

    Attributes:
        folder: the folder of the run.
        manifest: its contents.
    """

    folder: Path
    manifest: Manifest

    @property
    def run(self) -> Mapping[str, Any]:
        """Facts of the run."""
        return self.manifest.run

    @property
    def ranks(self) -> tuple[int, ...]:
        """Recorded ranks, in ascending order."""
        return tuple(sorted(self.manifest.rows["comm"]))

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        files = dataset_folder(self.folder).rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())

    def num_rows(self, table: str, rank: int | None = None) -> int:
        """Return the number of rows of a table, or of a rank in it."""
        if table not in RANK_TABLES:
            return self.manifest.totals[table]
        of_rank = self.manifest.rows.get(table, {})
        return sum(of_rank.values()) if rank is None else of_rank.get(rank, 0)

    @property
    def target(self) -> Path:
        """Folder of the files of the dataset."""
        return dataset_folder(self.folder)

    def trace(
        self, ranks: Iterable[int] | None = None, columns: EventColumns | None = None
    ) -> Trace:
        """Read the trace, or a part of it.

        Args:
            ranks: the only ranks whose rows are read; by default all.
            columns: the only columns that are read, by table of events; a table that is not named
                has no rows, and other columns of a named table are unknown. The other tables are
                complete. By default all columns.

        Raises:
            UsageError: there is no such rank.
            TraceError: a file is damaged or missing, or has impossible values.
        """
        chosen = self.ranks if ranks is None else sorted(set(ranks))
        unknown = set(chosen) - set(self.ranks)
        if unknown:
            raise UsageError(
                f"cannot read rank {min(unknown)} of {self.folder}",
                found="no such rank",
                attempt=f"one of {', '.join(map(str, self.ranks[:9]))}",
            )
        strings = StringTable([""])
        with reading_dataset(self.folder):
            tables: dict[str, Columns] = {}
            for name in TABLES:
                if name in EVENT_TABLES:
                    tables[name] = self._events(name, chosen, columns, strings)
                else:
                    tables[name] = self._small(name, chosen, strings)
            trace = Trace(self.run, tables, self.folder, self.manifest.trace_version)
            return validated(trace, f"cannot read the trace {self.folder}")

    def _events(
        self,
        table: str,
        ranks: Iterable[int],
        columns: EventColumns | None,
        strings: StringTable,
    ) -> Columns:
        only = None if columns is None else columns.get(table)
        if columns is not None and only is None:
            ranks = ()
        # The rank of a row is known whatever is asked for.
        chosen = None if only is None else {"rank", *only}
        parts = [self._rows(table, rank, strings, chosen) for rank in ranks]
        if len(parts) == 1:
            return parts[0]
        return {
            column.name: _joined(column, [part[column.name] for part in parts], strings)
            for column in TABLES[table]
        }

    def _rows(
        self,
        table: str,
        rank: int,
        strings: StringTable,
        only: Collection[str] | None,
    ) -> Columns:
        if table not in self.manifest.rows:
            return table_of(table, (), strings)
        return self.opened(table, rank).read(strings, only)

    def _small(self, table: str, ranks: Collection[int], strings: StringTable) -> Columns:
        if table in RANK_TABLES and table not in self.manifest.rows:
            return table_of(table, (), strings)
        found = self.opened(table).read(strings)
        if "rank" not in found or len(ranks) == len(self.ranks):
            return found
        import numpy as np

        from commtrace.tracefile.arrays import taken, view_of

        places = np.flatnonzero(np.isin(view_of(found["rank"]), list(ranks)))
        return {name: taken(values, places) for name, values in found.items()}

    def opened(self, table: str, rank: int | None = None) -> TableFile:
        """Open a file, whose contents are those that the manifest states.

        Raises:
            DamageError: they are not, or the file is missing.
        """
        target = dataset_folder(self.folder)
        path = table_path(target, table, rank)
        files = self.manifest.files
        expected, found = files[path.relative_to(target).as_posix()], footer_digest(path)
        if found != expected:
            others = {digest: f"the contents of {name}" for name, digest in files.items()}
            contents = others.get(found, f"other contents, with digest {found}")
            raise DamageError(f"{contents}, where {MANIFEST} has digest {expected}", str(path))
        file = TableFile(table, path, f"cannot read the dataset {target}")
        if file.num_rows != (rows := self.num_rows(table, rank)):
            raise DamageError(f"{file.num_rows:,} rows, where {MANIFEST} has {rows:,}", str(path))
        return file


def _joined(column: Column, parts: Sequence[ColumnValues], strings: StringTable) -> ColumnValues:
    """Return the values of a column of several files, concatenated."""
    joined: Any = column_of(column, (), strings)
    values: array[Any] = joined.codes if isinstance(joined, StringColumn) else joined
    for part in parts:
        own: Any = part
        values.extend(own.codes if isinstance(own, StringColumn) else own)
    return joined


@contextmanager
def reading_dataset(folder: Path) -> Iterator[None]:
    """Convert failures into errors that say how to prepare the dataset of a run anew."""
    summary = f"cannot read the dataset {dataset_folder(folder)}"
    try:
        with reading(summary):
            yield
    except TruncatedTraceError as error:
        again = f"remove {dataset_folder(folder)}, and {_PREPARE.format(folder=folder)}"
        raise TruncatedTraceError(
            summary,
            place=error.place,
            found=error.found,
            why=error.why,
            attempt=again if _present(folder) else "copy it again: there are no spools beside it",
        ) from error


def open_dataset(folder: Path) -> Dataset:
    """Open the dataset of the run in a folder.

    Raises:
        NotATraceError: there is none.
        NewerTraceError: a later commtrace has prepared it.
        TraceError: it was made of parts other than the folder's, or is damaged.
        UsageError: pyarrow is not installed.
    """
    target = dataset_folder(folder)
    summary = f"cannot read the dataset {target}"
    if not (target / MANIFEST).is_file():
        raise NotATraceError(
            summary,
            found=f"no {MANIFEST}",
            why="it is written when a dataset is complete",
            attempt=f"`commtrace merge {folder}` prepares the dataset",
        )
    manifest = read_manifest(target, summary)
    require_run_facts(manifest.run, summary)
    if change := _change(manifest.parts, _present(folder)):
        raise TraceError(
            summary,
            place=str(folder),
            found=change,
            why="the dataset was made of other parts",
            attempt=_PREPARE.format(folder=folder),
        )
    pyarrow(summary)
    return Dataset(folder, manifest)


def dataset_of(folder: Path) -> Dataset | None:
    """Return the dataset of a folder if it can stand for the parts; None if these must be read.

    Without any parts there is nothing else to read, so that an error says why it cannot.

    Raises:
        TraceError: there are no parts, and the dataset cannot be read.
        UsageError: there are no parts, and pyarrow is not installed.
    """
    if not (dataset_folder(folder) / MANIFEST).is_file():
        return None
    try:
        return open_dataset(folder)
    except (TraceError, UsageError):
        if not _present(folder):
            raise
        return None


def _present(folder: Path) -> tuple[Part, ...]:
    """Return the parts that are in a folder."""
    try:
        return parts_of(folder, files_in(folder, f"cannot read the trace {folder}"))
    except (EmptyTraceError, NewerTraceError):
        return ()


def _change(made_of: Collection[Part], present: Collection[Part]) -> str:
    """Return the first difference between the parts of a dataset and those that are there.

    If all parts have been removed from the folder, the dataset is the rest, and nothing differs.
    """
    if not present:
        return ""
    before, now = ({part[0]: part for part in parts} for parts in (made_of, present))
    for name in sorted({*before, *now}):
        if name not in before:
            return f"another part {name}"
        if name not in now:
            return f"no part {name}"
        if before[name] != now[name]:
            return f"a part {name} that has changed"
    return ""
