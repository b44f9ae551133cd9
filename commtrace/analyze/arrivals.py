"""How long each call waited for its peers, and who came last.

Nobody can be through before those whom he needs have come (`matching` says which calls are one):

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier    needs every member
    broadcast, scatter                                             needs the root
    reduce, gather                                                 the root needs every member
    send, recv                                                     needs the other end

The time that a rank is blocked before the last of these has arrived is *wait*; the rest of its
blocked time is *transfer*. `wait_states` names the waits. A collective of which a member's call is
missing, or whose members disagree on its kind or root, and a transfer whose other end is not in
the trace, have no known wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import once
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, numbers, partners
from commtrace.schema import Column

COLUMNS = (
    Column("rank", int, "", "global rank that made the call"),
    Column("id", int, "", "number of the call on its rank"),
    Column("arrival_ns", int, "unix ns", "when the last member that it needs arrived; -1 unknown"),
    Column("wait_ns", int, "ns", "blocked time before that; -1 unknown"),
    Column("transfer_ns", int, "ns", "blocked time after that; -1 unknown"),
    Column("last_rank", int, "", "rank whose arrival ended the wait, itself if none; -1 unknown"),
)

NEEDS_EVERYONE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
NEEDS_ROOT = ("broadcast", "scatter")
ROOT_NEEDS_EVERYONE = ("reduce", "gather")


def end_ns(comm: pd.DataFrame) -> pd.Series:
    """When each call was over: its completion, or as long as it is known to have blocked."""
    held = comm[["blocked_ns", "call_ns"]].max(axis=1).clip(lower=0)
    return comm["complete_ns"].where(
        comm["complete_ns"] >= comm["issue_ns"], comm["issue_ns"] + held
    )


@once
def arrivals(frames: Frames) -> pd.DataFrame:
    """Wait and transfer of every call, in the order of table `comm`; columns as in `COLUMNS`."""
    comm, base = frames.comm, frames.start_ns
    calls = pd.DataFrame(
        {
            "rank": comm["rank"],
            "root": comm["root"],
            "issue": comm["issue_ns"] - base,  # small enough to be exact as a float, too
            "group": comm["group"].cat.codes,
            "seq": numbers(frames),
            "kind": comm["kind"].cat.codes,
        }
    )
    collective = calls.groupby(["group", "seq"], sort=False)
    number = collective.ngroup()
    is_root = calls["rank"] == calls["root"]
    needs_everyone = comm["kind"].isin(NEEDS_EVERYONE) | (
        comm["kind"].isin(ROOT_NEEDS_EVERYONE) & is_root
    )
    needs_root = comm["kind"].isin(NEEDS_ROOT)
    needs_nobody = comm["kind"].isin(ROOT_NEEDS_EVERYONE) & ~is_root
    arrival = (
        collective["issue"]
        .transform("max")
        .where(needs_everyone)
        .mask(needs_root, _of_root(calls, number))
        .mask(needs_nobody, calls["issue"])
    )
    matched = _is_matched(frames, calls, collective)
    last_rank = _latecomer(calls, number).mask(needs_root, calls["root"])
    if (transfer := is_transfer(frames)).any():
        partner = partners(frames)
        has_partner = (partner >= 0) & (comm["issue_ns"] >= 0)
        other = calls["issue"].reindex(partner).set_axis(calls.index)
        has_partner &= comm["issue_ns"].reindex(partner).set_axis(calls.index) >= 0
        arrival = arrival.mask(transfer, other.clip(lower=calls["issue"]))
        matched = matched.mask(transfer, has_partner)
        last_rank = last_rank.mask(transfer, comm["peer"])
    known = matched & arrival.notna() & (comm["blocked_ns"] >= 0)
    wait = _blocked_before(comm, calls["issue"], arrival)
    columns = {
        "arrival_ns": arrival.where(known, 0).astype("int64") + base,
        "wait_ns": wait,
        "transfer_ns": comm["blocked_ns"] - wait,
        "last_rank": last_rank.where(arrival > calls["issue"], calls["rank"]),
    }
    return pd.DataFrame(
        {"rank": comm["rank"], "id": comm["id"]}
        | {name: values.where(known, -1).astype("int64") for name, values in columns.items()}
    )


def _is_matched(frames: Frames, calls: pd.DataFrame, collective: Any) -> pd.Series:
    """Whether each member of the group made the call, once, and all made the same one."""
    size = frames.comm["group"].astype(object).map(frames.groups.set_index("name")["size"])
    alike = pd.Series(True, index=calls.index)
    for name in ("kind", "root"):
        alike &= collective[name].transform("min") == collective[name].transform("max")
    num_calls = collective["rank"].transform("size")
    each_once = ~calls.duplicated(["group", "seq", "rank"], keep=False)
    all_once = each_once.groupby([calls["group"], calls["seq"]], sort=False).transform("all")
    timed = (frames.comm["issue_ns"] >= 0).groupby(collective.ngroup()).transform("all")
    return (calls["seq"] >= 0) & (num_calls == size) & alike & all_once & timed


def _blocked_before(comm: pd.DataFrame, issue: pd.Series, arrival: pd.Series) -> pd.Series:
    """How much of each call's blocked time lies before `arrival`; both on one clock.

    A rank is blocked in the call, and where that does not account for all of its blocked time,
    in a wait that ended with the call's completion, but did not begin before the call returned.
    """
    in_call = comm[["call_ns", "blocked_ns"]].min(axis=1).clip(lower=0)
    in_wait = (comm["blocked_ns"] - in_call).clip(lower=0)
    ended = issue + (end_ns(comm) - comm["issue_ns"])
    began_waiting = np.maximum(ended - in_wait, issue + in_call)
    before_call = (arrival - issue).clip(lower=0)
    before_wait = (arrival - began_waiting).clip(lower=0)
    return np.minimum(before_call, in_call) + np.minimum(before_wait, in_wait)


def _of_root(calls: pd.DataFrame, collective: pd.Series) -> pd.Series:
    """When the root of each call's collective issued it; nan without a root."""
    roots = calls["rank"] == calls["root"]
    return collective.map(calls.loc[roots, "issue"].groupby(collective[roots]).max())


def _latecomer(calls: pd.DataFrame, collective: pd.Series) -> pd.Series:
    """The member that came last to each call's collective; the lowest of several at once."""
    ordered = calls.sort_values(["issue", "rank"], ascending=[False, True])
    return collective.map(ordered.groupby(collective[ordered.index])["rank"].first())
