"""Time of each member before it arrives at a collective, by use.

It begins with the last collective of the group that needs every rank and that all members have
completed; if there is none, with the end of the rank's preceding calls; and if a member has none,
with the start of the rank's recording, but not before a step that was recorded after others that
were not. Until the arrival, each nanosecond has a single use, the first of its list that holds.

On a device whose kernels are in the trace:

    compute          a kernel computes
    copies           a copy or a memset runs
    communication    the kernel of another call runs
    idle_before      nothing runs, and the call's kernel has not been launched
    idle_after       nothing runs, although it has
    idle             nothing runs, and the launch is unknown

On the host:

    no_core          the thread of the next call is ready to run but has no core
    blocked          another call blocks the rank
    maybe_blocked    another call of unknown blocked time is in flight
    work             none of these
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE, end_ns
from commtrace.analyze.measures.covered_time import CoveredTime
from commtrace.analyze.measures.intervals import blocked_intervals, without_core
from commtrace.analyze.measures.unrecorded import resumed
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_call
from commtrace.analyze.run.frame import Frames, in_order
from commtrace.analyze.run.matching import (
    Arrays,
    across_ranks,
    group_numbers,
    matches,
    numbers,
    of_match,
)
from commtrace.analyze.waits.collectives import is_member
from commtrace.schema import COMMUNICATION, MEMCPY, MEMSET

DEVICE_USES = ("compute", "copies", "communication", "idle_before", "idle_after", "idle")
HOST_USES = ("no_core", "blocked", "maybe_blocked", "work")
PARTS = {
    "stream_compute": "compute",
    "stream_communication": "communication",
    "group_blocked": "blocked",
}
"""Parts of uses: kernels on the stream of the call's kernel, and calls of the call's group."""

DEVICE, HOST, LONE = "device", "host", "lone kernels"
"""Clock that measures the time; `LONE` if no other kernel of the device is in the trace."""


@of_each_call
def previous_end(frames: Frames) -> pd.Series:
    """Return the end of the rank's preceding calls, in ns since the start; nan for the first."""
    comm = frames.comm
    times = pd.DataFrame(
        {
            "rank": comm["rank"],
            "id": comm["id"],
            # Relative to the start: `shift` makes floats, in which Unix times are not exact.
            "end": end_ns(comm) - frames.start_ns,
        }
    )
    times = in_order(times[comm["issue_ns"] >= 0], ["rank", "id"])
    # Calls overlap, so the preceding call is not always the last to have ended.
    before = times.groupby("rank")["end"].cummax().groupby(times["rank"]).shift(1)
    known = [before.reindex(comm.index).astype("float64"), resumed(frames)]
    return pd.concat(known, axis="columns").max(axis="columns")


@across_ranks(has_failed=(False, "bool"))
def _failures(part: Frames, into: Arrays) -> None:
    """Collectives that do not need every rank, or that a member has not completed."""
    comm = part.comm
    joins = (comm["complete_ns"] >= comm["issue_ns"]) & comm["kind"].isin(NEEDS_EVERYONE)
    into["has_failed"][matches(part)[is_member(part) & ~joins]] = True


@cached_per_run
def _joins_all(frames: Frames) -> np.ndarray:
    """Return a mask of the calls that need every rank and that all members have completed."""
    has_failed = of_match(frames, _failures(frames)["has_failed"], unknown=True)
    return is_member(frames).to_numpy() & ~has_failed


@cached_per_run
def _joining_calls(frames: Frames) -> pd.DataFrame:
    """Return `key`, `number`, `issue` and `end` of these calls of a part; `key` as of `_of_groups`.

    Times count from the start of the run.
    """
    comm = frames.comm[_joins_all(frames)]
    return pd.DataFrame(
        {
            "key": _of_groups(frames, comm["rank"], group_numbers(frames)[comm.index]),
            "number": numbers(frames)[comm.index],
            "issue": comm["issue_ns"] - frames.start_ns,
            "end": comm["complete_ns"] - frames.start_ns,
        }
    )


def preceding(part: Frames, calls: pd.DataFrame) -> pd.DataFrame:
    """Return times before some `member_calls` of a part, and the number of a collective there.

    `joined` is the number of the last collective that the rank has completed before the call, of
    the call's group, that joins all members; nan if there is none. `end` and `resumed` are as of
    `previous_end` and `resumed`.
    """
    known = _joining_calls(part)
    # A call does not precede itself, even if it takes no time.
    ended = known.assign(end=np.maximum(known["end"], known["issue"] + 1))
    key = _of_groups(part, calls["rank"], calls["group"])
    found = pd.merge_asof(
        calls[["issue"]].assign(key=key, row=calls.index).sort_values("issue"),
        ended[["key", "end", "number"]].sort_values("end"),
        left_on="issue",
        right_on="end",
        by="key",
    )
    return pd.DataFrame(
        {
            "joined": found.set_index("row")["number"].reindex(calls.index),
            "end": previous_end(part).reindex(calls.index),
            "resumed": resumed(part).reindex(calls.index),
        }
    )


