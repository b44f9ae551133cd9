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

from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS, of_each_call
from commtrace.analyze.device import exposed_until, is_exact
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, numbers, partners
from commtrace.analyze.sums import numbered_rows
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


@of_each_call(OF_COLLECTIVES)
def last_arrivals(frames: Frames) -> pd.DataFrame:
    """Return `arrival` and `last_rank` of the last member that each call needs, if it is known.

    The arrival is in ns since the start of the run, and nan if it is unknown; the rank is then -1.
    Unlike the values of `arrivals`, they do not depend on the blocked time.
    """
    comm, seq = frames.comm, numbers(frames).to_numpy()
    issue = comm["issue_ns"] - frames.start_ns  # small enough to be exact as a float, too
    number, firsts = numbered_rows([comm["group"], numbers(frames)])
    rank, root, num = comm["rank"], comm["root"], len(firsts)
    is_root = rank == root
    needs_everyone = comm["kind"].isin(NEEDS_EVERYONE) | (
        comm["kind"].isin(ROOT_NEEDS_EVERYONE) & is_root
    )
    needs_root = comm["kind"].isin(NEEDS_ROOT)
    needs_nobody = comm["kind"].isin(ROOT_NEEDS_EVERYONE) & ~is_root
    latest, last = _last_arrivals(number, num, issue.to_numpy(), rank.to_numpy())
    arrival = pd.Series(latest[number], comm.index).where(needs_everyone)
    if needs_root.any():
        arrival = arrival.mask(needs_root, _of_root(issue, is_root, number, num))
    arrival = arrival.mask(needs_nobody, issue)
    matched = pd.Series(_are_matched(frames, seq, number, firsts), comm.index)
    last_rank = pd.Series(last[number], comm.index).mask(needs_root, root)
    if (transfer := is_transfer(frames)).any():
        partner = partners(frames)
        has_partner = (partner >= 0) & (comm["issue_ns"] >= 0)
        other = issue.reindex(partner).set_axis(comm.index)
        has_partner &= comm["issue_ns"].reindex(partner).set_axis(comm.index) >= 0
        arrival = arrival.mask(transfer, other.clip(lower=issue))
        matched = matched.mask(transfer, has_partner)
        last_rank = last_rank.mask(transfer, comm["peer"])
    known = matched & arrival.notna()
    last_rank = last_rank.where(arrival > issue, rank)
    return pd.DataFrame(
        {
            "arrival": arrival.where(known),
            "last_rank": last_rank.where(known, -1).astype("int64"),
        }
    )


@of_each_call(OF_RANKS)
def arrivals(frames: Frames) -> pd.DataFrame:
    """Return wait and transfer of every call, in the order of table `comm`; see `COLUMNS`."""
    comm, base = frames.comm, frames.start_ns
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
        | {name: values.where(known, -1).astype("int64") for name, values in columns.items()}
    )


def _are_matched(
    frames: Frames, seq: np.ndarray, number: np.ndarray, firsts: np.ndarray
) -> np.ndarray:
    """Test whether each member of the group made the call once, with equal kind and root."""
    comm, num = frames.comm, len(firsts)
    group = comm["group"].cat
    sizes = frames.groups.drop_duplicates("name").set_index("name")["size"]
    size = sizes.reindex(group.categories).fillna(-1).to_numpy("int64")[group.codes.iloc[firsts]]
    # A rank that made the call twice could hide one that did not make it.
    call, of_calls = numbered_rows([number, comm["rank"]])
    each_once = np.bincount(call, minlength=len(of_calls)) == 1
    are_matched = (seq[firsts] >= 0) & (np.bincount(number, minlength=num) == size)
    for holds in (
        each_once[call],
        comm["issue_ns"].to_numpy() >= 0,
        *(
            values == values[firsts][number]
            for values in (comm["kind"].cat.codes.to_numpy(), comm["root"].to_numpy())
        ),
    ):
        are_matched &= np.bincount(number[~holds], minlength=num) == 0
    return are_matched[number]


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


def _of_root(issue: pd.Series, is_root: pd.Series, number: np.ndarray, num: int) -> np.ndarray:
    """Return the issue time of the root of each call's collective; nan without a root."""
    found, roots = np.full(num, -np.inf), np.flatnonzero(is_root)
    np.maximum.at(found, number[roots], issue.to_numpy("float64")[roots])
    return np.where(np.isinf(found), np.nan, found)[number]


def _last_arrivals(
    number: np.ndarray, num: int, issue: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latest issue of each collective, and its rank; the lowest in a tie."""
    latest, last = (np.full(num, extreme) for extreme in (_LONG_AGO, -_LONG_AGO))
    np.maximum.at(latest, number, issue)
    is_latest = issue == latest[number]
    np.minimum.at(last, number[is_latest], rank[is_latest])
    return latest, last


_LONG_AGO = -(1 << 62)
