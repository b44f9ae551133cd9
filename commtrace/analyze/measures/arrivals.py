"""Wait and transfer time of each call, and the rank that arrived last.

A call cannot complete before the members it depends on have arrived (`matching` says which calls
form a collective):

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier    needs every member
    broadcast, scatter                                             needs the root
    reduce, gather                                                 the root needs every member
    send, recv                                                     needs the other end

*Wait* is the time for which a rank is blocked before the last of these arrives; the rest of its
blocked time is *transfer*. A call on a device arrives when its kernel starts, and is blocked while
its device does not compute. `wait_states` names the waits. The wait is unknown for a collective
that lacks a member's call or whose members disagree on its kind or root, and for a transfer whose
other end is not in the trace.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.device import exposed_until, is_exact
from commtrace.analyze.run.cached_per_run import of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import (
    NONE,
    RECV,
    SEND,
    Arrays,
    across_ranks,
    codes_of_texts,
    is_transfer,
    matches,
    of_match,
    put_alike,
)
from commtrace.collective_table import EVERY_RANK, EVERY_RANK_AT_ROOT, ROOT, needing
from commtrace.schema import Column

COLUMNS = (
    Column("rank", int, "", "global rank that made the call"),
    Column("id", int, "", "number of the call on its rank", title="Call"),
    Column(
        "arrival_ns", int, "unix ns", "arrival of the last member that the call needs; -1 unknown"
    ),
    Column("wait_ns", int, "ns", "blocked time before that; -1 unknown", title="Waited"),
    Column("transfer_ns", int, "ns", "blocked time after that; -1 unknown", title="Transferred"),
    Column("last_rank", int, "", "rank whose arrival ended the wait, itself if none; -1 unknown"),
)

NEEDS_EVERYONE = needing(EVERY_RANK)
NEEDS_ROOT = needing(ROOT)
ROOT_NEEDS_EVERYONE = needing(EVERY_RANK_AT_ROOT)


def end_ns(comm: pd.DataFrame) -> pd.Series:
    """Return the end of each call: its completion if known, else issue plus known duration.

    The known duration is the longer of the call's own and its blocked time.
    """
    duration_ns = comm[["blocked_ns", "call_ns"]].max(axis=1).clip(lower=0)
    return comm["complete_ns"].where(
        comm["complete_ns"] >= comm["issue_ns"], comm["issue_ns"] + duration_ns
    )


def has_known_end(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls whose `end_ns` is the actual end, not only the last known instant.

    The time inside the issuing call does not show when an asynchronous call ended.
    """
    ended = (comm["complete_ns"] >= comm["issue_ns"]) | (comm["blocked_ns"] >= 0)
    return (comm["issue_ns"] >= 0) & ended


# Read at once, also for what these are computed from.
_OF_MEETINGS = ("kind", "group", "seq", "rank", "root", "issue_ns")
_OF_WAITS = ("id", "peer", "device", "stream", "call_ns", "blocked_ns", "complete_ns")

_LONG_AGO = -(1 << 62)
_NEVER = 1 << 62
NO_RANK = np.iinfo("int64").max


