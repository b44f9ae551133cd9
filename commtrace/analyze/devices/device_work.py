"""Work of each device: its kernels and copies by sort, and the idle time before each of them.

`devices` takes a run and yields the devices of each rank. A communication kernel is split at the
arrival of the last peer that its call needs (`last_arrivals`): before it the kernel waits, after it
data is transferred. Times count from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import last_arrivals
from commtrace.analyze.measures.covered import Covered
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMMUNICATION, COMPUTE, MEMCPY, MEMSET

COMPUTING, TRANSFERRING, UNSPLIT, WAITING, COPYING, OTHER = SORTS = tuple(range(6))
"""Sorts of work, those first that count where several run at once.

`UNSPLIT` is communication of unknown arrival. It may be a transfer, and counts before a wait.
`OTHER` is work of unknown category.
"""

MOST_DEVICES, MOST_STREAMS = 16, 32
"""Number of devices of a rank, and of streams of a device, those with the most kernels."""

_SORT_OF = {COMPUTE: COMPUTING, COMMUNICATION: UNSPLIT, MEMCPY: COPYING, MEMSET: COPYING}


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time of a stream or device, split by the launch of the next kernel.

    Attributes:
        before_launch: It had not been launched yet, or nothing follows.
        after_launch: It had been launched.
        unknown: The time of its launch is unknown.
    """

    before_launch: Covered
    after_launch: Covered
    unknown: Covered


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Kernels and copies of a device or a stream, in ns since the start of the run.

    Attributes:
        sort: Sort of each, from `SORTS`; the parts of a communication kernel are separate rows.
        start: Their starts.
        end: Their ends.
        launch: Times of their launches; meaningless unless `is_launch_known`.
        is_launch_known: Whether the launch is known.
        stream: Their streams; -1 if unknown.
    """

    sort: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launch: np.ndarray
    is_launch_known: np.ndarray
    stream: np.ndarray

    def __getitem__(self, rows: np.ndarray | slice) -> WorkTable:
        """Return some of the rows."""
        return WorkTable(
            self.sort[rows],
            self.start[rows],
            self.end[rows],
            self.launch[rows],
            self.is_launch_known[rows],
            self.stream[rows],
        )

    def covered(self) -> dict[int, Covered]:
        """Return the time covered by each sort that occurs."""
        return {
            sort: Covered.by(self.start[self.sort == sort], self.end[self.sort == sort])
            for sort in np.unique(self.sort).tolist()
        }

    def idle(self, first: int, last: int) -> Idle:
        """Return the idle time between two instants.

        Of kernels that begin together after idle time, the first launch counts; it is unknown
        unless all of their launches are known.
        """
        busy = Covered.by(self.start, self.end)
        place = np.searchsorted(busy.start, self.start, side="right") - 1
        begins = np.flatnonzero(self.start == busy.start[place])
        launch = np.full(len(busy.start), np.iinfo("int64").max)
        np.minimum.at(launch, place[begins], self.launch[begins])
        is_known = np.ones(len(busy.start), dtype=bool)
        np.logical_and.at(is_known, place[begins], self.is_launch_known[begins])
        begin = np.append(np.int64(first), busy.end).clip(first, last)
        end = np.append(busy.start, np.int64(last)).clip(first, last)
        # After the last kernel of a trace, nothing was launched that has not run.
        launch = np.append(launch, np.int64(last)).clip(begin, end)
        is_known = np.append(is_known, True)
        return Idle(
            Covered.by(begin[is_known], launch[is_known]),
            Covered.by(launch[is_known], end[is_known]),
            Covered.by(begin[~is_known], end[~is_known]),
        )


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device of a rank, with its work and the windows in which it is measured.

    Attributes:
        first: Start of the first window or kernel.
        last: End of the last.
        steps: Numbers of the rank's steps.
        start: Starts of the steps, and behind them of the intervals that make up the recorded time
            outside of steps.
        end: Their ends.
    """

    rank: int
    name: str
    work: WorkTable
    first: int
    last: int
    steps: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def streams(self) -> Iterator[tuple[int, WorkTable]]:
        """Yield the streams with their work, by number."""
        numbers, counts = np.unique(self.work.stream, return_counts=True)
        numbers, counts = numbers[numbers >= 0], counts[numbers >= 0]
        busiest = np.sort(numbers[np.argsort(-counts, kind="stable")[:MOST_STREAMS]])
        order = np.argsort(self.work.stream, kind="stable")
        ordered = self.work.stream[order]
        for number in busiest.tolist():
            begin, end = np.searchsorted(ordered, [number, number + 1])
            yield number, self.work[order[begin:end]]

    def measure(self, covered: Covered) -> np.ndarray:
        """Return the covered time in each step, and behind them that outside of steps."""
        lasted = covered.within(self.start, self.end)
        num_steps = len(self.steps)
        return np.append(lasted[:num_steps], lasted[num_steps:].sum())


