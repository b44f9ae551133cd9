"""Calls on a device, and the time in which their device computes.

A call on a device takes its times from its kernels: it begins when the first of them starts, not
when the host issues it. It is exposed while no other kernel computes on its device. If the
trace has the device's kernels, that is exact for any part of the call:

    call                 |------------------------|
    computation      |-------|      |--|
    exposed                  |------|  |----------|
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from commtrace.analyze.measures.covered import NOTHING, Covered
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMPUTE

_BY = ["rank", "device"]


def on_device(frames: Frames) -> pd.Series:
    """Return a mask of the calls that an accelerator runs, whose times come from its kernels."""
    comm = frames.comm
    return ~comm["device"].isin(["", "cpu"]) | (comm["stream"] >= 0)


@cached_per_run
def computing(frames: Frames) -> Mapping[tuple[int, str], Covered]:
    """Return the time in which each device of a rank computes; those without kernels are missing.

    A device with kernels of another sort only, such as of communication, never computes.
    """
    kernels = frames.kernels
    kernels = kernels[(kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)]
    computes = kernels["category"] == COMPUTE
    found = {key: NOTHING for key, _ in _by_device(kernels)}
    for key, of_device in _by_device(kernels[computes]):
        start = of_device["start_ns"].to_numpy() - frames.start_ns
        found[key] = Covered.by(start, start + of_device["duration_ns"].to_numpy())
    return found


def _by_device(table: pd.DataFrame) -> Iterator[tuple[tuple[int, str], pd.DataFrame]]:
    """Yield rank and device with the rows of each."""
    groups: Any = table.groupby(_BY, observed=True)
    for (rank, device), rows in groups:
        yield (int(rank), str(device)), rows


@of_each_call
def is_exact(frames: Frames) -> pd.Series:
    """Return a mask of the calls for which the trace has the computation beside them.

    Its kernels must account for the blocked time of the call, which the importer has measured: the
    trace may lack some of them.
    """
    comm = frames.comm
    timed = on_device(frames) & (comm["issue_ns"] >= 0) & (comm["complete_ns"] >= comm["issue_ns"])
    calls = comm[timed & (comm["blocked_ns"] >= 0)]
    idle = _idle_ns(frames, calls, calls["complete_ns"] - frames.start_ns)
    return (idle == calls["blocked_ns"]).reindex(comm.index, fill_value=False)


def exposed_until(frames: Frames, instants: pd.Series) -> pd.Series:
    """Return the exposed time of calls from their begin to an instant each, in ns.

    Args:
        frames: The run.
        instants: Instants within the calls, in ns since the start of the run, by row of table
            `comm`. The rows must be in `is_exact`.
    """
    return _idle_ns(frames, frames.comm.loc[instants.index], instants)


def _idle_ns(frames: Frames, calls: pd.DataFrame, until: pd.Series) -> pd.Series:
    """Return the time in which the device does not compute; -1 if the trace lacks its kernels."""
    found = pd.Series(-1, index=calls.index, dtype="int64")
    busy_of = computing(frames)
    if not busy_of:
        return found
    begin = calls["issue_ns"] - frames.start_ns
    for key, of_device in _by_device(calls):
        rows, busy = of_device.index, busy_of.get(key)
        if busy is not None:
            first, last = begin[rows].to_numpy(), until[rows].to_numpy().astype("int64")
            found[rows] = last - first - busy.within(first, last)
    return found
