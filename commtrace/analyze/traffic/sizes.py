"""Message sizes: a histogram in powers of two, by kind and group.

A row contains the calls with a payload of at least `from_bytes` and less than twice that; the row
of 0 contains calls without payload. Counts and sums are totals over all ranks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.measures import summed
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import NOT_KNOWN
from commtrace.analyze.run.matching import mesh_axes
from commtrace.schema import Column

COLUMNS = (
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column(
        "from_bytes",
        int,
        "bytes",
        "smallest payload of the row, a power of two or 0",
        title="From size",
    ),
    Column("num_calls", int, "", "calls of all ranks", title="Calls"),
    Column("payload_bytes", int, "bytes", "their payload, over all ranks", title="Payload"),
    Column("blocked_ns", int, "ns", "their blocked time, over all ranks", title="Blocked"),
    Column("num_untimed", int, "", "calls of unknown blocked time", title="Not timed"),
)


def sizes(frames: Frames) -> pd.DataFrame:
    """Return a row per kind, group and power of two; calls of unknown size are excluded."""
    table = summed(frames.by_ranks(_sums)).reset_index()
    table["blocked_ns"] = table["blocked_ns"].where(table.pop("num_timed") > 0, NOT_KNOWN)
    table["mesh_axis"] = mesh_axes(frames, table["group"])
    table = typed(table, COLUMNS)
    return table.sort_values(["kind", "group", "from_bytes"]).reset_index(drop=True)


def _sums(frames: Frames) -> pd.DataFrame:
    """Return sums by kind, group and power of two."""
    comm = frames.comm[frames.comm["payload_bytes"] >= 0]
    payload, blocked = comm["payload_bytes"], comm["blocked_ns"]
    parts = pd.DataFrame(
        {
            "from_bytes": power_below(payload.to_numpy()),
            "num_calls": 1,
            "payload_bytes": addable(payload),
            "blocked_ns": addable(blocked.clip(lower=0)),
            "num_timed": (blocked >= 0).astype("int64"),
            "num_untimed": (blocked < 0).astype("int64"),
        }
    )
    keys = [comm["kind"], comm["group"], parts.pop("from_bytes")]
    return parts.groupby(keys, observed=True).sum()


def power_below(payload: np.ndarray) -> np.ndarray:
    """Return the largest power of two not above each size; 0 for 0."""
    _, exponent = np.frexp(payload.astype("float64"))  # rounded, perhaps up to the next power
    power = np.int64(1) << np.clip(exponent - 1, 0, 62).astype("int64")
    return np.where(payload > 0, np.where(power > payload, power >> 1, power), 0)


SIZES = Analysis(
    "sizes",
    "Message sizes",
    "How large are the messages of each kind and group?",
    sizes,
    COLUMNS,
    topic="What",
    shown="kind group mesh_axis from_bytes num_calls payload_bytes blocked_ns num_untimed",
)
