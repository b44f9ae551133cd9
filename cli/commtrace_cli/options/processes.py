"""Processes that prepare or analyse a run."""

from __future__ import annotations

from typing import Annotated

from commtrace_cli.options.declare import option

Workers = Annotated[
    int | None,
    option(
        "--workers N",
        "Processes that prepare the dataset; each holds one rank in memory. By default, as many "
        "as there are cores.",
        min=1,
        show_default=False,
    ),
]
AnalysisWorkers = Annotated[
    int | None,
    option(
        "--workers N",
        "Processes that analyse a run which is read in parts; each holds one part in memory. By "
        "default, as many as there are cores.",
        min=1,
        show_default=False,
    ),
]
Dask = Annotated[
    str | None,
    option(
        "--dask ADDRESS",
        "Scheduler of a Dask cluster, such as tcp://host:8786, whose workers analyse the run. They "
        "must find its folder under the same path. Needs the package distributed.",
        show_default=False,
    ),
]
