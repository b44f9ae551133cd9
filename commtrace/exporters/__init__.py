"""A trace in the formats of other tools; docs/exchange.md says what becomes of each column.

    export(frames, Path("run.perfetto.json.gz"), to="perfetto")

`FORMATS` is the table of them: what each is called, what it is for, and the name that its file or
folder has unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commtrace.analyze.frame import Frames
from commtrace.errors import UsageError
from commtrace.exporters.perfetto import write_perfetto
from commtrace.exporters.speedscope import write_speedscope
from commtrace.exporters.tables import write_csv_tables, write_parquet_tables

__all__ = ["FORMATS", "Format", "export"]


@dataclass(frozen=True, slots=True)
class Format:
    """One of them: `suffix` follows the trace's own name; `is_folder` tells a folder of files."""

    write: Callable[[Frames, Path], None]
    suffix: str
    is_folder: bool = False

    def name_for(self, trace: Path) -> Path:
        """What an export of the trace at a path is called: a name in the current folder."""
        return Path(f"{trace.name.removesuffix('.json')}{self.suffix}")


FORMATS = {
    "perfetto": Format(write_perfetto, ".perfetto.json.gz"),
    "speedscope": Format(write_speedscope, ".speedscope.json"),
    "csv": Format(write_csv_tables, "-csv", is_folder=True),
    "parquet": Format(write_parquet_tables, "-parquet", is_folder=True),
}


def export(frames: Frames, path: Path, *, to: str) -> Path:
    """Write a run in another format to `path`, and return that.

    Raises UsageError for a format that does not exist, and where Parquet has nobody to write it.
    """
    if to not in FORMATS:
        raise UsageError(
            f"no format {to!r}", found=f"the formats {', '.join(FORMATS)}", attempt="one of them"
        )
    FORMATS[to].write(frames, path)
    return path
