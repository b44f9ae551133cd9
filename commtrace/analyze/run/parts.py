"""Runs in parts: analyses of runs that are larger than memory, or that many machines share.

An analysis is a function of tables. It is applied to each part of the run, which has all rows of
some ranks, and the results are combined; what calls of several ranks determine is computed once,
as arrays (`matching.across_ranks`). A run in memory is a single part, so its analyses take the same
path. `PartedRun` reads its parts when they are asked for.

Rows of table `comm` have the same labels in the run and in all of its parts.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar

import pandas as pd

from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames, first_instant_ns, joined
from commtrace.settings import DEFAULTS, Settings

T = TypeVar("T")
Answer = Callable[[Frames], Any]
"""Function that is decorated by `of_run`, `of_each_call` or `of_each_part`."""

_MOST_BYTES = 4 << 20
"""Size of results, pickled, up to which they are kept for equal questions."""


@dataclass(frozen=True, eq=False)
class RunPart(Frames):
    """All rows of some ranks of a run; tables `groups` and `sources` are those of the run.

    Attributes:
        parent: The run.
        number: Number of the part.
    """

    parent: PartedRun = field(kw_only=True)
    number: int = field(kw_only=True)

    @property
    def whole(self) -> PartedRun:
        """The run."""
        return self.parent

    @property
    def num_ranks(self) -> int:
        """Number of recorded ranks of the run."""
        return self.parent.num_ranks

    @property
    def start_ns(self) -> int:  # type: ignore[override] - cached by the run
        """Start of the first rank of the run, in Unix ns."""
        return self.parent.start_ns


class PartedRun(Frames, ABC):
    """Run that is read in parts.

    Subclasses implement its parts, and the tables of events of all parts.

    Args:
        run: Facts about the run, by name.
        tables: Tables `groups`, `ranks`, `steps` and `sources`.
        path: File or folder of the run.
        settings: Settings of the project in which the run is analysed.
    """

    _lock: AbstractContextManager[Any]
    _used: list[set[Answer]]
    values: dict[Answer, Any]
    _small_results: dict[Any, list[bytes]]

    def __init__(
        self,
        run: Mapping[str, Any],
        tables: Mapping[str, pd.DataFrame],
        path: Path | None = None,
        settings: Settings = DEFAULTS,
    ) -> None:
        # Past the frozen dataclass, whose other fields are read on demand.
        vars(self).update(run=run, path=path, settings=settings, **tables)
        vars(self).update(_lock=RLock(), _used=[], values={}, _small_results={})

    @property
    def num_calls(self) -> int:
        """Number of recorded calls."""
        return _num_calls(self)

    @property
    def is_stored(self) -> bool:
        """True: its tables `comm`, `ops` and `kernels` are read in parts."""
        return True

    @property
    def start_ns(self) -> int:  # type: ignore[override] - no lock may be held while it is computed
        """Start of the first rank, in Unix ns; 0 in a run without any event."""
        return _start_ns(self)

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """Number of parts, at least 1."""

    @abstractmethod
    def part(self, number: int) -> RunPart:
        """Return a part; each row of table `comm` is in one of them."""

    def parts_by_ranks(self) -> Iterator[Frames]:
        """Yield parts with all rows of some ranks each."""
        return map(self.part, range(self.num_parts))

    def in_turn(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, while no other thread computes anything of this run."""
        with self._lock:
            return compute()

    def by_ranks(
        self,
        function: Callable[..., T],
        *args: Any,
        fold: Callable[[list[T]], T] | None = None,
    ) -> list[T]:
        """Return `function(part, *args)` of parts with all rows of some ranks each."""
        return self.in_turn(partial(self._by_ranks, function, args, fold))

    def _by_ranks(
        self, function: Callable[..., T], args: tuple[Any, ...], fold: Callable[[list[T]], T] | None
    ) -> list[T]:
        # Tables have no hash, and may be large; a partial function is another one each time.
        is_by_value = all(isinstance(each, (str, tuple)) for each in args)
        is_plain = isinstance(function, FunctionType)
        key = (function, fold, *args) if is_by_value and is_plain else None
        if key in self._small_results:
            return list(map(pickle.loads, self._small_results[key]))
        self._used.append(set())
        try:
            first = function(self.part(0), *args)
        finally:
            # Values of the run that the first part uses are known then, and given to others.
            used = self._used.pop()
        # Pickled, since a small table takes much more memory as objects.
        results = [pickle.dumps(first, protocol=5)]
        for result in self.other_results(function, args, used):
            if fold is None:
                results.append(result)
            else:
                first = fold([first, pickle.loads(result)])
        if fold is not None:
            results = [pickle.dumps(first, protocol=5)]
        if key is not None and sum(map(len, results)) <= _MOST_BYTES:
            self._small_results[key] = results
        return list(map(pickle.loads, results))

    def other_results(
        self, function: Callable[..., Any], args: tuple[Any, ...], used: Set[Answer]
    ) -> Iterator[bytes]:
        """Yield the pickled results of a function for each part but the first, in order.

        Args:
            function: Takes a part and `args`.
            args: Its further arguments.
            used: Values of the run that it has used for the first part.
        """
        for number in range(1, self.num_parts):
            yield pickle.dumps(function(self.part(number), *args), protocol=5)

    # Values of the whole run.

    def value_of(self, answer: Callable[[Frames], T], compute: Callable[[Frames], T]) -> T:
        """Return what `compute` returns for the run, computed once."""
        return self.in_turn(partial(self._value_of, answer, compute))

    def _value_of(self, answer: Answer, compute: Answer) -> Any:
        for used in self._used:
            used.add(answer)
        if answer not in self.values:
            # A part that uses the value does not use those from which it is computed.
            used = vars(self).pop("_used")
            vars(self)["_used"] = []
            try:
                self.values[answer] = compute(self)
            finally:
                vars(self)["_used"] = used
        return self.values[answer]

    # A row per call.

    def of_each_call(self, answer: Answer, compute: Answer) -> Any:
        """Return a row per call of the run, computed in parts."""
        return _stacked(self.by_ranks(answer)).sort_index()

    def rows_of(self, answer: Answer, part: Frames) -> Any:
        """Return the rows of some calls, computed by the parts that have them."""
        rows = part.comm.index
        found = [each for each in self.by_ranks(_rows_among, answer, rows) if each is not None]
        return _stacked(found).loc[rows] if found else answer(self.part(0)).iloc[:0]

    def calls_at(self, rows: Any) -> pd.DataFrame:
        """Return calls by their rows in table `comm`."""
        chosen = pd.Index(rows)
        return joined(self.by_ranks(_calls_among, chosen.sort_values())).loc[chosen]


def _stacked(parts: list[Any]) -> Any:
    found = [each for each in parts if len(each)] or parts[:1]
    return pd.concat(found) if len(found) > 1 else found[0]


def _rows_among(part: Frames, answer: Answer, rows: pd.Index) -> Any:
    own = rows[rows.isin(part.comm.index)]
    return answer(part).loc[own] if len(own) else None


@of_run
def _num_calls(run: Frames) -> int:
    return sum(run.by_ranks(_num_calls_of_part))


def _num_calls_of_part(part: Frames) -> int:
    return len(part.comm)


@of_run
def _start_ns(run: Frames) -> int:
    starts = _starts(run)["start_ns"]
    return int(starts[starts >= 0].min()) if (starts >= 0).any() else 0


@of_each_part
def _starts(run: Frames) -> pd.DataFrame:
    """Return the first instant of each part, -1 if it has none."""
    return pd.DataFrame({"start_ns": run.by_ranks(first_instant_ns)})


def _calls_among(part: Frames, rows: pd.Index) -> pd.DataFrame:
    own = rows[rows.isin(part.comm.index)]
    calls = part.narrowed(rows=own).comm
    return calls[calls.index.isin(own)].copy()
