"""Edges between ranks: what a call waits for before its transfer begins.

    every rank            begins → MEETING ──TRANSFER──> end of each call
    root                  begin at the root, own begin ──TRANSFER──> end
    every rank at root    the root as for every rank, the others by themselves
    peer                  begin at the peer, own begin ──TRANSFER──> end

A send that once completed before its receive began is buffered, and so is every send of at most as
many bytes between ranks of that group: it waits for nobody. Asynchronous transfers of a group are
in turn: the transfer of a call begins once the previous one of its rank has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import is_complete
from commtrace.analyze.replay.graph import ARRIVE, MEETING, QUEUE, TRANSFER, Links, Points
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND, group_numbers, is_transfer, matches, partners
from commtrace.collective_table import EVERY_RANK, EVERY_RANK_AT_ROOT, KINDS, PEER, ROOT

NOBODY, EVERYBODY, OF_ROOT, OF_PEER = range(4)
"""Ranks whose begin a call waits for."""
_LEAST_CLOCK_ERROR_NS = 1_000
"""A call that ends earlier than another begins by this, and more than clocks err, does not wait."""


def needs_of(part: Frames) -> pd.DataFrame:
    """Return facts about the dependencies of the calls of a part, by their rows.

    `needs` is one of NOBODY, EVERYBODY, OF_ROOT and OF_PEER, or -1 if the trace does not show it.
    The end of some call of the match needs the begin of an `is_member`. `group` is the number of
    the group in table `groups`.
    """
    comm = part.comm
    own = comm["rank"] == comm["root"]
    by_kind = {name: kind.needs for name, kind in KINDS.items()}
    stated = comm["kind"].astype(object).map(by_kind)
    needs = pd.Series(-1, index=comm.index)
    complete = is_complete(part)
    needs = needs.mask(complete & (stated == EVERY_RANK), EVERYBODY)
    needs = needs.mask(complete & (stated == ROOT), OF_ROOT)
    needs = needs.mask(complete & (stated == EVERY_RANK_AT_ROOT), EVERYBODY)
    needs = needs.mask((stated == EVERY_RANK_AT_ROOT) & ~own, NOBODY)
    needs = needs.mask((stated == ROOT) & own, NOBODY)
    if is_transfer(part).any():
        needs = needs.mask((stated == PEER) & (partners(part) >= 0), OF_PEER)
    return pd.DataFrame(
        {
            "match": matches(part),
            "needs": needs.astype("int64"),
            "is_member": complete & stated.isin([EVERY_RANK, EVERY_RANK_AT_ROOT]),
            "root": comm["root"],
            "bytes": comm["payload_bytes"],
            "group": group_numbers(part),
            "is_send": comm["kind"] == SEND,
            "is_recv": comm["kind"] == RECV,
            "is_async": comm["is_async"],
        }
    )


@dataclass(frozen=True, slots=True, eq=False)
class JoinedCalls:
    """Points and edges of the calls' dependencies on other ranks.

    Attributes:
        points: Meetings.
        links: The edges.
        is_joined: Mask of the calls whose dependencies are known.
    """

    points: Points
    links: Links
    is_joined: np.ndarray


def joined_calls(calls: pd.DataFrame, first_point: int, clock_error_ns: int) -> JoinedCalls:
    """Return the edges of all calls of a run.

    Args:
        calls: A row per call: what `needs_of` states, `rank`, and `begin_point end_point begin
            end`, the points at which the call begins and ends, with their times.
        first_point: Number of the first new point.
        clock_error_ns: Bound on the error between the clocks of two ranks.
    """
    calls = calls.reset_index(drop=True)
    tolerance = clock_error_ns and max(clock_error_ns, _LEAST_CLOCK_ERROR_NS)
    ends = calls["end"].to_numpy()
    others = _other_begins(calls)
    is_met = (calls["needs"] == EVERYBODY).to_numpy()
    arrived = np.where(is_met, _last_begins(calls), others["begin"])
    is_one = ~is_met & (others["point"] >= 0)
    known = (is_met | is_one) & (ends - arrived >= -tolerance)
    known &= ~_is_buffered(calls, arrived, ends)
    ready = np.maximum(arrived, calls["begin"].to_numpy())
    before, since = _queued_behind(calls, ready)
    length = ends - np.maximum(ready, since)
    met, meetings = _meetings(calls, known & is_met, arrived, first_point)
    alone = _alone(calls, ends - ready, before < 0)
    # In its own time if it is no longer in turn, but as recorded if nothing changes.
    transfer = np.where(before >= 0, np.maximum(length, np.minimum(alone, ends - ready)), length)
    own = np.flatnonzero(known & is_one)
    own_known = np.flatnonzero(known)
    queued = np.flatnonzero(known & (before >= 0))
    source = np.where(is_met, met, others["point"])
    begin_point, end_point = (calls[name].to_numpy() for name in ("begin_point", "end_point"))
    arriving = np.flatnonzero(met >= 0)
    links = Links.of(begin_point[arriving], met[arriving], 0, ARRIVE).joined(
        Links.of(source[own_known], end_point[own_known], transfer[own_known], TRANSFER),
        Links.of(begin_point[own], end_point[own], transfer[own], TRANSFER),
        Links.of(end_point[before[queued]], end_point[queued], length[queued], QUEUE),
    )
    is_joined = known | (calls["needs"] == NOBODY).to_numpy() | _is_buffered(calls, arrived, ends)
    return JoinedCalls(meetings, links, is_joined)


def _last_begins(calls: pd.DataFrame) -> np.ndarray:
    """Return the last begin of the members of each call's match."""
    match, members = calls["match"].to_numpy(), np.flatnonzero(calls["is_member"])
    last = np.full(int(match.max(initial=0)) + 2, np.iinfo("int64").min)
    np.maximum.at(last, match[members], calls["begin"].to_numpy()[members])
    return last[match]


