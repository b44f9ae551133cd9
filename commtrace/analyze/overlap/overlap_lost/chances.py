"""Chance of each call to be hidden: by how much, behind other work of the rank.

    ready          issue ───── in flight ───── end          used
      |── before ────|                          |── after ────|

What ran *before*, since the input was ready, and *after*, until the result was first used, does not
depend on the call. It could have hidden the call's transfer, but not the wait for a late peer.
Several calls share the time that they all could be hidden behind. Parameters are ready since the
last optimizer step, received data since its sender sent it.

Without the times `data_ready_ns` and `result_used_ns`, a chance is a lower bound, or unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals, end_ns, has_known_end, sent
from commtrace.analyze.measures.device import on_device
from commtrace.analyze.measures.intervals import merged
from commtrace.analyze.overlap.overlap_lost import buckets, matmuls
from commtrace.analyze.overlap.overlap_lost.free_time import free_time
from commtrace.analyze.overlap.overlap_lost.reasons import (
    BLOCKED_BY_RECEIVE,
    BUCKET_ORDER,
    BUCKET_TOO_LARGE,
    BUCKET_TOO_SMALL,
    DEPENDENT,
    HIDDEN,
    ISSUED_LATE,
    LATE_RANK,
    NOT_SPLIT,
    ONE_STREAM,
    PREFETCH_LATE,
    REASONS,
    UNKNOWN,
    WAITED_AT_ONCE,
)
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMPUTE


@cached_per_run
def chances(frames: Frames) -> pd.DataFrame:
    """Return a row per call of a part with all rows of some ranks; times in ns, nan if unknown.

    Columns are `rank`, `issue`, `end`, `ready` and `used` since the start of the run; `exposed`,
    `transfer` and `hidden`; `before` and `after`; `could` be hidden; and the `reason`.
    """
    calls = _times(frames)
    early = calls["ready"].where(calls["ready"] < calls["issue"], calls["issue"])
    late = calls["used"].where(calls["used"] > calls["end"], calls["end"])
    calls["before"] = _free(frames, calls, early, calls["issue"]).where(calls["ready"].notna())
    calls["after"] = _free(frames, calls, calls["end"], late).where(calls["used"].notna())
    is_known = calls["before"].notna() | calls["after"].notna()
    beside = (calls["before"].fillna(0) + calls["after"].fillna(0)).where(is_known)
    beside = pd.Series(np.minimum(beside, calls["transfer"]), index=calls.index)
    options = {
        _BESIDE: _shared(frames, calls, early, late, beside),
        BLOCKED_BY_RECEIVE: _behind_receive(frames, calls),
        NOT_SPLIT: matmuls.split(frames, calls),
        BUCKET_TOO_LARGE: buckets.too_large(frames, calls),
        BUCKET_TOO_SMALL: buckets.too_small(frames, calls),
    }
    known = {reason: could for reason, could in options.items() if could is not None}
    each = np.column_stack([could.to_numpy("float64") for could in known.values()])
    could = np.fmax.reduce(each, axis=1)
    calls["reason"] = _reasons(frames, calls, [*known], each)
    could = np.where(is_on_device(frames), np.nan, could)
    calls["could"] = np.where(calls["transfer"] == 0, 0.0, could)
    return calls


_LEAST_PART = 0.1
"""Least part of a transfer that could be hidden for a reason to be named."""
_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}
_BESIDE = "beside"
"""Chance by the time before and after the call."""


def _times(frames: Frames) -> pd.DataFrame:
    comm, base = frames.comm, frames.start_ns
    is_timed = has_known_end(comm) & (comm["blocked_ns"] >= 0)
    issue, end = (
        (times - base).astype("float64").where(is_timed)
        for times in (comm["issue_ns"], end_ns(comm))
    )
    exposed = comm["blocked_ns"].astype("float64").where(is_timed)
    moved = arrivals(frames)["transfer_ns"].astype("float64")
    return pd.DataFrame(
        {
            "rank": comm["rank"],
            "issue": issue,
            "end": end,
            "ready": _ready(frames),
            "used": _known(comm["result_used_ns"], base),
            "exposed": exposed,
            "transfer": moved.where(moved >= 0, exposed).where(is_timed),
            "hidden": (end - issue - exposed).clip(lower=0),
        },
        copy=False,
    )


def _known(instants: pd.Series, base: int) -> pd.Series:
    return (instants - base).astype("float64").where(instants >= 0)


def _ready(frames: Frames) -> pd.Series:
    """Return when the data of each call was ready, in ns since the start; nan if unknown."""
    comm, base = frames.comm, frames.start_ns
    ready = _known(comm["data_ready_ns"], base)
    is_gather = is_gather_of_parameters(comm)
    if is_gather.any():
        ready = ready.mask(is_gather, _updated(frames, comm[is_gather]))
    is_recv = comm["kind"] == "recv"
    return ready.mask(is_recv, sent(frames)) if is_recv.any() else ready


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


def _free(frames: Frames, calls: pd.DataFrame, begin: pd.Series, end: pd.Series) -> pd.Series:
    """Return the free time from begin to end of each row; 0 where either is unknown."""
    lasts, found = np.flatnonzero(end > begin), np.zeros(len(calls))
    if len(lasts):
        rank, first, last = (each.iloc[lasts] for each in (calls["rank"], begin, end))
        windows = rank, first.astype("int64"), last.astype("int64")
        found[lasts] = free_time(frames).within(*windows)
    return pd.Series(found, index=calls.index)


def _shared(
    frames: Frames, calls: pd.DataFrame, early: pd.Series, late: pd.Series, could: pd.Series
) -> pd.Series:
    """Reduce what calls could be hidden by, where they would need the same time several times."""
    windows = pd.DataFrame({"rank": calls["rank"], "start": early, "end": late})[could > 0]
    if windows.empty:
        return could
    windows = windows.astype("int64").sort_values(["rank", "start"])
    joined = merged(windows, ["rank"])
    # Windows are in order, and each begins in the joined one whose begin is the last before it.
    is_first = windows["start"] > windows.groupby("rank")["end"].cummax().groupby(
        windows["rank"]
    ).shift(1)
    is_first |= ~windows["rank"].duplicated()
    number = is_first.cumsum() - 1
    free = free_time(frames).within(joined["rank"], joined["start"], joined["end"])
    available = free.to_numpy("float64")
    wanted = could[windows.index].groupby(number).sum().to_numpy()
    part = pd.Series(np.minimum(available / wanted, 1.0)[number], index=windows.index)
    return could * part.reindex(could.index, fill_value=1.0)


def _behind_receive(frames: Frames, calls: pd.DataFrame) -> pd.Series | None:
    """Return by how much each receive would have been hidden by the wait for the receive before it.

    None without receives.
    """
    receives = calls[(frames.comm["kind"] == "recv") & calls["end"].notna()]
    if receives.empty:
        return None
    order = receives.assign(id=frames.comm["id"][receives.index]).sort_values(["rank", "id"])
    before = order.groupby("rank")[["issue", "end", "exposed"]].shift(1)
    begin = np.maximum(order["ready"], before["issue"])
    waited = (before["end"] - begin).clip(lower=0).where(before["exposed"] > 0)
    waited = waited.where(before["end"] <= order["issue"])
    return np.minimum(order["transfer"], waited).reindex(calls.index)


def is_on_device(frames: Frames) -> pd.Series:
    """Return a mask of the calls that an accelerator runs."""
    return on_device(frames) & ((frames.comm["device"] != "cpu") | (frames.comm["stream"] >= 0))


def _reasons(
    frames: Frames, calls: pd.DataFrame, options: Sequence[str], each: np.ndarray
) -> pd.Categorical:
    """Return the reason of each call; `each` is by how much the options could hide the calls."""
    comm = frames.comm
    early = np.full(len(calls), _NUMBERS[ISSUED_LATE])
    early[is_gather_of_parameters(comm)] = _NUMBERS[PREFETCH_LATE]
    early[buckets.behind_another(frames, calls)] = _NUMBERS[BUCKET_ORDER]
    before, after = (calls[name].fillna(0).to_numpy() for name in ("before", "after"))
    transfer = calls["transfer"].to_numpy()
    # To wait later takes less than to issue earlier, if it suffices.
    is_early = (before >= after) & (after < transfer / 2)
    beside = np.where(is_early, early, _NUMBERS[WAITED_AT_ONCE])
    # The first of equal ones.
    most = np.where(np.isnan(each), -1.0, each).argmax(axis=1)
    others = np.array([_NUMBERS.get(reason, -1) for reason in options])[most]
    best = np.where(others < 0, beside, others)
    is_lost = np.fmax.reduce(each, axis=1) >= np.clip(_LEAST_PART * transfer, 1, None)
    on_device = is_on_device(frames)
    conditions = (
        (calls["exposed"].isna(), _NUMBERS[UNKNOWN]),
        (calls["exposed"] == 0, _NUMBERS[HIDDEN]),
        (calls["transfer"] <= _LEAST_PART * calls["exposed"], _NUMBERS[LATE_RANK]),
        (on_device & _computes_beside(frames), _NUMBERS[ONE_STREAM]),
        (on_device, _NUMBERS[UNKNOWN]),
        (is_lost, best),
        (calls["before"].notna() & calls["after"].notna(), _NUMBERS[DEPENDENT]),
    )
    masks = [np.asarray(condition, dtype=bool) for condition, _ in conditions]
    found = np.select(masks, [number for _, number in conditions], _NUMBERS[UNKNOWN])
    return pd.Categorical.from_codes(found.astype("int8"), pd.Index(REASONS))


def _computes_beside(frames: Frames) -> pd.Series:
    """Return a mask of the calls on a stream on which kernels compute, too."""
    by = ["rank", "device", "stream"]
    kernels = frames.kernels
    if kernels.empty:
        return pd.Series(False, index=frames.comm.index)
    computes = kernels[(kernels["category"] == COMPUTE) & (kernels["stream"] >= 0)]
    streams = pd.MultiIndex.from_frame(computes[by].drop_duplicates().astype({"device": object}))
    of_calls = pd.MultiIndex.from_frame(frames.comm[by].astype({"device": object}))
    return pd.Series(of_calls.isin(streams), index=frames.comm.index)
