"""Preparation of datasets by commands, and what they print of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import OutputError
from commtrace.tracefile.spool import SPOOL_SUFFIX
from commtrace.units import text_of_bytes
from commtrace_cli.terminal import counting, say

if TYPE_CHECKING:
    from commtrace.tracefile.dataset import Dataset

BYTES_OF_LARGE_RUN = 32_000_000
"""Size of spools from which on a run is prepared without being asked for: some millions of rows."""


def prepared(folder: Path, workers: int | None = None, name: Path | None = None) -> Dataset:
    """Prepare the dataset of the run in a folder, and print its size.

    Args:
        folder: The folder.
        workers: Number of processes; by default one per core.
        name: Name of the folder in messages.

    Raises:
        TraceError: A part cannot be read.
        OutputError: It cannot be written.
        UsageError: pyarrow is not installed.
    """
    with counting(f"preparing the dataset of {name or folder}") as progress:
        from commtrace.tracefile.dataset import open_dataset, prepare_dataset

        prepare_dataset(folder, workers=workers, progress=progress)
        dataset = open_dataset(folder)
    size = text_of_bytes(dataset.num_bytes)
    num_calls, num_ranks = dataset.num_rows("comm"), len(dataset.ranks)
    say(f"dataset: {size}, {num_calls:,} calls of {num_ranks:,} ranks", always=True)
    return dataset


def prepared_if_possible(folder: Path) -> Dataset | None:
    """Prepare the dataset of a run; return None if it is not large or cannot be written.

    Raises:
        TraceError: A part cannot be read.
    """
    if not is_large(folder):
        return None
    try:
        return prepared(folder)
    except OutputError as error:  # nobody has asked for it
        say(f"note: no dataset was prepared: {error.found}", always=True)
        return None


def is_large(folder: Path) -> bool:
    """Return whether a run is to be prepared although nobody asks for it, and can be."""
    sizes = [path.stat().st_size for path in folder.glob(f"*{SPOOL_SUFFIX}")]
    return sum(sizes) >= BYTES_OF_LARGE_RUN and find_spec("pyarrow") is not None
