"""Exporters to other tools' formats; docs/exchange.md describes the mapping of each column.

    export(frames, Path("run.perfetto.json.gz"), to="perfetto")

`FORMATS` is the table of formats.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commtrace.analyze.frame import Frames
from commtrace.errors import UsageError
from commtrace.exporters.perfetto import write_perfetto
from commtrace.exporters.speedscope import write_speedscope
from commtrace.exporters.tables import write_csv_tables, write_parquet_tables

__all__ = ["FORMATS", "export"]


FORMATS: dict[str, Callable[[Frames, Path], None]] = {
    "perfetto": write_perfetto,
    "speedscope": write_speedscope,
    "csv": write_csv_tables,
    "parquet": write_parquet_tables,
}
"""Writers of the formats, by name."""


def export(frames: Frames, path: Path, *, to: str) -> Path:
    """Write a run in another format to `path`, and return the path.

    Raises:
        UsageError: There is no such format, or Parquet is asked for and pyarrow is not installed.
        OutputError: The path cannot be written.
    """
    if to not in FORMATS:
        raise UsageError(
            f"no format {to!r}", found=f"the formats {', '.join(FORMATS)}", attempt="one of them"
        )
    FORMATS[to](frames, path)
    return path