def devices(frames: Frames) -> Iterator[MeasuredDevice]:
    """Yield the devices of each rank, by rank and name."""
    table = _work(frames)
    steps = {rank: rows for rank, rows in frames.timed_steps.groupby("rank")}
    base = frames.start_ns
    recorded = {
        rank: (start - base, end - base if end >= 0 else np.iinfo("int64").max)
        for rank, start, end in frames.ranks[["rank", "start_ns", "end_ns"]].values.tolist()
    }
    for rank, of_rank in table.groupby("rank"):
        counts = of_rank["device"].value_counts()
        of_steps = (steps[rank] if rank in steps else frames.timed_steps[:0]).sort_values("step")
        edges = recorded.get(rank, (0, np.iinfo("int64").max))
        for name in sorted(counts.index[:MOST_DEVICES]):
            rows = of_rank[of_rank["device"] == name]
            yield _device(int(str(rank)), name, rows, of_steps, edges, base)


def _device(
    rank: int,
    name: str,
    rows: pd.DataFrame,
    steps: pd.DataFrame,
    recorded: tuple[int, int],
    base: int,
) -> MeasuredDevice:
    """Return a device with its windows; its rank was recorded between two instants."""
    columns = ("sort", "start", "end", "launch", "is_launch_known", "stream")
    work = WorkTable(*(rows[column].to_numpy() for column in columns))
    # A part of a run has kernels that begin before it or end after it.
    begin = max(int(work.start.min()), recorded[0])
    finish = max(min(int(work.end.max()), recorded[1]), begin)
    start, end = ((steps[edge] - base).to_numpy() for edge in ("start_ns", "end_ns"))
    inside = Covered.by(start, end)
    outside = (
        np.append(begin, inside.end.clip(begin, finish)),
        np.append(inside.start.clip(begin, finish), finish),
    )
    is_any = outside[1] > outside[0]
    return MeasuredDevice(
        rank,
        name,
        work,
        min([begin, *inside.start[:1].tolist()]),
        max([finish, *inside.end[-1:].tolist()]),
        steps["step"].to_numpy(),
        np.append(start, outside[0][is_any]),
        np.append(end, outside[1][is_any]),
    )


def _work(frames: Frames) -> pd.DataFrame:
    """Return the kernels with known times, communication kernels split at their call's arrival."""
    kernels, base = frames.kernels, frames.start_ns
    kernels = kernels[(kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)]
    start = kernels["start_ns"] - base
    work = pd.DataFrame(
        {
            "rank": kernels["rank"],
            "device": kernels["device"].astype(object),
            "stream": kernels["stream"],
            "sort": kernels["category"].astype(object).map(_SORT_OF).fillna(OTHER).astype("int64"),
            "start": start,
            "end": start + kernels["duration_ns"],
            "launch": kernels["launch_ns"] - base,
            "is_launch_known": kernels["launch_ns"] >= 0,
        }
    )
    arrival = _arrival(frames, kernels)
    is_known = (work["sort"] == UNSPLIT) & arrival.notna()
    split = work[is_known]
    at = arrival[is_known].astype("int64").clip(lower=split["start"], upper=split["end"])
    waits = split.assign(sort=WAITING, end=at)
    transfers = split.assign(sort=TRANSFERRING, start=at)
    return pd.concat([work[~is_known], waits[waits["end"] > waits["start"]], transfers])


def _arrival(frames: Frames, kernels: pd.DataFrame) -> pd.Series:
    """Return the arrival of the last peer at each kernel's call, in ns since the start of the run.

    It is nan if it is unknown.
    """
    arrival = np.append(last_arrivals(frames)["arrival"].to_numpy("float64"), np.nan)
    return pd.Series(arrival[rows_of_calls(frames, kernels)], index=kernels.index)


def rows_of_calls(frames: Frames, kernels: pd.DataFrame) -> np.ndarray:
    """Return the row in table `comm` of each kernel's call; -1 if it has none."""
    ids = pd.MultiIndex.from_frame(frames.comm[["rank", "id"]])
    is_first = ~ids.duplicated()
    of_kernels = pd.MultiIndex.from_frame(kernels[["rank", "call_id"]])
    place = ids[is_first].get_indexer(of_kernels)
    is_known = (place >= 0) & (kernels["call_id"] >= 0).to_numpy()
    return np.where(is_known, np.append(np.flatnonzero(is_first), -1)[place], -1)
