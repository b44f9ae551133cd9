"""Changes of a run that is replayed, and the file of the replayed run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from commtrace_cli.options.declare import argument, option

Changes = Annotated[
    list[str] | None,
    argument(
        "[CHANGE]...",
        "Changes that are made together, such as `remove where kind=barrier`; without one, those "
        "that pay are listed.",
    ),
]
AllSteps = Annotated[
    bool,
    option(
        "--all-steps",
        "Replay all steady steps of a run of more than 500,000 calls, not only some in the middle.",
    ),
]
ReplayedRun = Annotated[
    Path | None,
    option(
        "--output -o FILE", "Write the replayed run, which every command takes.", show_default=False
    ),
]
