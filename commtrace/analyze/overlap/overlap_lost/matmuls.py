"""Matrix products that depend on a call, or on which it depends: both could be split.

Of n parts of a product, n - 1 can run while another part is communicated (async tensor
parallelism). Parts below `LEAST_PART_BYTES` are too small for the bandwidth.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames

LEAST_PART_BYTES = 1 << 20
"""Size of the first bucket of DistributedDataParallel, which is as small as is efficient."""

PRODUCTS = tuple(
    f"aten.{name}.default"
    for name in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm")
)


def split(frames: Frames, calls: pd.DataFrame) -> pd.Series | None:
    """Return the part of a product that could run beside each call if both were split; else nan.

    It is at most the transfer. None without matrix products.
    """
    comm, ops = frames.comm, frames.ops
    ops = ops[ops["op"].isin(PRODUCTS) & (ops["duration_ns"] > 0)]
    if ops.empty:
        return None
    sides = (
        ("all_gather", comm["result_used_ns"], ops["start_ns"]),
        ("reduce_scatter", comm["data_ready_ns"], ops["start_ns"] + ops["duration_ns"]),
    )
    found = pd.Series(np.nan, index=comm.index)
    for kind, of_call, of_op in sides:
        lasts = pd.Series(
            ops["duration_ns"].to_numpy("float64"),
            index=pd.MultiIndex.from_arrays([ops["rank"], of_op]),
        )
        lasts = lasts[~lasts.index.duplicated()]
        wanted = (comm["kind"] == kind) & (of_call >= 0)
        at = pd.MultiIndex.from_arrays([comm["rank"][wanted], of_call[wanted]])
        found[wanted] = lasts.reindex(at).to_numpy()
    sizes = frames.groups.drop_duplicates("name").set_index("name")["size"]
    num = comm["group"].astype(object).map(sizes).astype("float64")
    is_large = comm["payload_bytes"] >= LEAST_PART_BYTES * num
    hides = (found * (num - 1) / num).where(is_large & (num > 1))
    return hides.clip(upper=calls["transfer"]).where(calls["transfer"].notna())
