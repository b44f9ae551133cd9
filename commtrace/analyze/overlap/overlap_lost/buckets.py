"""Buckets of gradients: in the wrong order, too large, or too small."""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.overlap.overlap_lost.free_time import free_time
from commtrace.analyze.overlap.overlap_lost.matmuls import LEAST_PART_BYTES
from commtrace.analyze.run.carried import parameters_of
from commtrace.analyze.run.frame import Frames

_REDUCTIONS = ("all_reduce", "reduce_scatter")


def _are_buckets(frames: Frames) -> pd.Series:
    comm = frames.comm
    return (comm["carries"] == "gradients") & comm["kind"].isin(_REDUCTIONS)


def behind_another(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return a mask of the buckets that were ready before an earlier bucket of their pass.

    Buckets are issued in order, so each had to wait for the earlier bucket.
    """
    comm, are_buckets = frames.comm, _are_buckets(frames)
    if not are_buckets.any():
        return are_buckets
    order = pd.DataFrame(
        {
            "rank": comm["rank"],
            "step": comm["step"],
            "group": comm["group"].cat.codes,
            "id": comm["id"],
            "ready": calls["ready"],
        }
    )[are_buckets].sort_values(["rank", "id"])
    by = [order[name] for name in ("rank", "step", "group")]
    latest = order["ready"].groupby(by).cummax().groupby(by).shift(1)
    return (latest > order["ready"]).reindex(comm.index, fill_value=False)


def too_small(frames: Frames, calls: pd.DataFrame) -> pd.Series | None:
    """Return the transfer of small buckets, if a step has many; 0 for the longest, which remains.

    None without small buckets.
    """
    comm = frames.comm
    small_bytes, least = map(frames.settings.threshold, ("small_bytes", "many_per_step"))
    small = comm[_are_buckets(frames) & comm["payload_bytes"].between(1, small_bytes - 1)]
    small = small[(small["step"] >= 0) & (small["group"] != "")]
    if small.empty:
        return None
    bundle = small.groupby(["rank", "step", "group"], observed=True)["id"]
    small = small[bundle.transform("size") >= least]
    by = [small[name] for name in ("rank", "step")] + [small["group"].astype(object)]
    took = calls["transfer"][small.index]
    is_longest = took.groupby(by).transform("max") == took
    return took.mask(is_longest, 0.0).reindex(comm.index)


def too_large(frames: Frames, calls: pd.DataFrame) -> pd.Series | None:
    """Return the work beside which half of each bucket could be reduced; nan if unknown.

    It is at most half of the transfer. None without large buckets, or operators.

    The gradients of a module are ready once its backward pass ends: the work is that from the first
    such end to the issue of the bucket.
    """
    comm = frames.comm
    wanted = _are_buckets(frames) & (comm["payload_bytes"] >= 2 * LEAST_PART_BYTES)
    names = parameters_of(frames, comm)
    wanted &= (names != "") & calls["end"].notna()
    if not wanted.any() or frames.ops.empty:
        return None
    found = pd.Series(np.nan, index=comm.index)
    ends = _ends_of_modules(frames)
    begin = pd.Series(
        [
            _first_end(ends, rank, step, str(names), issue)
            for rank, step, names, issue in zip(
                comm["rank"][wanted],
                comm["step"][wanted],
                names[wanted],
                calls["issue"][wanted],
                strict=True,
            )
        ],
        index=comm.index[wanted],
        dtype="float64",
    ).dropna()
    issue = calls["issue"][begin.index]
    rank = comm["rank"][begin.index]
    beside = free_time(frames).within(rank, begin.astype("int64"), issue.astype("int64"))
    found[begin.index] = np.minimum(beside, calls["transfer"][begin.index] / 2)
    return found


def _ends_of_modules(frames: Frames) -> dict[tuple[int, int, str], float]:
    """Return the end of the last operator of each module's backward pass, by rank and step."""
    ops = frames.ops
    ops = ops[(ops["phase"] == "backward") & (ops["module"] != "") & (ops["duration_ns"] >= 0)]
    ended = (ops["start_ns"] + ops["duration_ns"] - frames.start_ns).astype("float64")
    by = [ops["rank"], ops["step"], ops["module"].astype(object)]
    return ended.groupby(by).max().to_dict()


def _first_end(
    ends: dict[tuple[int, int, str], float], rank: int, step: int, names: str, issue: float
) -> float:
    """Return when the first modules of these parameters ended; nan if any is unknown."""
    modules = {name.rpartition(".")[0] for name in names.split(",")}
    found = [ends.get((rank, step, module), np.nan) for module in modules]
    first = min(found) if found and not np.isnan(found).any() else np.nan
    return first if first < issue else np.nan