def _end_in_common(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return the end of the rank's call of collective `in_common` of each call's group."""
    known = _joining_calls(frames)
    ends = known.drop_duplicates(["key", "number"]).set_index(["key", "number"])["end"]
    key = _of_groups(frames, calls["rank"], calls["group"])
    wanted = pd.MultiIndex.from_arrays([key, calls["in_common"]])
    return pd.Series(ends.reindex(wanted).to_numpy("float64"), index=calls.index)


def _of_groups(frames: Frames, rank: pd.Series, group: pd.Series) -> pd.Series:
    """Return a key for each pair of rank and group, which is its row in table `groups`."""
    return rank.astype("int64") * (len(frames.groups) + 1) + group


def uses_before(frames: Frames, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the time before some `member_calls` by use and part, in ns, with `clock` and `begin`.

    The time begins at `begin`, in ns since the start of the run. It is known for all members of a
    collective or for none, whose calls are left out.

    Args:
        frames: The run.
        calls: The calls, with the columns of `preceding`.
    """
    collective = calls["collective"]
    joined = calls["joined"].groupby(collective).transform("min")
    is_by_all = calls["joined"].notna().groupby(collective).transform("all")
    windows = calls[["rank", "group", "issue", "resumed"]].assign(
        in_common=joined.where(is_by_all & (joined < calls["number"]), -1).astype("int64"),
        otherwise=_begin_of_recording(frames, calls),
    )
    found = pd.concat(frames.by_ranks(_of_own, windows))
    found = found.reindex(calls.index[calls.index.isin(found.index)])
    return found.astype(dict.fromkeys(found.columns.drop("clock"), "int64"))


def _begin_of_recording(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return the begin of the time before calls without a collective in common; nan if unknown."""
    start = frames.ranks.drop_duplicates("rank").set_index("rank")["start_ns"]
    recorded = calls["rank"].map(start[start >= 0]) - frames.start_ns
    begin = pd.Series(np.nan, calls.index)
    for known in (calls["end"], recorded.astype("float64")):
        is_known = known.notna().groupby(calls["collective"]).transform("all")
        begin = begin.fillna(known.where(is_known))
    return begin


def _of_own(part: Frames, windows: pd.DataFrame) -> pd.DataFrame:
    """Return the uses of time before the calls that a part has."""
    own = windows[windows.index.isin(part.comm.index)]
    begin = _end_in_common(part, own).clip(lower=own["resumed"].fillna(-np.inf))
    begin = begin.fillna(own["otherwise"]).clip(upper=own["issue"].astype("float64"))
    begin = begin[begin.notna()].astype("int64")
    return _uses(part, own.loc[begin.index].assign(begin=begin)).assign(begin=begin)


def _uses(frames: Frames, calls: pd.DataFrame) -> pd.DataFrame:
    before = calls[["rank", "group", "begin"]].assign(end=calls["issue"])
    launched = launched_calls(frames).reindex(calls.index)
    is_on_device = launched["device"].notna()
    both = [
        _on_device(frames, before[is_on_device], launched[is_on_device]),
        _on_host(frames, before[~is_on_device]),
    ]
    uses = [*DEVICE_USES, *HOST_USES, *PARTS]
    table = pd.concat([each for each in both if len(each)] or both[:1])
    return table.reindex(index=calls.index, columns=["clock", *uses]).fillna(dict.fromkeys(uses, 0))


@cached_per_run
def _kernels(frames: Frames) -> pd.DataFrame:
    """Return the kernels with known times, with keys of their devices and streams."""
    kernels, base = frames.kernels, frames.start_ns
    known = kernels[(kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)]
    device = known.groupby(["rank", "device"], observed=True, sort=False).ngroup()
    launch = (known["launch_ns"] - base).astype("float64")
    return pd.DataFrame(
        {
            "rank": known["rank"],
            "call_id": known["call_id"],
            "is_communication": known["category"] == COMMUNICATION,
            "is_copy": known["category"].isin([MEMCPY, MEMSET]),
            "device": device,
            "stream": known.groupby([device, known["stream"]], sort=False).ngroup(),
            "start": known["start_ns"] - base,
            "end": known["start_ns"] - base + known["duration_ns"],
            "launch": launch.where(known["launch_ns"] >= 0),
        }
    )


@cached_per_run
def launched_calls(frames: Frames) -> pd.DataFrame:
    """Return `device`, `stream` and `launch` of the first kernel of each call with kernels.

    The index is the call's row in table `comm`; the launch is in ns since the start of the run.
    """
    kernels, calls = _kernels(frames), frames.comm[["rank", "id"]]
    own = kernels[(kernels["call_id"] >= 0) & kernels["is_communication"]]
    first = own.sort_values("start", kind="stable").drop_duplicates(["rank", "call_id"])
    calls = calls.assign(row=calls.index)[calls["id"] >= 0]
    joined = first.merge(calls, left_on=["rank", "call_id"], right_on=["rank", "id"])
    return joined.drop_duplicates("row").set_index("row")[["device", "stream", "launch"]]


@cached_per_run
def _covered_by_kernels(frames: Frames) -> dict[str, CoveredTime]:
    """Return the time that kernels of some sorts cover, of each device or stream."""
    kernels = _kernels(frames)
    moves = kernels["is_communication"] | kernels["is_copy"]
    parts = {
        "compute": ("device", kernels[~moves]),
        "compute or copies": ("device", kernels[~kernels["is_communication"]]),
        "any": ("device", kernels),
        "stream_compute": ("stream", kernels[~moves]),
        "stream_communication": ("stream", kernels[kernels["is_communication"]]),
    }
    return {
        name: CoveredTime(part[key], part["start"], part["end"])
        for name, (key, part) in parts.items()
    }


def _on_device(frames: Frames, before: pd.DataFrame, launched: pd.DataFrame) -> pd.DataFrame:
    """Return the uses of time on the device, of calls that have a kernel."""
    covered, kernels = _covered_by_kernels(frames), _kernels(frames)
    begin, end = before["begin"], before["end"]
    device, stream = (launched[name].astype("int64") for name in ("device", "stream"))
    compute = covered["compute"].within(device, begin, end)
    moving = covered["compute or copies"].within(device, begin, end)
    busy = covered["any"].within(device, begin, end)
    is_known = launched["launch"].notna()
    launch = launched["launch"].fillna(0).astype("int64").clip(begin, end)
    idle_before = launch - begin - covered["any"].within(device, begin, launch)
    idle = end - begin - busy
    others = kernels.loc[~kernels["is_communication"], "device"].unique()
    return pd.DataFrame(
        {
            "clock": np.where(device.isin(others), DEVICE, LONE),
            "compute": compute,
            "copies": moving - compute,
            "communication": busy - moving,
            "idle_before": idle_before.where(is_known, 0),
            "idle_after": (idle - idle_before).where(is_known, 0),
            "idle": idle.mask(is_known, 0),
            **{
                part: covered[part].within(stream, begin, end)
                for part in ("stream_compute", "stream_communication")
            },
        },
        index=before.index,
    )


@cached_per_run
def _covered_by_calls(frames: Frames) -> tuple[dict[str, CoveredTime], CoveredTime]:
    """Return the time that the first of the host's uses cover, the first two, and so on; and the
    time in which calls block each rank in each group.
    """
    comm, blocked = frames.comm, blocked_intervals(frames)
    issued = comm[comm["issue_ns"] >= 0]
    maybe = issued[issued["blocked_ns"] < 0]
    of_uses = {
        "no_core": without_core(frames)[["rank", "start", "end"]],
        "blocked": blocked[["rank", "start", "end"]],
        "maybe_blocked": _intervals(frames, maybe, end_ns(maybe)),
    }
    covered: dict[str, CoveredTime] = {}
    every: list[pd.DataFrame] = []
    for use, intervals in of_uses.items():
        if len(intervals) or not covered:
            every.append(intervals)
            rows = pd.concat(every, ignore_index=True)
            latest = CoveredTime(rows["rank"], rows["start"], rows["end"])
        covered[use] = latest
    group = group_numbers(frames).loc[blocked["row"]].set_axis(blocked.index)
    of_group = _of_groups(frames, blocked["rank"], group)
    return covered, CoveredTime(of_group, blocked["start"], blocked["end"])


def _intervals(frames: Frames, calls: pd.DataFrame, other_ns: pd.Series) -> pd.DataFrame:
    """Return the intervals between some calls' issue and another time, since the run's start."""
    both = pd.concat([calls["issue_ns"], other_ns], axis="columns") - frames.start_ns
    return pd.DataFrame({"rank": calls["rank"], "start": both.min(axis=1), "end": both.max(axis=1)})


def _on_host(frames: Frames, before: pd.DataFrame) -> pd.DataFrame:
    """Return the uses of time on the host."""
    covered, of_groups = _covered_by_calls(frames)
    rank, begin, end = before["rank"], before["begin"], before["end"]
    table = pd.DataFrame({"clock": HOST}, index=before.index)
    earlier: Any = 0
    for use, time in covered.items():
        until = time.within(rank, begin, end)
        table[use] = until - earlier
        earlier = until
    of_group = _of_groups(frames, rank, before["group"])
    return table.assign(
        work=end - begin - earlier, group_blocked=of_groups.within(of_group, begin, end)
    )
