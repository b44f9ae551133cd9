"""Files of a run that is larger than memory: its dataset, and the waits of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.stored import StoredRun
from commtrace.schema import EVENT_TABLES
from commtrace.tracefile.dataset.layout import table_path
from commtrace.tracefile.dataset.parquet_format import pyarrow


def files_of(run: StoredRun, name: str, folder: Path) -> list[Path]:
    """Return the Parquet files of a table; none if it is computed from tables in memory.

    Args:
        run: the run.
        name: the table.
        folder: takes the files of tables that are computed.
    """
    if name in EVENT_TABLES:
        # Under a plain name: the engine takes paths for patterns.
        folder.mkdir(parents=True, exist_ok=True)
        dataset = folder / "dataset"
        if not dataset.exists():
            dataset.symlink_to(run.dataset.target.resolve())
        paths = [table_path(dataset, name, rank) for rank in run.dataset.ranks]
        return [path for path in paths if path.exists()]
    if name == "waits":
        waits = folder / name
        waits.mkdir(parents=True, exist_ok=True)
        written: Sequence[str] = run.by_ranks(partial(_write_waits, folder=str(waits)))
        return [*map(Path, written)]
    return []


def _write_waits(part: Frames, folder: str) -> str:
    """Write the waits of the calls of some ranks, and return the path."""
    table = arrivals(part)
    first = int(table["rank"].min()) if len(table) else -1
    path = Path(folder) / f"rank-{first:05d}.parquet"
    pyarrow("cannot write the waits of calls")
    table.to_parquet(path, engine="pyarrow", index=False)
    return str(path)
