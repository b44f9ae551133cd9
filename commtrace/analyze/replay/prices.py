"""Time of transfers by their size: latency + bytes / bandwidth, as the run's own transfers show it.

The transfers of a kind in groups of equal size and axis are fitted, as medians by size. Without
two sizes that differ by a factor of `LEAST_RATIO`, only a bound is known: all of the time, or none
of it, is latency.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import QUEUE, TRANSFER
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes

LEAST_RATIO = 4.0
"""Ratio of the largest to the smallest size from which latency and bandwidth are told apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Latency and bandwidth of the transfers of a run.

    Attributes:
        of_calls: By rows of table `comm`: `transfer_ns`, the time of the transfer; `latency_ns`
            and `ns_per_byte` of transfers of its kind and group, nan if they are unknown; and
            `payload_bytes`.
    """

    of_calls: pd.DataFrame

    def latency_share(self, rows: np.ndarray) -> np.ndarray:
        """Return which part of the transfer of each call is latency; nan if unknown."""
        own = self.of_calls.loc[rows]
        moved = own["ns_per_byte"] * own["payload_bytes"].clip(lower=0)
        total = own["latency_ns"] + moved
        return (own["latency_ns"] / total.where(total > 0)).to_numpy()


@cached_per_run
def prices_of(run: Frames) -> Prices:
    """Return the latency and the bandwidth of the transfers of a run."""
    graph = work_graph(run)
    calls, links = graph.calls, graph.links
    transfer = np.full(len(graph.points), np.nan)
    edges = np.flatnonzero((links.sort == TRANSFER) | (links.sort == QUEUE))
    # Of a transfer in turn, the shorter edge is the time without what it was behind.
    order = edges[np.argsort(-links.length[edges], kind="stable")]
    transfer[links.target[order]] = links.length[order]
    comm = run.calls_at(calls.index)
    table = pd.DataFrame(
        {
            "kind": comm["kind"].astype(object),
            "axis": mesh_axes(run, comm["group"]).astype(object),
            "group_size": comm["group"].astype(object).map(run.groups.set_index("name")["size"]),
            "payload_bytes": comm["payload_bytes"],
            "transfer_ns": transfer[calls["end_point"].to_numpy()],
        },
        index=calls.index,
    )
    known = table[(table["payload_bytes"] >= 0) & table["transfer_ns"].notna()]
    by = ["kind", "axis", "group_size"]
    medians = known.groupby([*by, "payload_bytes"])["transfer_ns"].agg(median="median", num="size")
    fits = [
        (*key, *_fitted(own.reset_index()))  # type: ignore[misc] - a tuple of three
        for key, own in medians.groupby(level=by)
    ]
    found = pd.DataFrame(fits, columns=[*by, "latency_ns", "ns_per_byte"])
    # Without a fit, the columns have no type.
    found = found.astype({"latency_ns": "float64", "ns_per_byte": "float64"})
    return Prices(table.merge(found, on=by, how="left").set_axis(table.index))


def _fitted(of_sizes: pd.DataFrame) -> tuple[float, float]:
    """Return latency in ns, and ns per byte, of median times by size; nan if they are unknown."""
    size, time, num = (of_sizes[name].to_numpy("float64") for name in ("payload_bytes", "median", "num"))
    smallest, largest = max(size.min(), 1.0), size.max()
    if len(size) < 2 or largest / smallest < LEAST_RATIO:
        return np.nan, np.nan
    # Relative errors, since sizes differ by orders of magnitude.
    weight = np.sqrt(num) / np.maximum(time, 1.0)
    design = np.stack([weight, weight * size], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(design, weight * time, rcond=None)
    if slope < 0:
        return float(np.average(time, weights=num)), 0.0
    if latency < 0:
        return 0.0, float((weight**2 * size * time).sum() / (weight**2 * size**2).sum())
    return float(latency), float(slope)
