"""Files that analyses keep of a run, each with a checksum at its end.

Unlike in a trace, values in them are not validated individually, so that a file counts only if
every byte is as it was written, and under the same name: the checksum covers the contents and the
names of the file and of the folders around it, which identify the run. Arrow files are compressed,
and single columns of them can be read.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any
from weakref import finalize

from commtrace.atomic_write import atomic_write, make_folder
from commtrace.errors import NotKeptError, OutputError, TraceError
from commtrace.tracefile.dataset.layout import digest_of
from commtrace.tracefile.reading import DamageError, reading

SEAL = struct.Struct("<8sI")
"""End of a file: a mark, and the checksum."""

_MARK = b"commtrac"


@contextmanager
def sealed(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, which gets its checksum and its name once it is complete.

    Raises:
        NotKeptError: It cannot be written.
    """
    with keeping(path):
        make_folder(path.parent)
        with atomic_write(path) as unfinished:
            with unfinished.open("wb") as file:
                yield file
            with unfinished.open("r+b") as file:
                checksum = _checksum(file, unfinished.stat().st_size, path)
                file.seek(0, 2)
                file.write(SEAL.pack(_MARK, checksum))


@contextmanager
def keeping(path: Path) -> Iterator[None]:
    """Convert errors of writing the kept files of a run into a `NotKeptError`."""
    try:
        yield
    except OSError as error:
        found = error.found if isinstance(error, OutputError) else str(error.strerror or error)
        raise NotKeptError(
            "cannot keep what is prepared of the run",
            place=str(path),
            found=found.lower(),
            why="analyses of a large run keep values of calls in files: in the folder of the run, "
            "or else in that for temporary files",
            attempt="free some space in one of them, or `export TMPDIR=FOLDER` where there is some",
        ) from error


def name_of_contents(*contents: object) -> str:
    """Return the name of a folder for files made from some contents, by their representation."""
    return digest_of(repr(contents).encode("utf-8", "surrogatepass"))


def temporary_copy(folder: Path, owner: object) -> Path:
    """Return a temporary folder with links to another folder's files; it goes with its owner.

    Raises:
        NotKeptError: There is no space for it.
    """
    with keeping(folder):
        temporary = Path(mkdtemp(prefix="commtrace-"))
        finalize(owner, shutil.rmtree, temporary, ignore_errors=True)
        # By names that the checksums include.
        place = temporary.joinpath(*folder.parts[-2:])
        if folder.is_dir():
            shutil.copytree(folder.absolute(), place, copy_function=os.symlink)
        make_folder(place)
        return place


def _checksum(file: IO[bytes], size: int, path: Path) -> int:
    of_name = zlib.crc32(os.fsencode("/".join(path.parts[-4:])))
    if not size:
        return of_name
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content, of_name)


_verified: dict[Path, tuple[int, int, int]] = {}
"""Inode, size and modification time of files that this process has verified."""


def verified_size(path: Path) -> int:
    """Return the size of a file's contents, whose checksum is verified once.

    Raises:
        DamageError: The checksum at the end does not match.
        OSError: The file cannot be read.
    """
    facts = path.stat()
    size = facts.st_size - SEAL.size
    state = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if _verified.get(path) != state:
        with path.open("rb") as file:
            is_whole = size >= 0 and _seal_of(file, size) == (_MARK, _checksum(file, size, path))
        if not is_whole:
            found = "contents or a name that differ from the checksum at their end"
            raise DamageError(found, str(path))
        _verified[path] = state
    return size


@contextmanager
def reading_kept(folder: Path) -> Iterator[None]:
    """Convert every failure of the body into a TraceError.

    Args:
        folder: Folder whose files are computed again if it is not there.
    """
    summary = f"cannot read what is prepared of the run in {folder}"
    try:
        with reading(summary):
            yield
    except TraceError as error:
        parts = {"place": error.place, "found": error.found, "why": error.why}
        again = f"remove {folder}, so that it is prepared again"
        raise type(error)(summary, **parts, attempt=again) from error


def _seal_of(file: IO[bytes], size: int) -> tuple[bytes, int]:
    file.seek(size)
    mark, checksum = SEAL.unpack(file.read(SEAL.size))
    return mark, checksum


@contextmanager
def new_arrow_file(path: Path, schema: Any) -> Iterator[Any]:
    """Yield a writer of record batches.

    Raises:
        NotKeptError: The file cannot be written.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with sealed(path) as file, pa.ipc.new_file(file, schema, options=options) as writer:
        yield writer


def open_arrow_file(path: Path, places: Sequence[int] | None = None) -> Any:
    """Return a reader of record batches, of the columns at some places or of all.

    Raises:
        DamageError: The file is damaged.
        OSError: It cannot be read.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    size = verified_size(path)
    included = None if places is None else [*places]
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    try:
        # Not mapped into memory, since what is read is decompressed.
        return pa.ipc.open_file(pa.OSFile(os.fsencode(path)), footer_offset=size, options=options)
    except pa.ArrowException as error:
        raise DamageError(str(error)[:200], str(path)) from error


def read_columns(path: Path, places: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the values of the columns at some places, by default of all.

    Raises:
        TraceError: The file is damaged.
    """
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    # Without any row, the type of texts is not known.
    texts = (pa.string(), pa.large_string(), pa.null())
    with reading_kept(path.parent):
        table = open_arrow_file(path, places).read_all()
        return {
            name: column.to_numpy().astype(object)
            if column.type in texts
            else column.to_pandas(use_threads=False).array
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
