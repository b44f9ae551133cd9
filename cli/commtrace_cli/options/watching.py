"""Options of `commtrace watch`: its display and its alarms."""

from __future__ import annotations

from typing import Annotated

import typer

Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="SECONDS", min=0.1, max=3600, help="Time between two refreshes."
    ),
]
Once = Annotated[bool, typer.Option("--once", metavar="", help="Show the state once, and exit.")]
AsJsonLines = Annotated[
    bool, typer.Option("--json", metavar="", help="At each refresh, a line of JSON.")
]
OnHang = Annotated[
    str | None,
    typer.Option(
        "--on-hang",
        metavar="DURATION",
        help="Exit with code 4 once a rank has been in a call for this long, such as 60s or 5m.",
        show_default=False,
    ),
]
OnStraggler = Annotated[
    str | None,
    typer.Option(
        "--on-straggler",
        metavar="SHARE",
        help="Exit with code 5 once all others have waited for the same rank in this part of the "
        "last ten seconds, such as 20%, and three times as long as for any other.",
        show_default=False,
    ),
]
OnMismatch = Annotated[
    bool,
    typer.Option(
        "--on-mismatch",
        metavar="",
        help="Exit with code 6 once members of a group disagree in a collective.",
    ),
]
Exec = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        help="With an alarm: run this shell command before exiting.",
        show_default=False,
    ),
]
Serve = Annotated[
    bool,
    typer.Option(
        "--serve",
        metavar="",
        help="Also show the state as a page, on this machine only, at the address that is printed.",
    ),
]
PortOfPage = Annotated[
    int | None,
    typer.Argument(
        min=0,
        max=65535,
        metavar="[PORT]",
        help="With --serve: port of the page.",
        show_default=False,
    ),
]
"""`--serve 8790`, which reads as if the option had a value."""
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="PORT", min=0, max=65535, help="Port of the page; 0 for any free port."
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Also serve the state as metrics for Prometheus, at /metrics of this port of this "
        "machine, 0 for any free port. HOST 0.0.0.0 lets other machines scrape them. Needs the "
        "package prometheus_client.",
        show_default=False,
    ),
]
DumpRanks = Annotated[
    str | None,
    typer.Option(
        "--dump",
        metavar="RANKS",
        help="Ask these ranks, such as 0,3-5 or all, for their stacks and calls in flight, print "
        "them and exit; with an alarm, when it goes off.",
        show_default=False,
    ),
]
