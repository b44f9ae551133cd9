"""Excerpts of a run: some of its calls in memory, with the operators and kernels beside them.

A run can be larger than memory; an excerpt of it is not. Values of each call and of the run are
taken from the run: a wait is known even if the call it was for is not in the excerpt. The parts of
`time_window` are separate runs instead.

    rows = completed(run, touching, ((0, 5_000),))      calls of 5 µs, with all members
    excerpt(run, rows, ranks=[0, 1])                    the calls of two ranks
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import end_ns
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import are_of, matches, sections
from commtrace.errors import UsageError
from commtrace.units import text_of_ranks

Stretch = tuple[int, int]
"""First instant, and the instant after the last, in ns since the start of the run."""
FOREVER: Stretch = (0, 1 << 62)
Select = Callable[..., pd.Series]
"""Takes a part with all rows of some ranks, and returns a mask of its calls."""

MOST_ROWS = 3_000_000
"""Largest number of calls, operators and kernels of a stored run that are read at once."""


@dataclass(frozen=True, eq=False)
class Excerpt(Frames):
    """Some rows of a run, with their labels in the run.

    Attributes:
        parent: The run.
    """

    parent: Frames = field(kw_only=True)

    @property
    def whole(self) -> Frames:
        """The run that its values are of."""
        return self.parent.whole

    @property
    def num_ranks(self) -> int:
        """Number of recorded ranks of the run."""
        return self.parent.num_ranks

    @property
    def start_ns(self) -> int:  # type: ignore[override] - that of the run
        """Start of the first rank of the run, in Unix ns."""
        return self.parent.start_ns

    def of_each_call(
        self, answer: Callable[[Frames], Any], compute: Callable[[Frames], Any]
    ) -> Any:
        """Return a row per call of the excerpt, as the run has it."""
        if answer not in self._rows:
            self._rows[answer] = self.parent.rows_of(answer, self)
        return self._rows[answer]

    @cached_property
    def _rows(self) -> dict[Callable[[Frames], Any], Any]:
        return {}


def excerpt(
    run: Frames,
    rows: pd.Index,
    *,
    ranks: Collection[int] | None = None,
    stretches: Sequence[Stretch] = (),
) -> Excerpt:
    """Return some calls of a run.

    Args:
        run: The run.
        rows: Their labels in table `comm`, in ascending order.
        ranks: The only ranks whose rows are taken; by default all.
        stretches: Stretches of time whose operators and kernels are taken, too.
    """
    chosen = None if ranks is None else tuple(sorted(ranks))
    parts = run.by_ranks(_rows_of_part, rows, chosen, tuple(stretches))
    comm, ops, kernels, fingerprints, syncs = map(joined, zip(*parts, strict=True))
    return Excerpt(
        run=run.run,
        path=run.path,
        settings=run.settings,
        comm=comm.sort_index(),
        ops=ops.reset_index(drop=True),
        kernels=kernels.reset_index(drop=True),
        fingerprints=fingerprints.reset_index(drop=True),
        host_events=_of_ranks(run.host_events, chosen),
        pipeline_actions=_of_ranks(run.pipeline_actions, chosen),
        later_waits=_of_ranks(run.later_waits, chosen),
        syncs=syncs.reset_index(drop=True),
        communicators=_of_ranks(run.communicators, chosen),
        removed_calls=_of_ranks(run.removed_calls, chosen),
        groups=run.groups,
        ranks=_of_ranks(run.ranks, chosen),
        steps=_of_ranks(run.steps, chosen),
        sources=run.sources,
        parent=run,
    )


def of_ranks(run: Frames, ranks: Collection[int] | None = None) -> Excerpt:
    """Return all calls, operators and kernels of some ranks, by default of all.

    Raises:
        UsageError: There are more than can be read at once of a stored run.
    """
    chosen = None if ranks is None else tuple(sorted(ranks))
    num_rows = sum(run.by_ranks(_num_rows_of_ranks, chosen))
    check_size(run, num_rows, "all calls" if ranks is None else text_of_ranks(ranks))
    return excerpt(run, selected(run, _calls_of, chosen), ranks=ranks, stretches=[FOREVER])


def _num_rows_of_ranks(part: Frames, ranks: tuple[int, ...] | None) -> int:
    tables = (part.comm, part.ops, part.kernels, part.syncs)
    if ranks is None:
        return sum(map(len, tables))
    return sum(int(table["rank"].isin(ranks).sum()) for table in tables)


def _calls_of(part: Frames, ranks: tuple[int, ...] | None) -> pd.Series:
    if ranks is None:
        return pd.Series(True, index=part.comm.index)
    return part.comm["rank"].isin(ranks)


_ROWS_OF_BATCH = 500_000
_MOST_BATCHES = 16
"""Each of them reads parts of the run anew, so that batches of a very large run are larger."""
_MATCHES_OF_BIN = 1 << 8


def of_kinds(run: Frames, *kinds: str) -> Iterator[Frames]:
    """Yield excerpts with the calls of some kinds, of all members of a collective in the same one.

    A run in memory is yielded as it is.
    """
    if not run.is_stored:
        yield run
        return
    (num,) = run.by_ranks(_num_of_kinds, kinds, fold=_sum)
    batch = np.cumsum(num) // max(_ROWS_OF_BATCH, num.sum() // _MOST_BATCHES)
    edges = np.flatnonzero(np.diff(batch, prepend=-1, append=-1))
    for first, last in pairwise((edges * _MATCHES_OF_BIN).tolist()):
        rows = selected(run, _are_between, kinds, first, last)
        if len(rows):
            yield excerpt(run, rows)


def _sum(parts: list[np.ndarray]) -> np.ndarray:
    return np.sum(parts, axis=0)


def _num_of_kinds(part: Frames, kinds: tuple[str, ...]) -> np.ndarray:
    """Return the number of calls of some kinds in each bin of matches."""
    match = matches(part)[part.comm["kind"].isin(kinds)].to_numpy()
    num_bins = sections(part).num // _MATCHES_OF_BIN + 1
    return np.bincount(match[match >= 0] // _MATCHES_OF_BIN, minlength=num_bins)


def _are_between(part: Frames, kinds: tuple[str, ...], first: int, last: int) -> pd.Series:
    return part.comm["kind"].isin(kinds) & matches(part).between(first, last - 1)


def _of_ranks(table: pd.DataFrame, ranks: tuple[int, ...] | None) -> pd.DataFrame:
    if ranks is None:
        return table
    return table[table["rank"].isin(ranks)].reset_index(drop=True)


def _rows_of_part(
    part: Frames, rows: pd.Index, ranks: tuple[int, ...] | None, stretches: tuple[Stretch, ...]
) -> tuple[pd.DataFrame, ...]:
    part = part.narrowed(ranks, rows, stretches)
    masks = (
        part.comm.index.isin(rows),
        _touch(part, part.ops["start_ns"], part.ops["duration_ns"], stretches),
        _touch(part, part.kernels["start_ns"], part.kernels["duration_ns"], stretches),
        _touch(part, part.fingerprints["at_ns"], 0 * part.fingerprints["at_ns"], stretches),
        _touch(part, part.syncs["at_ns"], part.syncs["duration_ns"], stretches),
    )
    tables = (part.comm, part.ops, part.kernels, part.fingerprints, part.syncs)
    of_ranks = [
        mask & (True if ranks is None else table["rank"].isin(ranks).to_numpy())
        for table, mask in zip(tables, masks, strict=True)
    ]
    return tuple([chosen(*each) for each in zip(tables, of_ranks, strict=True)])


def _touch(
    part: Frames, start_ns: pd.Series, duration_ns: pd.Series, stretches: tuple[Stretch, ...]
) -> np.ndarray:
    """Return a mask of the spans that touch a stretch; spans of unknown time touch `FOREVER`."""
    if FOREVER in stretches:
        return np.ones(len(start_ns), dtype=bool)
    found = np.zeros(len(start_ns), dtype=bool)
    if not len(start_ns):
        return found
    begin = (start_ns - part.start_ns).to_numpy()
    end = begin + duration_ns.clip(lower=0).to_numpy()
    for first, last in stretches:
        found |= (begin < last) & (end >= first)
    return found & (start_ns >= 0).to_numpy()


def chosen(table: pd.DataFrame, mask: Any) -> pd.DataFrame:
    """Return rows of a table, without the categories that none of them has."""
    rows = table[np.asarray(mask)].copy()
    for name in rows.columns[rows.dtypes == "category"]:
        rows[name] = rows[name].cat.remove_unused_categories()
    return rows


def touching(part: Frames, stretches: tuple[Stretch, ...]) -> pd.Series:
    """Return a mask of the calls of known issue that touch any of the stretches of time."""
    comm, start = part.comm, part.start_ns
    end = end_ns(comm)
    found = pd.Series(False, index=comm.index)
    for first, last in stretches:
        found |= (comm["issue_ns"] < last + start) & (end > first + start)
    return found & (comm["issue_ns"] >= 0)


def selected(run: Frames, select: Select, *args: Any) -> pd.Index:
    """Return the labels of the calls for which `select(part, *args)` holds, in ascending order."""
    return _sorted(run.by_ranks(_labels, select, args))


def completed(
    run: Frames, select: Select, *args: Any, stretches: Sequence[Stretch] | None = None
) -> pd.Index:
    """Return the same calls, all members of their collectives, and both ends of their transfers.

    Args:
        run: The run.
        select: Selects calls of a part.
        args: Its further arguments.
        stretches: The only stretches of time in which there are such calls, if that is known.
    """
    within = None if stretches is None else tuple(stretches)
    rows, met = zip(*run.by_ranks(_met, select, args, within), strict=True)
    members = run.by_ranks(_members, np.unique(np.concatenate(met)))
    return _sorted([*rows, *members])


def _sorted(labels: Sequence[np.ndarray]) -> pd.Index:
    return pd.Index(np.unique(np.concatenate([*labels, np.empty(0, dtype="int64")])))


def _labels(part: Frames, select: Select, args: tuple[Any, ...]) -> np.ndarray:
    return part.comm.index.to_numpy("int64")[select(part, *args).to_numpy()]


def _met(
    part: Frames,
    select: Select,
    args: tuple[Any, ...],
    stretches: tuple[Stretch, ...] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the selected calls, and their matches."""
    if stretches is not None:
        part = part.narrowed(stretches=stretches)
    mask = select(part, *args).to_numpy()
    match = matches(part).to_numpy()[mask]
    return part.comm.index.to_numpy("int64")[mask], np.unique(match[match >= 0])


def _members(part: Frames, chosen: np.ndarray) -> np.ndarray:
    """Return the calls of some matches."""
    return part.comm.index.to_numpy("int64")[are_of(part, chosen)]


def check_size(run: Frames, num_rows: int, what: str) -> None:
    """Refuse to read more of a stored run at once than `MOST_ROWS`.

    Args:
        run: The run; a run in memory can have any size.
        num_rows: Number of calls, operators and kernels.
        what: Names the data asked for, as the object of `read`.

    Raises:
        UsageError: They are too many.
    """
    if num_rows > MOST_ROWS and run.is_stored:
        raise UsageError(
            f"cannot read {what} at once",
            found=f"{num_rows:,} calls, operators and kernels",
            why=f"single calls of up to {MOST_ROWS:,} rows are shown; tables have no limit",
            attempt="a shorter stretch: --steps FIRST:LAST, --window FROM:TO, or fewer --ranks",
        )
