"""Several nodes, on which torchrun starts the ranks."""

from __future__ import annotations

from typing import Annotated

import typer

Nodes = Annotated[
    str | None,
    typer.Option(
        "--nnodes",
        metavar="N",
        help="Number of nodes, or MIN:MAX; torchrun starts the ranks of each.",
        show_default=False,
    ),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        "--node-rank",
        metavar="N",
        min=0,
        help="Number of this node, from 0.",
        show_default=False,
    ),
]
MasterAddress = Annotated[
    str | None,
    typer.Option(
        "--master-addr",
        metavar="HOST",
        help="Host of node 0, at which the ranks meet.",
        show_default=False,
    ),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Port on that host.",
        show_default=False,
    ),
]
RendezvousBackend = Annotated[
    str | None,
    typer.Option(
        "--rdzv-backend",
        metavar="NAME",
        help="Rendezvous of torchrun, such as c10d, for nodes that come and go.",
        show_default=False,
    ),
]
RendezvousEndpoint = Annotated[
    str | None,
    typer.Option(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="Address of the rendezvous.",
        show_default=False,
    ),
]
RendezvousId = Annotated[
    str | None,
    typer.Option(
        "--rdzv-id",
        metavar="ID",
        help="Identity of the run, the same on all nodes.",
        show_default=False,
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        "--max-restarts",
        metavar="N",
        min=0,
        help="How often torchrun restarts the ranks if a rank fails.",
        show_default=False,
    ),
]
