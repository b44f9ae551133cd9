"""Points of the hosts: calls, waits, steps, launches and synchronisations of each thread, in order.

Threads of a rank form one chain if they take turns, as the thread that runs the backward pass does
with the main thread. A thread that has points while another is inside of a call or a wait runs
beside it, and is a chain of its own.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import blocked_parts, end_ns
from commtrace.analyze.replay.graph import (
    CALL_BEGIN,
    CALL_END,
    COMPLETE,
    LAUNCH,
    STEP_BEGIN,
    STEP_END,
    SYNC_BEGIN,
    SYNC_END,
    WAIT_BEGIN,
    WAIT_END,
)
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import TRANSFERS, Arrays, across_ranks, matches, of_match

_COLUMNS = ["rank", "thread", "at", "sort", "row", "tie"]
_TIES = 8
"""Points of a call at the same instant are in the order of their sorts."""
_STEP = -(1 << 60)
"""Steps end and begin after the calls that end at the same instant, and before those that begin."""
_SPANS = {CALL_END: CALL_BEGIN, WAIT_END: WAIT_BEGIN, SYNC_END: SYNC_BEGIN}


def calls_of_host(part: Frames) -> pd.DataFrame:
    """Return `rank id thread begin end complete wait_begin wait_end` of calls that the host makes.

    Times are in ns since the start of the run. `wait_begin` and `wait_end` are -1 for a call that
    was not waited for, and `complete` is -1 for one whose end is unknown, or is its return. The
    wait of a call in `is_assumed` is not recorded.
    """
    comm, base = part.comm, part.start_ns
    comm = comm[(comm["issue_ns"] >= 0) & ~_runs_as_kernels(part)]
    begin = comm["issue_ns"] - base
    _, in_wait, assumed = blocked_parts(comm, begin)
    end = begin + comm["call_ns"].clip(lower=0)
    complete = (end_ns(comm) - base).where(
        (comm["complete_ns"] >= comm["issue_ns"]) | (comm["blocked_ns"] >= 0), -1
    )
    stated = comm["wait_begin_ns"] >= 0
    wait_begin = (comm["wait_begin_ns"] - base).where(stated, assumed.where(in_wait > 0, -1))
    waited = comm["first_wait_ns"].where(stated, in_wait)
    # A wait that did not end has no point behind it.
    wait_begin = wait_begin.where(waited >= 0, -1)
    # A wait that found its call complete may not be recorded, but was before the result's use.
    used = (comm["result_used_ns"] - base).where(comm["result_used_ns"] >= 0, -1)
    is_assumed = (wait_begin < 0) & comm["is_async"] & (complete >= 0) & (used >= complete)
    wait_begin, waited = wait_begin.mask(is_assumed, used), waited.mask(is_assumed, 0)
    has_wait = wait_begin >= 0
    wait_begin = np.maximum(wait_begin, end).where(has_wait, -1)
    wait_end = (wait_begin + waited).where(has_wait, -1)
    blocks = ~has_wait & ~comm["is_async"]
    end = end.where(~blocks | (complete < 0) | (comm["call_ns"] >= 0), complete)
    complete = np.minimum(complete, wait_end.where(has_wait, complete)).where(~blocks, -1)
    complete = _seen_late(part, comm, end, complete, wait_begin, waited)
    thread = comm["thread"]
    return pd.DataFrame(
        {
            "rank": comm["rank"],
            "id": comm["id"],
            "thread": thread,
            "wait_thread": comm["wait_thread"].where(comm["wait_thread"] >= 0, thread),
            "begin": begin,
            "end": end,
            "complete": complete,
            "wait_begin": wait_begin,
            "wait_end": wait_end,
            "is_assumed": is_assumed,
        }
    ).astype("int64")


_AT_ONCE_NS = 100_000
"""Duration of a wait that has nothing to wait for, at most."""


def _seen_late(
    part: Frames,
    comm: pd.DataFrame,
    end: pd.Series,
    complete: pd.Series,
    wait_begin: pd.Series,
    waited: pd.Series,
) -> pd.Series:
    """Return when calls completed, also transfers whose completion only a wait has shown.

    The wait of a send or a receive may begin long after it was complete. Then it completed when its
    other end did, at the latest, and no earlier than its own call returned.
    """
    late = comm["kind"].isin(TRANSFERS) & (wait_begin >= 0) & (complete >= wait_begin)
    late &= waited <= _AT_ONCE_NS
    if not late.any():
        return complete
    others = of_match(part, ends_of_both(part)["first"], _NEVER)
    other = pd.Series(others, part.comm.index).reindex(comm.index)
    return complete.mask(late, np.maximum(np.minimum(other, wait_begin), end))


_NEVER = 1 << 62


@across_ranks(first=(_NEVER, "int64"))
def ends_of_both(part: Frames, into: Arrays) -> None:
    """First end of the calls of each match, in ns since the start of the run."""
    match, comm = matches(part).to_numpy(), part.comm
    known = (match >= 0) & (comm["complete_ns"] >= comm["issue_ns"]).to_numpy()
    known &= (comm["issue_ns"] >= 0).to_numpy()
    ends = (comm["complete_ns"] - part.start_ns).to_numpy()
    np.minimum.at(into["first"], match[known], ends[known])


def _runs_as_kernels(part: Frames) -> np.ndarray:
    """Return a mask of the calls that have kernels, whose times are theirs."""
    kernels = part.kernels[part.kernels["call_id"] >= 0]
    if kernels.empty:
        return np.zeros(len(part.comm), dtype=bool)
    keys = pd.MultiIndex.from_frame(part.comm[["rank", "id"]])
    return keys.isin(pd.MultiIndex.from_arrays([kernels["rank"], kernels["call_id"]]))


def host_points(part: Frames, calls: pd.DataFrame) -> pd.DataFrame:
    """Return `rank thread at sort row chain` of the hosts' points, in the order of their chains.

    Args:
        part: All rows of some ranks.
        calls: Calls of `calls_of_host`.
    """
    found = pd.concat(
        [*_of_calls(calls), *_of_later_waits(part, calls), *_of_steps(part), *_of_devices(part)],
        ignore_index=True,
    ).astype("int64")
    main = _main_threads(found)
    found["thread"] = found["thread"].where(found["thread"] >= 0, found["rank"].map(main))
    found = found.sort_values(["rank", "at", "tie"], kind="stable", ignore_index=True)
    own = found["thread"].where(_beside(found), -1)
    found["chain"] = found.groupby(["rank", own]).ngroup()
    return found.sort_values("chain", kind="stable", ignore_index=True)


def _points(table: pd.DataFrame, sort: int, thread: str, at: str, since: str = "") -> pd.DataFrame:
    """Return the begins of spans, or their ends if `since` is the name of their begins."""
    tie = table["id"] * _TIES + sort
    if since:
        # Of spans that end together, the inner one ends first.
        tie = tie.mask(table[at] > table[since], 2 * _STEP - table["id"])
    return pd.DataFrame(
        {
            "rank": table["rank"],
            "thread": table[thread],
            "at": table[at],
            "sort": sort,
            "row": table.index,
            "tie": tie,
        }
    )[_COLUMNS]


def _of_calls(calls: pd.DataFrame) -> list[pd.DataFrame]:
    waited = calls[calls["wait_begin"] >= 0]
    return [
        _points(calls, CALL_BEGIN, "thread", "begin"),
        _points(calls, CALL_END, "thread", "end", "begin"),
        _points(waited, WAIT_BEGIN, "wait_thread", "wait_begin"),
        _points(waited, WAIT_END, "wait_thread", "wait_end", "wait_begin"),
    ]


def _of_later_waits(part: Frames, calls: pd.DataFrame) -> list[pd.DataFrame]:
    waits = part.later_waits
    waits = waits[(waits["at_ns"] >= 0) & (waits["duration_ns"] >= 0)]
    if waits.empty:
        return []
    rows = calls.reset_index(names="row").set_index(["rank", "id"])["row"]
    keys = pd.MultiIndex.from_frame(waits[["rank", "call_id"]])
    row = rows[~rows.index.duplicated()].reindex(keys).to_numpy()
    known = ~np.isnan(row)
    begin = (waits["at_ns"] - part.start_ns)[known]
    table = pd.DataFrame(
        {
            "rank": waits["rank"][known],
            "thread": waits["thread"][known],
            "id": waits["call_id"][known],
            "begin": begin,
            "end": begin + waits["duration_ns"][known],
        }
    ).set_index(row[known].astype("int64"))
    return [
        _points(table, WAIT_BEGIN, "thread", "begin"),
        _points(table, WAIT_END, "thread", "end", "begin"),
    ]


def _of_steps(part: Frames) -> list[pd.DataFrame]:
    """Return begins and ends of steps."""
    steps = part.timed_steps.assign(thread=-1, id=-1)
    steps["begin"], steps["end"] = (steps[name] - part.start_ns for name in ("start_ns", "end_ns"))
    return [
        _points(steps, STEP_BEGIN, "thread", "begin").assign(tie=_STEP + 1),
        _points(steps, STEP_END, "thread", "end").assign(tie=_STEP),
    ]


def _of_devices(part: Frames) -> list[pd.DataFrame]:
    """Return launches of kernels, and waits of the host for devices."""
    kernels = part.kernels[(part.kernels["launch_ns"] >= 0) & (part.kernels["start_ns"] >= 0)]
    kernels = kernels[["rank", "id", "thread"]].assign(at=kernels["launch_ns"] - part.start_ns)
    syncs = part.syncs[(part.syncs["at_ns"] >= 0) & (part.syncs["duration_ns"] >= 0)]
    begin = syncs["at_ns"] - part.start_ns
    syncs = syncs[["rank", "id", "thread"]].assign(begin=begin, end=begin + syncs["duration_ns"])
    return [
        _points(kernels, LAUNCH, "thread", "at"),
        _points(syncs, SYNC_BEGIN, "thread", "begin"),
        _points(syncs, SYNC_END, "thread", "end", "begin"),
    ]


def _main_threads(points: pd.DataFrame) -> pd.Series:
    """Return the thread with most points of each rank."""
    known = points[points["thread"] >= 0]
    num = known.groupby(["rank", "thread"]).size().sort_values(kind="stable")
    return num.reset_index("thread").groupby(level=0)["thread"].last()


def _beside(points: pd.DataFrame) -> pd.Series:
    """Return a mask of the points of threads that run beside the main thread of their rank.

    Args:
        points: Points in the order of their ranks and times.
    """
    several = points.groupby("rank")["thread"].transform("nunique") > 1
    found = pd.Series(False, index=points.index)
    if not several.any():
        return found
    main = points["rank"].map(_main_threads(points))
    for rank, of_rank in points[several].groupby("rank"):
        is_main = of_rank["thread"] == main[of_rank.index[0]]
        own = of_rank[is_main]
        ends = own[own["sort"].isin([*_SPANS])]
        begins = own[own["sort"].isin([*_SPANS.values()])]
        at = of_rank["at"].to_numpy()
        # The number of spans of the main thread that contain each instant.
        depth = np.searchsorted(np.sort(begins["at"]), at, "left") - np.searchsorted(
            np.sort(ends["at"]), at, "right"
        )
        threads = of_rank.loc[(depth > 0) & ~is_main.to_numpy(), "thread"].unique()
        found |= (points["rank"] == rank) & points["thread"].isin(threads)
    return found


def complete_points(calls: pd.DataFrame) -> pd.DataFrame:
    """Return `rank at sort row` of the completions of calls that are no return."""
    known = calls[calls["complete"] >= 0]
    return pd.DataFrame(
        {"rank": known["rank"], "at": known["complete"], "sort": COMPLETE, "row": known.index}
    )
