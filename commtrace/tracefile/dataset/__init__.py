"""Dataset of a run: Parquet files beside the spools that any rank, column or stretch is read from.

    prepare_dataset(Path("RUN.comm"))
    open_dataset(Path("RUN.comm")).trace(ranks=[3], columns={"comm": ["kind", "issue_ns"]})

    RUN.comm/dataset/manifest.json             the parts it was made of, facts of the run, rows
    RUN.comm/dataset/comm/rank-00003.parquet   rows of a rank in order of their ids, likewise
                                               ops/ and kernels/
    RUN.comm/dataset/steps.parquet             and groups, ranks and sources

It holds what reading the spools yields. A dataset whose parts have changed since is stale, and not
used. pyarrow is loaded when a file is written or read.
"""

from __future__ import annotations

from commtrace.tracefile.dataset.preparation import prepare_dataset
from commtrace.tracefile.dataset.reading import Dataset, dataset_of, open_dataset
from commtrace.tracefile.dataset.stored_rows import StoredRows
from commtrace.tracefile.dataset.table_files import RowGroup

__all__ = [
    "Dataset",
    "RowGroup",
    "StoredRows",
    "dataset_of",
    "open_dataset",
    "prepare_dataset",
]
