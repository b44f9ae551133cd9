"""Statements of SQL, their limits, and files of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from commtrace_cli.options.declare import argument, option

RunsAndStatement = Annotated[
    list[str],
    argument(
        "RUN... [STATEMENT]",
        "One run, or several as NAME=RUN, whose tables are NAME.table; and the statement. Without "
        "a statement, tables and columns are listed.",
    ),
]
StatementFile = Annotated[
    Path | None, option("--file -f FILE", "A file with the statement.", show_default=False)
]
ResultFile = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "The file to write, of the format of its suffix: .csv, .json or .parquet.",
        show_default=False,
    ),
]
AsParquet = Annotated[bool, option("--parquet", "Parquet, into the file of -o.")]
Overwrite = Annotated[bool, option("--force", "Overwrite an existing output.")]
Memory = Annotated[float, option("--memory GB", "Memory that a statement may use.", min=0.1)]
Seconds = Annotated[float, option("--seconds S", "Time that a statement may take.", min=0.1)]
