"""Runs that are read from a dataset in parts, and are analysed in bounded memory.

    run = StoredRun(open_dataset(Path("RUN.comm")))
    by_module(run)

`stored_run` reads the parts, `row_store` keeps rows per call that are computed on the way, and
`collective_blocks` brings together the calls of all members of collectives.
"""

from __future__ import annotations

from commtrace.analyze.stored.stored_run import StoredRun

__all__ = ["StoredRun"]
