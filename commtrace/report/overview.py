"""Shares of time for which calls block each rank, in columns of time over the run.

A page that has not all calls draws its timeline from them, where it has no single calls. They are
the shares that its script computes from calls, by the same definition: a call blocks its rank from
its issue on for as long as it takes itself, and for the rest of its blocked time until its end; a
call of unknown blocked time, for as long as it is in flight. Before the last peer it needs has
arrived, it waits; then it transfers.

Each share is a 16-bit number, in units of 1/4096 of a column, rounded up, so that no share is
shown as zero. Columns are computed part by part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commtrace.analyze.excerpts.excerpt import Stretch
from commtrace.analyze.measures.arrivals import arrivals, end_ns
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames

MOST_CELLS = 1_500_000
MOST_COLUMNS, LEAST_COLUMNS = 2000, 16
UNIT = 4096
"""Parts of a column's time in which shares are counted."""
_MOST = np.iinfo("uint16").max


@dataclass(frozen=True, slots=True)
class Overview:
    """Shares of time over the run.

    Attributes:
        first_ns: Start of the first column, in ns since the start of the run.
        column_ns: Width of a column.
        ranks: The ranks.
        kinds: Kinds of calls, in order of their names.
        shares: Shares by rank, column, and part: the transfer, then the wait, of each kind.
        num_begun: Number of calls that begin, by column and kind.
    """

    first_ns: int
    column_ns: int
    ranks: tuple[int, ...]
    kinds: tuple[str, ...]
    shares: np.ndarray
    num_begun: np.ndarray

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.num_begun)

    def num_calls(self, stretch: Stretch) -> float:
        """Return about how many calls begin in a stretch of time."""
        begun = np.append(0, np.cumsum(self.num_begun.sum(axis=1)))
        edges = self.first_ns + self.column_ns * np.arange(len(begun))
        first, last = np.interp(stretch, edges, begun)
        return float(last - first)

    def head(self) -> dict[str, Any]:
        """Return the description of `body` for the page's script."""
        return {
            "first_ns": self.first_ns,
            "column_ns": self.column_ns,
            "num_columns": self.num_columns,
            "kinds": list(self.kinds),
            "unit": UNIT,
            "num_begun": self.num_begun.tolist(),
        }

    def body(self) -> bytes:
        """Return the shares as bytes: the low bytes of all numbers, then the high bytes."""
        planes = self.shares.astype("<u2").view("u1").reshape(-1, 2).T
        return np.ascontiguousarray(planes).tobytes()


@of_run
def edges_ns(frames: Frames) -> Stretch:
    """Return the start of the first call, step or kernel, and the end of the last."""
    edges = [each for part in frames.by_ranks(_edges_of_part) for each in part]
    start = frames.start_ns
    first = min((begin for begin, _ in edges), default=start)
    last = max((end for _, end in edges), default=first)
    return first - start, max(last, first + 1) - start


def _edges_of_part(part: Frames) -> list[tuple[int, int]]:
    """Return the first and last instants of the tables that have any."""
    comm, kernels, steps = part.comm, part.kernels, part.timed_steps
    is_run = (kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)
    of_kernels = kernels["start_ns"][is_run]
    is_issued = comm["issue_ns"] >= 0
    spans = (
        (comm["issue_ns"][is_issued], end_ns(comm)[is_issued]),
        (of_kernels, of_kernels + kernels["duration_ns"][is_run]),
        (steps["start_ns"], steps["end_ns"]),
    )
    return [(int(begin.min()), int(end.max())) for begin, end in spans if len(begin)]


