"""A replay as a run again: the tables of a trace, with the times of the replay.

Every instant of a rank is moved as the points around it on the same thread are. Calls that changes
have removed are left out. A replayed run says so in its facts (`replayed`), of which every table
and picture has a notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pandas as pd

from commtrace.analyze.measures.covered import NOTHING, Covered
from commtrace.analyze.replay.graph import (
    CALL_BEGIN,
    CALL_END,
    KERNEL_BEGIN,
    KERNEL_END,
    LAUNCH,
    STEP_BEGIN,
    STEP_END,
    WAIT_BEGIN,
    WAIT_END,
    Replay,
    points_of_rows,
)
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMPUTE
from commtrace.tracefile import REPLAYED

_SPANS: Mapping[str, tuple[str, str]] = {
    "ops": ("start_ns", "duration_ns"),
    "host_events": ("at_ns", "duration_ns"),
    "pipeline_actions": ("start_ns", "duration_ns"),
    "later_waits": ("at_ns", "duration_ns"),
    "syncs": ("at_ns", "duration_ns"),
    "fingerprints": ("at_ns", ""),
}
"""Begin and duration in the tables of what happened on hosts, beside their calls."""

_BLOCKING = ["blocked_ns", "call_ns", "wait_begin_ns", "first_wait_ns", "is_async"]


def run_of(run: Frames, replay: Replay, removed: np.ndarray, changes: str) -> Frames:
    """Return a run with the times of a replay.

    Args:
        run: The run that was replayed, in memory.
        replay: The replay of its graph, which may have been changed.
        removed: Rows of table `comm` that changes have removed.
        changes: Text of the changes.
    """
    moved = _Moved(run, replay)
    tables = {name: moved.spans(name, *columns) for name, columns in _SPANS.items()}
    kernels = moved.kernels()
    comm = moved.calls()
    exposed = _exposed(comm, kernels) - _exposed(run.comm, run.kernels)
    comm["blocked_ns"] += exposed.where(comm["blocked_ns"] >= 0, 0)
    comm = comm[~comm.index.isin(removed)]
    return Frames(
        run={**run.run, REPLAYED: changes},
        path=run.path,
        settings=run.settings,
        comm=comm.reset_index(drop=True),
        kernels=kernels,
        steps=moved.steps(),
        ranks=moved.ranks(),
        communicators=run.communicators,
        removed_calls=run.removed_calls,
        groups=run.groups,
        sources=run.sources,
        **tables,
    )


def blocked_of(run: Frames, replay: Replay) -> pd.Series:
    """Return for how long each call blocks its rank in a replay, in ns; -1 if it is unknown.

    Calls that devices run have the recorded time.
    """
    found = run.comm[_BLOCKING].copy()
    _Moved(run, replay).set_blocked(found)
    return found["blocked_ns"]


class _Moved:
    """Tables of a run with the times of a replay."""

    def __init__(self, run: Frames, replay: Replay) -> None:
        self.run = run
        self.replay = replay
        self.points = replay.graph.points
        self.time = np.where(replay.times.is_reached, replay.time, self.points.at)

    @cached_property
    def _maps(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return recorded and replayed times of the points of each rank's main chain."""
        points = self.points
        on_host = np.flatnonzero(
            (points.chain >= 0) & ~np.isin(points.sort, [KERNEL_BEGIN, KERNEL_END])
        )
        found = {}
        order = on_host[np.lexsort([points.at[on_host], points.rank[on_host]])]
        for rank, own in pd.Series(order).groupby(points.rank[order]):
            chains = pd.Series(points.chain[own])
            main = own[(chains == chains.mode()[0]).to_numpy()].to_numpy()
            found[int(rank)] = points.at[main], np.maximum.accumulate(self.time[main])  # type: ignore[arg-type] - a rank
        return found

    def instants(self, rank: pd.Series, at: pd.Series) -> pd.Series:
        """Return when recorded instants of ranks, in Unix ns, are in the replay; -1 if unknown."""
        found = at.to_numpy().copy()
        start = self.run.start_ns
        for each, rows in pd.Series(np.arange(len(rank))).groupby(rank.to_numpy()):
            if each not in self._maps:
                continue
            recorded, now = self._maps[each]  # type: ignore[index] - a rank
            own = rows.to_numpy()[found[rows] >= 0]
            since = found[own] - start
            place = np.searchsorted(recorded, since, side="right") - 1
            first, last = np.maximum(place, 0), np.minimum(place + 1, len(recorded) - 1)
            gap = recorded[last] - recorded[first]
            part = np.where(gap > 0, (since - recorded[first]) / np.maximum(gap, 1), 0)
            inside = now[first] + np.rint(part * (now[last] - now[first])).astype("int64")
            # Before the first point and after the last, times move with it.
            inside = np.where(place < 0, since - recorded[0] + now[0], inside)
            behind = since > recorded[-1]
            inside = np.where(behind, since - recorded[-1] + now[-1], inside)
            found[own] = np.maximum(inside + start, 0)
        return pd.Series(found, index=at.index)

    def spans(self, table: str, begin: str, duration: str) -> pd.DataFrame:
        """Return a table whose rows begin, and last, as long as in the replay."""
        rows = getattr(self.run, table)
        if rows.empty:
            return rows
        start = self.instants(rows["rank"], rows[begin])
        found = rows.assign(**{begin: start})
        if duration:
            known = (rows[duration] >= 0) & (rows[begin] >= 0)
            end = self.instants(rows["rank"], (rows[begin] + rows[duration]).where(known, -1))
            found[duration] = (end - start).clip(lower=0).where(known, rows[duration])
        return found

    def of_rows(self, sort: int, rows: pd.Index) -> pd.Series:
        """Return the time of the last point of a sort of each row, in Unix ns; -1 without one."""
        return self._of_rows(sort, rows, self.time)

    def _of_rows(self, sort: int, rows: pd.Index, time: np.ndarray) -> pd.Series:
        point = points_of_rows(self.points.sort, self.points.row, sort, rows)
        return pd.Series(np.where(point >= 0, time[point] + self.run.start_ns, -1), index=rows)

    def steps(self) -> pd.DataFrame:
        """Return table `steps`."""
        steps = self.run.steps
        begin, end = self.of_rows(STEP_BEGIN, steps.index), self.of_rows(STEP_END, steps.index)
        known = (begin >= 0) & (end >= 0)
        return steps.assign(
            start_ns=begin.where(known, steps["start_ns"]), end_ns=end.where(known, steps["end_ns"])
        )

    def ranks(self) -> pd.DataFrame:
        """Return table `ranks`."""
        ranks = self.run.ranks
        return ranks.assign(
            **{name: self.instants(ranks["rank"], ranks[name]) for name in ("start_ns", "end_ns")}
        )

    def kernels(self) -> pd.DataFrame:
        """Return table `kernels`."""
        kernels = self.run.kernels
        if kernels.empty:
            return kernels
        begin, end = (self.of_rows(sort, kernels.index) for sort in (KERNEL_BEGIN, KERNEL_END))
        launch, known = self.of_rows(LAUNCH, kernels.index), begin >= 0
        return kernels.assign(
            start_ns=begin.where(known, kernels["start_ns"]),
            duration_ns=(end - begin).where(known, kernels["duration_ns"]),
            launch_ns=launch.where(launch >= 0, kernels["launch_ns"]),
        )

    def calls(self) -> pd.DataFrame:
        """Return table `comm`."""
        comm, calls = self.run.comm, self.replay.graph.calls
        start = self.run.start_ns
        found = comm.copy()
        for name in ("data_ready_ns", "result_used_ns"):
            found[name] = self.instants(comm["rank"], comm[name])
        issue_point = calls.get("issue_point", calls["begin_point"]).to_numpy()
        issue = pd.Series(self.time[issue_point] + start, index=calls.index)
        end = calls["end_point"].to_numpy()
        found.loc[calls.index, "issue_ns"] = issue
        complete = comm["complete_ns"].loc[calls.index]
        later = complete + self.time[end] - self.points.at[end]
        ended = pd.Series(np.maximum(later, issue), index=calls.index)
        found.loc[calls.index, "complete_ns"] = ended.where(complete >= 0, -1)
        self.set_blocked(found)
        # Moved instants are rounded.
        issue = found["issue_ns"]
        for name, bound in (("data_ready_ns", np.minimum), ("result_used_ns", np.maximum)):
            found[name] = bound(found[name], issue).where(found[name] >= 0, -1)
        return found

    def set_blocked(self, found: pd.DataFrame) -> None:
        """Set the times inside of calls that hosts make, and of their waits, in table `comm`."""
        calls = self.replay.graph.calls
        calls = calls[self.points.sort[calls["begin_point"].to_numpy()] == CALL_BEGIN]
        rows, comm = calls.index, self.run.comm.loc[calls.index, _BLOCKING]
        now, then = (self._parts_of(rows, time) for time in (self.time, self.points.at))
        in_call = (comm["call_ns"] + now["in_call"] - then["in_call"]).clip(lower=0)
        waited = now["waited"]
        # A part of the time inside of an asynchronous call may not count as blocked.
        inside = comm[["call_ns", "blocked_ns"]].min(axis=1).clip(lower=0)
        part = (inside / comm["call_ns"].where(comm["call_ns"] > 0)).fillna(1.0)
        blocked = comm["blocked_ns"] + waited - then["waited"]
        blocked += (part * (now["in_call"] - then["in_call"])).round().astype("int64")
        wait_begin = now["wait_begin"]
        # A call that is issued earlier is waited for where it was issued, or where it is used.
        is_moved = (
            calls.get("issue_point", calls["begin_point"]) != calls["begin_point"]
        ).to_numpy()
        use = calls.get("use_point", pd.Series(-1, index=rows)).to_numpy()
        arrives, used = self._at_uses(use)
        wait_begin = np.where(use >= 0, arrives, np.where(is_moved, now["begin"], wait_begin))
        waited = np.where(use >= 0, used - arrives, np.where(is_moved, now["in_call"], waited))
        is_apart = is_moved | (use >= 0)
        values = {
            "blocked_ns": np.where(is_apart, waited, blocked.clip(lower=0)),
            "call_ns": np.where(is_moved, 0, in_call),
        }
        for name, value in values.items():
            found.loc[rows, name] = np.where(comm[name] >= 0, value, comm[name])
        has_wait = (comm["wait_begin_ns"] >= 0) | is_apart
        found.loc[rows[has_wait], "wait_begin_ns"] = wait_begin[has_wait]
        found.loc[rows[has_wait], "first_wait_ns"] = waited[has_wait]
        found.loc[rows, "is_async"] = comm["is_async"] | is_apart

    def _parts_of(self, rows: pd.Index, time: np.ndarray) -> pd.DataFrame:
        """Return `begin in_call wait_begin waited` of calls, by the times of points."""
        begin, end, wait_begin, wait_end = (
            self._of_rows(sort, rows, time) for sort in (CALL_BEGIN, CALL_END, WAIT_BEGIN, WAIT_END)
        )
        return pd.DataFrame(
            {
                "begin": begin,
                "in_call": (end - begin).clip(lower=0),
                "wait_begin": wait_begin,
                "waited": (wait_end - wait_begin).clip(lower=0),
            }
        )

    def _at_uses(self, use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when hosts come to points, and when they have passed them, in Unix ns."""
        links, start = self.replay.graph.links, self.run.start_ns
        arrives = np.full(len(self.points), -1)
        on_chain = self.points.chain[links.source] == self.points.chain[links.target]
        own = on_chain & (self.points.chain[links.target] >= 0)
        arrives[links.target[own]] = self.time[links.source[own]] + links.length[own]
        known = use >= 0
        found = np.full((2, len(use)), -1)
        found[0, known] = arrives[use[known]] + start
        found[1, known] = self.time[use[known]] + start
        return found[0], found[1]


def _exposed(comm: pd.DataFrame, kernels: pd.DataFrame) -> pd.Series:
    """Return for how long the device of each call that has kernels does not compute; else 0."""
    found = pd.Series(0, index=comm.index)
    if kernels.empty:
        return found
    base = int(kernels["start_ns"].min())
    own = kernels[(kernels["category"] == COMPUTE) & (kernels["start_ns"] >= 0)]
    begin, lasts = own["start_ns"] - base, own["duration_ns"].clip(lower=0)
    busy = {
        key: Covered.by(begin[rows].to_numpy(), (begin + lasts)[rows].to_numpy())
        for key, rows in own.groupby(["rank", "device"], observed=True).groups.items()
    }
    of_calls = kernels[kernels["call_id"] >= 0]
    has_kernels = pd.MultiIndex.from_frame(comm[["rank", "id"]]).isin(
        pd.MultiIndex.from_frame(of_calls[["rank", "call_id"]])
    )
    timed = has_kernels & (comm["complete_ns"] >= comm["issue_ns"]).to_numpy()
    for key, rows in comm[timed].groupby(["rank", "device"], observed=True).groups.items():
        first = comm["issue_ns"][rows].to_numpy() - base
        last = comm["complete_ns"][rows].to_numpy() - base
        found[rows] = last - first - busy.get(key, NOTHING).within(first, last)
    return found