def _other_begins(calls: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return `point` and `begin` of the call at the root, or at the peer, of each call."""
    match, begin, points = (calls[name].to_numpy() for name in ("match", "begin", "begin_point"))
    found = {"point": np.full(len(calls), -1), "begin": np.full(len(calls), 1 << 62)}
    num = int(match.max(initial=0)) + 2
    pairs = (
        ((calls["rank"] == calls["root"]), calls["needs"] == OF_ROOT),
        (calls["is_send"], calls["is_recv"] & (calls["needs"] == OF_PEER)),
        (calls["is_recv"], calls["is_send"] & (calls["needs"] == OF_PEER)),
    )
    for is_source, is_target in pairs:
        rows, targets = np.flatnonzero(is_source & (match >= 0)), np.flatnonzero(is_target)
        place = np.full(num, -1)
        place[match[rows]] = rows
        source = place[match[targets]]
        targets, source = targets[source >= 0], source[source >= 0]
        found["point"][targets], found["begin"][targets] = points[source], begin[source]
    return found


def _is_buffered(calls: pd.DataFrame, arrived: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a mask of the sends that do not wait for their receives."""
    sends = (calls["is_send"] & (calls["needs"] == OF_PEER)).to_numpy()
    found = np.zeros(len(calls), dtype=bool)
    if not sends.any():
        return found
    of_sends = calls[sends]
    early = pd.Series((ends < arrived)[sends], index=of_sends.index)
    most = of_sends["bytes"].where(early, -1).groupby(of_sends["group"]).transform("max")
    found[sends] = (of_sends["bytes"] <= most) & (most >= 0)
    return found


def _queued_behind(calls: pd.DataFrame, ready: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the call of its rank and group that each asynchronous call is in turn behind.

    Returns:
        Its place, -1 if there is none that ended while the call was ready, and its end.
    """
    before = np.full(len(calls), -1)
    since = np.full(len(calls), np.iinfo("int64").min)
    rows = np.flatnonzero(calls["is_async"])
    if not len(rows):
        return before, since
    order = rows[
        np.lexsort([calls[name].to_numpy()[rows] for name in ("begin_point", "group", "rank")])
    ]
    previous, each = order[:-1], order[1:]
    same = np.ones(len(each), dtype=bool)
    for name in ("rank", "group"):
        values = calls[name].to_numpy()
        same &= values[previous] == values[each]
    ends = calls["end"].to_numpy()
    same &= (ends[previous] > ready[each]) & (ends[previous] <= ends[each])
    before[each[same]] = previous[same]
    since[each[same]] = ends[previous[same]]
    return before, since


def _alone(calls: pd.DataFrame, lasted: np.ndarray, is_alone: np.ndarray) -> np.ndarray:
    """Return the median time of transfers that were not in turn, by group, needs and size.

    It is 0 where there is none.
    """
    if is_alone.all():
        return np.zeros(len(calls), dtype="int64")
    keys = [calls[name] for name in ("group", "needs", "bytes")]
    times = pd.Series(np.where(is_alone, lasted, np.nan), index=calls.index)
    return times.groupby(keys).transform("median").fillna(0).to_numpy().astype("int64")


def _meetings(
    calls: pd.DataFrame, is_met: np.ndarray, arrived: np.ndarray, first_point: int
) -> tuple[np.ndarray, Points]:
    """Return the point at which the members of each match meet, by call, and these points.

    Args:
        calls: The calls.
        is_met: Mask of the calls that begin their transfers there.
        arrived: Time of the meeting of each of these.
        first_point: Number of the first meeting.
    """
    match = calls["match"].to_numpy()
    matches_met, first = np.unique(match[is_met], return_index=True)
    met = np.full(len(calls), -1)
    members = np.flatnonzero(calls["is_member"])
    if len(matches_met):
        place = np.searchsorted(matches_met, match[members]).clip(max=len(matches_met) - 1)
        own = matches_met[place] == match[members]
        met[members[own]] = first_point + place[own]
    at = arrived[is_met][first]
    return met, Points.of(MEETING, np.full(len(first), -1), matches_met, at)
