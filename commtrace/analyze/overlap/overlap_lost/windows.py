"""Measured windows around each call, and the reason why it was not hidden.

    ready          issue ───── in flight ───── end          used
      |── before ────|                          |── after ────|

Work that ran *before*, since the input was ready, and *after*, until the result was first used,
does not depend on the call: it could have run beside its transfer. So could work of a product that
is split with the call, or work since the first gradients of a bucket. A window is no saving: calls
share windows, and a call that ends earlier may let the next wait for longer (`chances`).

Without the times `data_ready_ns` and `result_used_ns`, a window is shorter, or unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals, end_ns, has_known_end
from commtrace.analyze.measures.data_ready import (
    data_ready,
    is_gather_of_parameters,
    result_used,
)
from commtrace.analyze.measures.device import on_device
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
def windows(frames: Frames) -> pd.DataFrame:
    """Return a row per call of a part with all rows of some ranks; times in ns, nan if unknown.

    Columns are `rank`, `issue`, `end`, `ready` and `used` since the start of the run; `exposed`,
    `transfer` and `hidden`; `before` and `after`; `beside`, the longest work that could have run
    beside the transfer; and the `reason`. By its cure, the call would be issued at `issue_at` and
    waited for at `wait_at`.
    """
    calls = _times(frames)
    early = calls["ready"].where(calls["ready"] < calls["issue"], calls["issue"])
    late = calls["used"].where(calls["used"] > calls["end"], calls["end"])
    calls["before"] = _free(frames, calls, early, calls["issue"]).where(calls["ready"].notna())
    calls["after"] = _free(frames, calls, calls["end"], late).where(calls["used"].notna())
    is_known = calls["before"].notna() | calls["after"].notna()
    beside = (calls["before"].fillna(0) + calls["after"].fillna(0)).where(is_known)
    options = {
        _BESIDE: pd.Series(np.minimum(beside, calls["transfer"]), index=calls.index),
        BLOCKED_BY_RECEIVE: _behind_receive(frames, calls),
        NOT_SPLIT: matmuls.split(frames, calls),
        BUCKET_TOO_LARGE: buckets.too_large(frames, calls),
        BUCKET_TOO_SMALL: buckets.too_small(frames, calls),
    }
    known = {reason: window for reason, window in options.items() if window is not None}
    each = np.column_stack([window.to_numpy("float64") for window in known.values()])
    calls["beside"] = np.fmax.reduce(each, axis=1)
    calls["reason"] = _reasons(frames, calls, [*known], each)
    return calls.assign(**_cured(frames, calls))


def _cured(frames: Frames, calls: pd.DataFrame) -> dict[str, pd.Series]:
    """Return when calls would be issued and waited for by the cures of their reasons.

    The last part of a split call is used, or ready, as much later or earlier as other parts of its
    product take. Half of a large bucket is reduced before the whole bucket is ready.
    """
    is_split = calls["reason"] == NOT_SPLIT
    is_gather = frames.comm["kind"] == "all_gather"
    is_large = calls["reason"] == BUCKET_TOO_LARGE
    sooner = calls["beside"].where(is_split & ~is_gather | is_large, 0.0)
    later = calls["beside"].where(is_split & is_gather, 0.0)
    ready = calls["ready"].mask(is_large & calls["ready"].isna(), calls["issue"])
    return {"issue_at": ready - sooner, "wait_at": calls["used"] + later}


_LEAST_PART = 0.1
"""Least part of a transfer that could be hidden for a reason to be named."""
_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}
_BESIDE = "beside"
"""Window before and after the call."""


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
            "ready": data_ready(frames),
            "used": result_used(frames),
            "exposed": exposed,
            "transfer": moved.where(moved >= 0, exposed).where(is_timed),
            "hidden": (end - issue - exposed).clip(lower=0),
        },
        copy=False,
    )


def _free(frames: Frames, calls: pd.DataFrame, begin: pd.Series, end: pd.Series) -> pd.Series:
    """Return the free time from begin to end of each row; 0 where either is unknown."""
    lasts, found = np.flatnonzero(end > begin), np.zeros(len(calls))
    if len(lasts):
        rank, first, last = (each.iloc[lasts] for each in (calls["rank"], begin, end))
        windows = rank, first.astype("int64"), last.astype("int64")
        found[lasts] = free_time(frames).within(*windows)
    return pd.Series(found, index=calls.index)


def _behind_receive(frames: Frames, calls: pd.DataFrame) -> pd.Series | None:
    """Return how long each receive could have been in flight during the wait for the one before it.

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


def _reasons(
    frames: Frames, calls: pd.DataFrame, options: Sequence[str], each: np.ndarray
) -> pd.Categorical:
    """Return the reason of each call; `each` has the windows of the options."""
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
    is_lost = calls["beside"] >= np.clip(_LEAST_PART * transfer, 1, None)
    is_on_device = on_device(frames)
    conditions = (
        (calls["exposed"].isna(), _NUMBERS[UNKNOWN]),
        (calls["exposed"] == 0, _NUMBERS[HIDDEN]),
        (calls["transfer"] <= _LEAST_PART * calls["exposed"], _NUMBERS[LATE_RANK]),
        (is_on_device & _computes_beside(frames), _NUMBERS[ONE_STREAM]),
        (is_on_device, _NUMBERS[UNKNOWN]),
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
