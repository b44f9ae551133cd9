"""Nodes of a run, and the calls whose ranks are on several of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members
from commtrace.errors import UsageError


def nodes_of(run: Frames, text: str) -> pd.Series:
    """Return the number of the host of each rank, by rank.

    Raises:
        UsageError: The trace lacks the hosts of the ranks; `text` is the change that needs them.
    """
    hosts = run.ranks.set_index("rank")["host"].astype(object)
    if (hosts == "").any() or not len(hosts):
        raise UsageError(
            f"cannot make the change {text!r}",
            found="ranks without a host in the trace",
            why="what is within a node, and what between nodes, is not known",
            attempt="bandwidth 25GB/s where group=..., with the speed of the links",
        )
    return pd.Series(pd.factorize(hosts)[0], index=hosts.index)


def spans_nodes(run: Frames, rows: pd.Index, node: pd.Series) -> pd.Series:
    """Return whether ranks of each call are on several nodes, by rows of table `comm`.

    The ranks are the members of its group, or both ends of a transfer.
    """
    table = members(run)
    num_nodes = node.reindex(table["rank"]).groupby(table["group"].to_numpy()).nunique()
    comm = run.calls_at(rows)
    spans = comm["group"].astype(object).map(num_nodes > 1).fillna(False).to_numpy(bool)
    own, other = (node.reindex(comm[name]).to_numpy() for name in ("rank", "peer"))
    is_peer = (comm["peer"] >= 0).to_numpy()
    return pd.Series(np.where(is_peer, own != other, spans), index=rows)
