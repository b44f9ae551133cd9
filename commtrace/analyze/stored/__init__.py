"""Runs that are read from a dataset in parts, and are analysed in bounded memory.

    run = StoredRun(open_dataset(Path("RUN.comm")))
    by_module(run)

`stored_run` reads the parts, whose tables load their columns lazily (`lazy_table`).
`kept_arrays` has what calls of several ranks determine, `part_tables` what parts have prepared, and
`dask_workers` has a cluster work on parts.
"""

from __future__ import annotations

from commtrace.analyze.stored.dask_workers import DaskWorkers, dask_workers
from commtrace.analyze.stored.stored_run import StoredRun

__all__ = ["DaskWorkers", "StoredRun", "dask_workers"]
