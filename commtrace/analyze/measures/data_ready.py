"""Bounds of the time in which calls could run: their data is ready, and their result is used.

Received data is ready when its sender sent it, and gathered parameters are since they were last
updated: by the optimizer, or before the step. Other data is when its last operator wrote it, as far
as the trace states that.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.arrivals import sent
from commtrace.analyze.run.frame import Frames


def data_ready(frames: Frames) -> pd.Series:
    """Return when the data of each call was ready, in ns since the start; nan if unknown."""
    comm = frames.comm
    ready = _since_start(frames, comm["data_ready_ns"])
    is_gather = is_gather_of_parameters(comm)
    if is_gather.any():
        ready = ready.mask(is_gather, _updated(frames, comm[is_gather]))
    is_recv = comm["kind"] == "recv"
    return ready.mask(is_recv, sent(frames)) if is_recv.any() else ready


def result_used(frames: Frames) -> pd.Series:
    """Return when an operator first used each result, in ns since the start; nan if unknown."""
    return _since_start(frames, frames.comm["result_used_ns"])


def _since_start(frames: Frames, instants: pd.Series) -> pd.Series:
    return (instants - frames.start_ns).astype("float64").where(instants >= 0)


def is_gather_of_parameters(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls that gather parameters, such as in FSDP."""
    is_of_parameters = (comm["carries"] == "parameters") & (comm["phase"] != "optimizer")
    return is_of_parameters & (comm["kind"] == "all_gather")


def _updated(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return when the parameters were last updated before each of some calls; nan if unknown.

    That is the start of the call's step, or a later end of an operator of the optimizer.
    """
    base = frames.start_ns
    steps = frames.timed_steps.drop_duplicates(["rank", "step"]).set_index(["rank", "step"])
    begin = (steps["start_ns"] - base).astype("float64")
    of_call = pd.MultiIndex.from_frame(calls[["rank", "step"]])
    found = pd.Series(begin.reindex(of_call).to_numpy(), index=calls.index)
    ops = frames.ops[frames.ops["phase"] == "optimizer"]
    ends = pd.DataFrame({"rank": ops["rank"], "at": ops["start_ns"] + ops["duration_ns"] - base})
    updated = pd.merge_asof(
        pd.DataFrame(
            {"rank": calls["rank"], "at": calls["issue_ns"] - base, "row": calls.index}
        ).sort_values("at"),
        ends.assign(updated=ends["at"].astype("float64")).sort_values("at"),
        on="at",
        by="rank",
    ).set_index("row")["updated"]
    return found.where(~(updated.reindex(calls.index) > found), updated)
