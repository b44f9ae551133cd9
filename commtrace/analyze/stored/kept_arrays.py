"""Arrays with an entry for each match of a run, kept in files that are mapped into memory.

    FOLDER/arrivals.meetings/latest.npy

Integers have the smallest type that has room for all of them. While arrays are computed they are in
a file without a name, which needs no memory of its own.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

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
    if not all(path.is_file() for path in kept.values()):
        with keeping(folder):
            make_folder(folder)
        arrays = facts.arrays(run, lambda *field: _scratch(folder, *field))
        for name, path in kept.items():
            with sealed(path) as file:
                np.lib.format.write_array(file, _narrowed(arrays[name]), allow_pickle=False)
        del arrays
    with reading_kept(folder):
        found = {name: _read(path, facts.fields[name][1]) for name, path in kept.items()}
        if len({len(each) for each in found.values()}) > 1:
            raise DamageError("arrays of several lengths", str(folder))
        return found


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


def _narrowed(values: np.ndarray) -> np.ndarray:
    """Return integers in the smallest type that has room for them."""
    if values.dtype.kind != "i" or not len(values):
        return values
    low, high = values.min(), values.max()
    fits = [low >= np.iinfo(each).min and high <= np.iinfo(each).max for each in _INTEGERS]
    return values.astype(_INTEGERS[fits.index(True)], copy=False)


_INTEGERS = ("i1", "i2", "i4", "i8")


def _read(path: Path, dtype: str) -> np.ndarray:
    verified_size(path)
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 1 or array.dtype.kind != np.dtype(dtype).kind:
        raise DamageError(f"an array of {array.dtype}, not {dtype}", str(path))
    return array
