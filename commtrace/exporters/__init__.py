"""Exporters to other tools' formats; docs/exchange.md describes the mapping of each column.

    export(frames, Path("run.perfetto.json.gz"), to="perfetto")

`FORMATS` is the table of formats. A writer is imported when its format is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import UsageError

if TYPE_CHECKING:
    from commtrace.analyze.run.frame import Frames

__all__ = ["FORMATS", "Format", "export"]


@dataclass(frozen=True, slots=True)
class Format:
    """One format of an export.

    Attributes:
        suffix: Suffix of the default output name, after the trace's own name.
        module: Module of this package that writes the format.
        writer: Its function, which takes the frames and a path, and may return sentences on what
            it has written.
        is_folder: The path is a folder of files.
        is_streamed: A stored run is written part by part; otherwise it is read at once.
    """

    suffix: str
    module: str
    writer: str
    is_folder: bool = False
    is_streamed: bool = False

    def write(self, frames: Frames, path: Path) -> list[str]:
        """Write a run to `path`, and return sentences on what was written.

        Raises:
            UsageError: A stored run has more calls than can be read at once.
        """
        if frames.is_stored and not self.is_streamed:
            from commtrace.analyze.excerpts.excerpt import of_ranks

            frames = of_ranks(frames)
        writer = getattr(import_module(f"{__name__}.{self.module}"), self.writer)
        return writer(frames, path) or []


FORMATS: dict[str, Format] = {
    "perfetto": Format(".perfetto.json.gz", "perfetto", "write_perfetto"),
    "speedscope": Format(".speedscope.json", "speedscope", "write_speedscope", is_streamed=True),
    "csv": Format("-csv", "tables", "write_csv_tables", is_folder=True, is_streamed=True),
    "parquet": Format(
        "-parquet", "tables", "write_parquet_tables", is_folder=True, is_streamed=True
    ),
    "chakra": Format("-chakra", "chakra", "write_chakra", is_folder=True),
}
"""Formats by name, as `commtrace export --to` takes it."""


def export(frames: Frames, path: Path, *, to: str) -> Path:
    """Write a run in another format to `path`, and return the path.

    Raises:
        UsageError: There is no such format, or the package that writes it is not installed.
        OutputError: The path cannot be written.
    """
    if to not in FORMATS:
        raise UsageError(
            f"no format {to!r}", found=f"the formats {', '.join(FORMATS)}", attempt="one of them"
        )
    FORMATS[to].write(frames, path)
    return path
