"""Files that a command writes."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commtrace.exporters import FORMATS
from commtrace_cli.options.declare import option

# Type checkers cannot follow an enumeration that is created at run time.
if TYPE_CHECKING:
    ExportFormat = Enum
else:
    ExportFormat = Enum("ExportFormat", {name.upper(): name for name in FORMATS}, type=str)


RunFolderOutput = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="RUN.comm", help="The folder to which each rank adds its part."
    ),
]
RunOutput = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The run file to write, or a folder RUN.comm that keeps the part of each rank.",
    ),
]
MergeOutput = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "The run file to write, or a folder RUN.comm into which the parts are copied. By default "
        "run.json, or for a single folder RUN.comm its dataset.",
        show_default=False,
    ),
]
RunDataset = Annotated[
    bool,
    option(
        "--dataset",
        "Prepare a dataset in the folder RUN.comm at the end, as `commtrace merge RUN.comm` does. "
        "For a run of millions of calls, this is the default if pyarrow is installed.",
    ),
]
AsDataset = Annotated[
    bool,
    option(
        "--dataset",
        "Prepare a dataset in the given folder, or in the folder of -o RUN.comm. Needs "
        "the package pyarrow.",
    ),
]
Output = Annotated[Path, option("--output -o FILE", "The file to write.")]
PageOutput = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "The file to write; by default named after the trace, in the current folder, where it "
        "replaces an earlier page.",
        show_default=False,
    ),
]
Open = Annotated[bool, option("--open", "Open the page in a browser.")]
Share = Annotated[bool, option("--share", "Let others read the file; by default, only you can.")]
To = Annotated[ExportFormat, option("--to", "The format to write.")]
ExportOutput = Annotated[
    Path | None,
    option(
        "--output -o PATH",
        "The file or folder to write; by default named after the trace, in the current folder.",
    ),
]
PictureOutput = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "Write a picture: .html is self-contained, .json is plotly's; .png, .svg and .pdf "
        "need the package kaleido. By default, the picture is drawn in the terminal.",
    ),
]
DiffOutput = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "Write the comparison as an HTML page; by default, it is printed in the terminal.",
    ),
]
ComparisonOutput = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "Write an HTML page with the verdict, a map of divergence by module and step, and tables.",
        show_default=False,
    ),
]
Force = Annotated[bool, option("--force -f", "Overwrite an existing output.")]
