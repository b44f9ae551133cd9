"""Arrays with an entry for each match of a run, kept in files that are mapped into memory.

    FOLDER/arrivals.meetings/latest.npy

Numbers have the smallest type of integers that has room for all of them, floats too if they are
whole. While arrays are computed they are in a file without a name, which needs no memory of its
own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import AcrossRanks, Arrays
from commtrace.analyze.stored.kept_files import keeping, reading_kept, sealed, verified_size
from commtrace.atomic_write import make_folder
from commtrace.tracefile.reading import DamageError


def kept_arrays(run: Frames, facts: AcrossRanks, folder: Path) -> Arrays:
    """Return the arrays of a run, computed and written when they are first used.

    Args:
        run: The run.
        facts: The arrays.
        folder: Folder of their files.

    Raises:
        TraceError: A file is damaged.
        NotKeptError: They cannot be written.
    """
    kept = {name: folder / f"{name}.npy" for name in facts.fields if not name.startswith("_")}
    if not _are_there(kept):
        with _alone(folder):
            if not _are_there(kept):
                _compute(run, facts, folder, kept)
    with reading_kept(folder):
        found = {name: _read(path, facts.fields[name][1]) for name, path in kept.items()}
        if len({len(each) for each in found.values()}) > 1:
            raise DamageError("arrays of several lengths", str(folder))
        return found


def _are_there(kept: Mapping[str, Path]) -> bool:
    return all(path.is_file() for path in kept.values())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process computes the arrays of a folder, as several workers may."""
    with keeping(folder):
        make_folder(folder)
        handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compute(run: Frames, facts: AcrossRanks, folder: Path, kept: Mapping[str, Path]) -> None:
    arrays = facts.arrays(run, lambda *field: _scratch(folder, *field))
    for name, path in kept.items():
        with sealed(path) as file:
            _write(file, arrays[name])


def _scratch(folder: Path, num: int, value: Any, dtype: str) -> np.ndarray:
    """Return an array in a file without a name."""
    if not num:
        return np.empty(0, dtype)
    with keeping(folder), TemporaryFile(dir=folder) as file:
        # Space that turned out to be missing later would end the process.
        for begin in range(0, num, _AT_ONCE):
            file.write(np.full(min(_AT_ONCE, num - begin), value, dtype).tobytes())
        file.flush()
        return np.memmap(file, dtype, "r+", shape=(num,))


_AT_ONCE = 1 << 20


def _write(file: IO[bytes], values: np.ndarray) -> None:
    """Write an array of numbers of the smallest type, a piece at a time."""
    dtype = _smallest(values)
    header = {"descr": dtype.str, "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in _pieces(values):
        file.write(piece.astype(dtype, copy=False).tobytes())


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[begin : begin + _AT_ONCE] for begin in range(0, len(values), _AT_ONCE))


def _smallest(values: np.ndarray) -> np.dtype:
    """Return the smallest type of integers that has room for all values, which may be floats.

    It is the type of the array if there is none, or if it holds no numbers.
    """
    if values.dtype.kind not in "if" or not len(values):
        return values.dtype
    low, high = values.min(), values.max()
    for name in _INTEGERS:
        if low >= np.iinfo(name).min and high <= np.iinfo(name).max:
            is_whole = all((piece == piece.astype(name)).all() for piece in _pieces(values))
            return np.dtype(name) if is_whole else values.dtype
    return values.dtype


_INTEGERS = ("i1", "i2", "i4")


def _read(path: Path, dtype: str) -> np.ndarray:
    verified_size(path)
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    kinds = {"f": "if"}.get(np.dtype(dtype).kind, np.dtype(dtype).kind)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise DamageError(f"an array of {array.dtype}, not {dtype}", str(path))
    return array
