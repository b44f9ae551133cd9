"""Runs in parts: analyses of runs that are larger than memory, or that many machines share.

Every analysis is stated once, as a function of tables. It is applied to one part of the run after
another, and the results are combined:

    sort              a part has                           for example
    OF_RANKS          all rows of some ranks               sums, exposed time, work of devices
    OF_COLLECTIVES    all calls of some collectives, and   arrivals, stragglers, consistency
                      both ends of some transfers

A run in memory is one part of both sorts, so its analyses take the same path. `PartedRun` reads its
parts when they are asked for. Its tables `comm`, `ops` and `kernels` as a whole are read only if an
analysis asks for them.

Rows of table `comm` have the same labels in the run and in all of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS, of_run
from commtrace.analyze.frame import Frames, first_instant_ns
from commtrace.analyze.shared_passes import Question, Tasks
from commtrace.settings import DEFAULTS, Settings

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RunPart(Frames):
    """Part of a run.

    Tables `groups` and `sources` are those of the run; a part by rank has the rows of its ranks in
    `ranks` and `steps`, another part those of all ranks.

    Attributes:
        parent: The run.
        sort: `OF_RANKS` or `OF_COLLECTIVES`.
    """

    parent: PartedRun = field(kw_only=True)
    sort: str = field(kw_only=True)

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

    def of_each_call(
        self, answer: Callable[[Frames], Any], compute: Callable[[Frames], Any], sort: str
    ) -> Any:
        """Return a row per call of this part, computed from parts of this sort."""
        return compute(self) if sort == self.sort else self.parent.stored(answer, sort, self)


class PartedRun(Frames):
    """Run that is read in parts.

    Subclasses implement `parts` and the tables of all parts, `comm`, `ops` and `kernels`.

    Args:
        run: Facts about the run, by name.
        tables: Tables `groups`, `ranks`, `steps` and `sources`.
        path: File or folder of the run.
        settings: Settings of the project in which the run is analysed.
    """

    def __init__(
        self,
        run: Mapping[str, Any],
        tables: Mapping[str, pd.DataFrame],
        path: Path | None = None,
        settings: Settings = DEFAULTS,
    ) -> None:
        # Past the frozen dataclass, whose other fields are read on demand.
        self.__dict__.update(run=run, path=path, settings=settings, **tables)

    @property
    def num_calls(self) -> int:
        """Number of recorded calls."""
        return _num_calls(self)

    @property
    def start_ns(self) -> int:  # type: ignore[override] - no lock may be held while it is computed
        """Start of the first rank, in Unix ns; 0 in a run without any event."""
        return _start_ns(self)

    def parts(self, sort: str) -> Iterator[RunPart]:
        """Yield the parts of a sort; each row of table `comm` is in one of them."""
        raise NotImplementedError

    def by_ranks(self, function: Callable[..., T], *args: Any) -> list[T]:
        """Return `function(part, *args)` of parts with all rows of some ranks each."""
        return self._tasks.ask(Question(OF_RANKS, function, args))

    def by_collectives(self, function: Callable[..., T], *args: Any) -> list[T]:
        """Return `function(part, *args)` of parts with all calls of some collectives each."""
        return self._tasks.ask(Question(OF_COLLECTIVES, function, args))

    def together(self, functions: Iterable[Callable[[], T]]) -> list[T]:
        """Return the results of functions, which share passes over the parts."""
        return self._tasks.together(functions)

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return what `compute` returns and caches; analyses that share passes wait for it."""
        return self._tasks.once(key, compute)

    @cached_property
    def _tasks(self) -> Tasks:
        return Tasks(self._answer)

    def _answer(self, sort: str, questions: Sequence[Question]) -> None:
        new = [question for question in questions if not self._is_answered(question)]
        for part in self.parts(sort) if new else ():
            for question in new:
                question.results.append(question.function(part, *question.args))
        self._small_answers.update(
            {question.key: question.results for question in new if question.has_small_results}
        )

    def _is_answered(self, question: Question) -> bool:
        results = self._small_answers.get(question.key, [])
        question.results += results
        return bool(results)

    @cached_property
    def _small_answers(self) -> dict[Any, list[Any]]:
        return {}

    def calls_at(self, rows: Any) -> pd.DataFrame:
        """Return calls by their rows in table `comm`."""
        return pd.concat(self.by_ranks(_calls_among, frozenset(rows))).loc[list(rows)]

    def of_each_call(
        self, answer: Callable[[Frames], Any], compute: Callable[[Frames], Any], sort: str
    ) -> Any:
        """Return a row per call of the run, computed in parts of this sort."""
        return self.stored(answer, sort, None)

    def stored(self, answer: Callable[[Frames], Any], sort: str, part: RunPart | None) -> Any:
        """Return the rows of a part's calls, or of all calls, of what parts of a sort answer."""
        rows = self._answers.get(answer)
        if rows is None:
            answers = [answer(each) for each in self.parts(sort)]
            rows = self._answers[answer] = pd.concat(answers).sort_index()
        return rows if part is None else rows.loc[part.comm.index]

    @cached_property
    def _answers(self) -> dict[Callable[[Frames], Any], Any]:
        return {}


@of_run
def _num_calls(run: Frames) -> int:
    return sum(run.by_ranks(_num_calls_of_part))


def _num_calls_of_part(part: Frames) -> int:
    return len(part.comm)


@of_run
def _start_ns(run: Frames) -> int:
    return min([start for start in run.by_ranks(first_instant_ns) if start >= 0], default=0)


def _calls_among(part: Frames, rows: Collection[int]) -> pd.DataFrame:
    return part.comm[part.comm.index.isin(rows)]