@across_ranks(
    num=(0, "int64"),
    _kind=(0, "int64"),
    _root=(_LONG_AGO, "int64"),
    is_unlike=(False, "bool"),
    latest=(_LONG_AGO, "int64"),
    last=(NO_RANK, "int64"),
    earliest=(_NEVER, "int64"),
    first=(NO_RANK, "int64"),
    of_root=(NONE, "int64"),
)
def meetings(part: Frames, into: Arrays) -> None:
    """Arrivals at each collective or transfer, in ns since the start of the run.

    `num` is the number of calls; `is_unlike` holds if their kinds or roots differ, or a call is
    repeated or of unknown time. `latest` and `earliest` are the last and the first arrival, `last`
    and `first` the lowest ranks that made them, and `of_root` is the arrival of the root, -1 if
    unknown. The kinds of a transfer are always unlike.
    """
    comm = part.comm[[*_OF_MEETINGS]]
    match = matches(part).to_numpy()
    own = np.flatnonzero(match >= 0)
    at, rank = match[own], comm["rank"].to_numpy()[own]
    issue = (comm["issue_ns"].to_numpy() - part.start_ns)[own]
    np.add.at(into["num"], at, 1)
    is_unlike = comm["issue_ns"].to_numpy()[own] < 0
    is_unlike |= _are_repeated(at, rank)
    root = comm["root"].to_numpy()[own]
    is_unlike |= put_alike(into["_kind"], at, codes_of_texts(comm["kind"])[own], 0)
    is_unlike |= put_alike(into["_root"], at, root, _LONG_AGO)
    into["is_unlike"][at[is_unlike]] = True
    _put(np.maximum, into["latest"], into["last"], at, issue, rank)
    _put(np.minimum, into["earliest"], into["first"], at, issue, rank)
    is_root = rank == root
    np.maximum.at(into["of_root"], at[is_root], issue[is_root])


