"""Time of transfers by their size: latency + bytes / bandwidth, as the run's own transfers show it.

The transfers of a kind in groups of equal size and axis are fitted, as medians by size. Without
two sizes that differ by a factor of `LEAST_RATIO`, only bounds are known: all of the time is
latency, or the bytes take as long as over links of `LEAST_BYTES_PER_S`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import QUEUE, TRANSFER
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.units import NANOSECONDS_PER_SECOND

LEAST_RATIO = 4.0
"""Ratio of the largest to the smallest size from which latency and bandwidth are told apart."""

LEAST_BYTES_PER_S = 125e6
"""Least bandwidth of the links of a run: 1 Gbit/s."""


@cached_per_run
def prices_of(run: Frames) -> pd.DataFrame:
    """Return what the transfer of each call took, and which part of that is latency.

    A row per call with known times, by rows of table `comm`: `kind`; `group_size`, `payload_bytes`,
    `transfer_ns` and `latency_share`, nan if they are unknown; and `least_share`, the least that
    it can be.
    """
    graph = work_graph(run)
    calls, links = graph.calls, graph.links
    transfer = np.full(len(graph.points), np.nan)
    edges = np.flatnonzero((links.sort == TRANSFER) | (links.sort == QUEUE))
    # The shorter edge of a queued transfer is its time without the queue.
    order = edges[np.argsort(-links.length[edges], kind="stable")]
    transfer[links.target[order]] = links.length[order]
    comm, kept = run.comm, calls.index
    group = comm["group"].loc[kept]
    size = group.map(run.groups.set_index("name")["size"])
    payload = comm["payload_bytes"].loc[kept]
    table = pd.DataFrame(
        {
            "kind": comm["kind"].loc[kept],
            "group_size": size.astype("float32"),
            "payload_bytes": payload.where(payload >= 0).astype("float64"),
            "transfer_ns": transfer[calls["end_point"].to_numpy()],
        },
        index=kept,
    )
    of = table.groupby(["kind", mesh_axes(run, group), "group_size"], observed=True, dropna=False)
    alike = of.ngroup()
    known = table["payload_bytes"].notna() & table["transfer_ns"].notna()
    times = table.loc[known, "transfer_ns"].groupby([alike[known], table["payload_bytes"][known]])
    medians = times.agg(median="median", num="size")
    fits = {each: fitted_to(own.reset_index()) for each, own in medians.groupby(level=0)}
    fitted = np.array([fits.get(each, (np.nan, np.nan)) for each in range(of.ngroups)])
    latency, per_byte = fitted.reshape(-1, 2)[alike.to_numpy()].T
    size, time = table["payload_bytes"], table["transfer_ns"]
    total = latency + per_byte * size
    table["latency_share"] = (latency / total.where(total > 0)).astype("float32")
    moving = size * (NANOSECONDS_PER_SECOND / LEAST_BYTES_PER_S)
    least = (1 - moving / time.where(time > 0)).clip(lower=0).fillna(0)
    table["least_share"] = least.astype("float32")
    return table


def fitted_to(of_sizes: pd.DataFrame) -> tuple[float, float]:
    """Return latency in ns, and ns per byte, of times by size; nan if they are unknown.

    Args:
        of_sizes: `payload_bytes`; `median`, the median time of transfers of that size in ns; and
            `num`, their number.
    """
    size, time, num = (
        of_sizes[name].to_numpy("float64") for name in ("payload_bytes", "median", "num")
    )
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