def overview(frames: Frames, ranks: list[int], edges: Stretch) -> Overview:
    """Return the shares of some ranks between two instants."""
    kinds = tuple(sorted(census(frames).kinds))
    num_parts = 2 * max(len(kinds), 1)
    most = MOST_CELLS // (max(len(ranks), 1) * num_parts)
    num_columns = min(max(most, LEAST_COLUMNS), MOST_COLUMNS)
    column_ns = max(-(-(edges[1] - edges[0]) // num_columns), 1)
    chosen = tuple(ranks)
    parts = frames.by_ranks(_shares_of_part, chosen, kinds, edges[0], column_ns, num_columns)
    place = {rank: number for number, rank in enumerate(chosen)}
    shares = np.zeros((len(chosen), num_columns, num_parts), dtype="uint16")
    num_begun = np.zeros((num_columns, num_parts // 2), dtype="int64")
    for of_part, own, begun in parts:
        shares[[place[rank] for rank in of_part]] = own
        num_begun += begun
    return Overview(edges[0], column_ns, chosen, kinds, shares, num_begun)


def _shares_of_part(
    part: Frames,
    ranks: tuple[int, ...],
    kinds: tuple[str, ...],
    first: int,
    column_ns: int,
    num_columns: int,
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return ranks of the part, their shares, and the numbers of calls that begin."""
    comm = part.comm
    is_drawn = ((comm["issue_ns"] >= 0) & comm["rank"].isin(ranks)).to_numpy()
    rank = comm["rank"].to_numpy()[is_drawn]
    own, place = np.unique(rank, return_inverse=True)
    number = np.array([kinds.index(str(name)) for name in comm["kind"].cat.categories], "int64")
    kind = np.append(number, -1)[comm["kind"].cat.codes.to_numpy()[is_drawn]]
    issue, end, call, blocked, ready = (
        values.to_numpy()[is_drawn]
        for values in (
            comm["issue_ns"],
            end_ns(comm),
            comm["call_ns"],
            comm["blocked_ns"],
            arrivals(part)["arrival_ns"],
        )
    )
    origin = part.start_ns + first
    ready = np.where(ready >= 0, ready, issue).clip(issue, np.maximum(end, issue)) - origin
    issue, end = issue - origin, end - origin
    held = np.where(blocked < 0, end - issue, blocked)
    in_call = np.where(call < 0, held, np.minimum(call, held))
    sums = np.zeros((len(own) * 2 * len(kinds), num_columns))
    key = place * 2 * len(kinds) + 2 * kind
    for begin, finish in ((issue, issue + in_call), (end - (held - in_call), end)):
        _add(sums, key + 1, begin, np.minimum(finish, ready), column_ns)
        _add(sums, key, np.maximum(begin, ready), finish, column_ns)
    shares = np.ceil(sums * (UNIT / column_ns)).clip(0, _MOST).astype("uint16")
    shares = shares.reshape(len(own), 2 * len(kinds), num_columns).transpose(0, 2, 1)
    column = (issue // column_ns).clip(0, num_columns - 1)
    begun = np.bincount(column * len(kinds) + kind, minlength=num_columns * len(kinds))
    return own.tolist(), shares, begun.reshape(num_columns, len(kinds))


def _add(
    sums: np.ndarray, key: np.ndarray, begin: np.ndarray, end: np.ndarray, column_ns: int
) -> None:
    """Add the time from `begin` to `end` of intervals to the columns of the rows in `key`."""
    num_columns = sums.shape[1]
    begin, end = begin.clip(min=0), end.clip(max=num_columns * column_ns)
    is_any = end > begin
    key, begin, end = key[is_any], begin[is_any], end[is_any]
    from_column, to_column = begin // column_ns, (end - 1) // column_ns
    at_begin = key * num_columns + from_column
    at_end = key * num_columns + to_column

    def total(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.bincount(places, weights, minlength=sums.size).reshape(sums.shape)

    # Whole columns from the first one on, up to the last one: less what is before and behind.
    sums += total(at_begin, from_column * column_ns - begin)
    sums += total(at_end, end - to_column * column_ns)
    is_several = to_column > from_column
    if is_several.any():
        ones = np.ones(int(is_several.sum()))
        changes = total(at_begin[is_several], ones) - total(at_end[is_several], ones)
        sums += column_ns * np.cumsum(changes, axis=1)