def _are_repeated(at: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return a mask of the calls of a rank at a match at which it has made a call before."""
    keys = np.sort(at * (rank.max(initial=0) + 1) + rank)
    if (keys[1:] != keys[:-1]).all():  # which takes a sort to see, and no hash table
        return np.zeros(len(at), dtype=bool)
    return pd.DataFrame({"match": at, "rank": rank}).duplicated().to_numpy()


def _put(
    extreme: np.ufunc,
    times: np.ndarray,
    ranks: np.ndarray,
    at: np.ndarray,
    time: np.ndarray,
    rank: np.ndarray,
) -> None:
    """Put the first or last of some times at each entry, and the lowest rank that has it."""
    before = times[at]
    extreme.at(times, at, time)
    now = times[at]
    ranks[at[now != before]] = NO_RANK
    is_it = time == now
    np.minimum.at(ranks, at[is_it], rank[is_it])


@of_each_call
def last_arrivals(frames: Frames) -> pd.DataFrame:
    """Return `arrival` and `last_rank` of the last member that each call needs, if it is known.

    The arrival is in ns since the start of the run, and nan if it is unknown; the rank is then -1.
    Unlike the values of `arrivals`, they do not depend on the blocked time.
    """
    comm, met = frames.comm, meetings(frames)
    issue = comm["issue_ns"] - frames.start_ns  # small enough to be exact as a float, too
    rank, root = comm["rank"], comm["root"]
    is_root = rank == root
    needs_everyone = comm["kind"].isin(NEEDS_EVERYONE) | (
        comm["kind"].isin(ROOT_NEEDS_EVERYONE) & is_root
    )
    needs_root = comm["kind"].isin(NEEDS_ROOT)
    needs_nobody = comm["kind"].isin(ROOT_NEEDS_EVERYONE) & ~is_root
    latest = pd.Series(of_match(frames, met["latest"], _LONG_AGO), comm.index)
    last_rank = pd.Series(of_match(frames, met["last"], NONE), comm.index)
    arrival = latest.astype("float64").where(needs_everyone)
    if needs_root.any():
        of_root = pd.Series(of_match(frames, met["of_root"], NONE), comm.index)
        arrival = arrival.mask(needs_root, of_root.astype("float64").where(of_root >= 0))
        last_rank = last_rank.mask(needs_root, root)
    arrival = arrival.mask(needs_nobody, issue)
    matched = is_complete(frames)
    if (transfer := is_transfer(frames)).any():
        # Both ends have arrived at the later of their times.
        earliest_ns = of_match(frames, met["earliest"], _LONG_AGO) + frames.start_ns
        both = (of_match(frames, met["num"], 0) == 2) & (earliest_ns >= 0)
        arrival = arrival.mask(transfer, latest)
        matched = matched.mask(transfer, both)
        last_rank = last_rank.mask(transfer, comm["peer"])
    known = matched & arrival.notna()
    last_rank = last_rank.where(arrival > issue, rank)
    return pd.DataFrame(
        {
            "arrival": arrival.where(known),
            "last_rank": last_rank.where(known, -1).astype("int64"),
        },
        copy=False,
    )


def is_complete(frames: Frames) -> pd.Series:
    """Return a mask of the calls of collectives that each member made once, alike and timed."""
    comm, met = frames.comm, meetings(frames)
    group = comm["group"].cat
    sizes = frames.groups.drop_duplicates("name").set_index("name")["size"]
    size = np.append(sizes.reindex(group.categories).fillna(-1).to_numpy("int64"), -1)
    found = of_match(frames, met["num"], 0) == size[group.codes]
    found &= ~of_match(frames, met["is_unlike"], True)
    return pd.Series(found & ~is_transfer(frames), comm.index)


@of_each_call
def arrivals(frames: Frames) -> pd.DataFrame:
    """Return wait and transfer of every call, in the order of table `comm`; see `COLUMNS`."""
    comm, base = frames.comm[[*_OF_MEETINGS, *_OF_WAITS]], frames.start_ns
    last = last_arrivals(frames)
    arrival = last["arrival"]
    known = arrival.notna() & (comm["blocked_ns"] >= 0)
    wait = _blocked_before(frames, comm["issue_ns"] - base, arrival)
    columns = {
        # The base is added to integers, since floats of Unix times are not exact.
        "arrival_ns": arrival.where(known, 0).astype("int64") + base,
        "wait_ns": wait,
        "transfer_ns": comm["blocked_ns"] - wait,
        "last_rank": last["last_rank"],
    }
    return pd.DataFrame(
        {"rank": comm["rank"], "id": comm["id"]}
        | {name: values.where(known, -1).astype("int64") for name, values in columns.items()},
        copy=False,
    )


def _blocked_before(frames: Frames, issue: pd.Series, arrival: pd.Series) -> pd.Series:
    """Return the part of each call's blocked time before `arrival`; both times use the same clock.

    It is exact for device calls if the trace also has the computation of their device.
    """
    comm = frames.comm
    in_call, in_wait, began_waiting = blocked_parts(comm, issue)
    before_call = (arrival - issue).clip(lower=0)
    before_wait = (arrival - began_waiting).clip(lower=0)
    before = before_call.clip(upper=in_call) + before_wait.clip(upper=in_wait)
    exact = is_exact(frames) & arrival.notna()
    if not exact.any():
        return before
    completed = issue + (comm["complete_ns"] - comm["issue_ns"])
    arrived = arrival[exact].clip(issue[exact], completed[exact])
    return before.mask(exact, exposed_until(frames, arrived))


def blocked_parts(comm: pd.DataFrame, issue: pd.Series) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return blocked time in the call, blocked time in its wait, and the begin of that wait.

    A rank is blocked in the call itself. Blocked time beyond the call's own duration is attributed
    to a wait that ended with the call's completion and began no earlier than the call's return.
    The begin is on the clock of `issue`.
    """
    in_call = comm[["call_ns", "blocked_ns"]].min(axis=1).clip(lower=0)
    in_wait = (comm["blocked_ns"] - in_call).clip(lower=0)
    ended = issue + (end_ns(comm) - comm["issue_ns"])
    return in_call, in_wait, np.maximum(ended - in_wait, issue + in_call)


@across_ranks(issue=(np.nan, "float64"))
def _sends(part: Frames, into: Arrays) -> None:
    """Issue of the send of each transfer, in ns since the start of the run; nan if unknown."""
    comm, match = part.comm, matches(part)
    is_one = (comm["kind"] == SEND) & (match >= 0) & (comm["issue_ns"] >= 0)
    into["issue"][match[is_one]] = comm["issue_ns"][is_one] - part.start_ns


@of_each_call
def sent(frames: Frames) -> pd.Series:
    """Return when the data of each receive was sent, in ns since the start; nan if unknown."""
    of_sends = of_match(frames, _sends(frames)["issue"], np.nan)
    issue = pd.Series(of_sends, frames.comm.index, name="sent")
    return issue.where(frames.comm["kind"] == RECV)
