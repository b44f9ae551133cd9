"""Runs in parts: analyses of runs that are larger than memory, or that many machines share.

Every analysis is stated once, as a function of tables. It is applied to each part of the run in
turn, and the results are combined:

    sort              a part has                           for example
    OF_RANKS          all rows of some ranks               sums, exposed time, work of devices
    OF_COLLECTIVES    all calls of some collectives, and   arrivals, stragglers, consistency
                      both ends of some transfers

A run in memory is a single part of both sorts, so its analyses take the same path. `PartedRun`
reads its parts when they are asked for. Its tables of events as a whole are read only if an
analysis asks for them.

Rows of table `comm` have the same labels in the run and in all of its parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import pandas as pd

from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS, of_run, sort_of
from commtrace.analyze.frame import Frames, first_instant_ns, joined
from commtrace.analyze.shared_passes import Needed, Packed, Question, Tasks
from commtrace.settings import DEFAULTS, Settings

T = TypeVar("T")
Answer = Callable[[Frames], Any]
"""Function that is decorated by `of_run` or `of_each_call`."""


@dataclass(frozen=True, eq=False)
class RunPart(Frames):
    """Part of a run.

    It shares tables `groups` and `sources` with the run. In `ranks` and `steps`, a part by rank has
    the rows of its ranks, any other part the rows of all ranks.

    Attributes:
        parent: The run.
        sort: `OF_RANKS` or `OF_COLLECTIVES`.
        number: Number of the part within its sort.
    """

    parent: PartedRun = field(kw_only=True)
    sort: str = field(kw_only=True)
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

    def of_each_call(self, answer: Answer, compute: Answer) -> Any:
        """Return a row per call of this part, computed from parts of its sort."""
        return compute(self) if sort_of(answer) == self.sort else self.parent.rows_of(answer, self)


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

    def __init__(
        self,
        run: Mapping[str, Any],
        tables: Mapping[str, pd.DataFrame],
        path: Path | None = None,
        settings: Settings = DEFAULTS,
    ) -> None:
        # Past the frozen dataclass, whose other fields are read on demand.
        vars(self).update(run=run, path=path, settings=settings, _lock=RLock(), **tables)

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

    @abstractmethod
    def num_parts(self, sort: str) -> int:
        """Return the number of parts of a sort, at least 1."""

    @abstractmethod
    def part(self, sort: str, number: int) -> RunPart:
        """Return a part; each row of table `comm` is in one of them."""

    def parts(self, sort: str) -> Iterator[RunPart]:
        """Yield the parts of a sort."""
        for number in range(self.num_parts(sort)):
            yield self.part(sort, number)

    def by_ranks(
        self,
        function: Callable[..., T],
        *args: Any,
        fold: Callable[[list[T]], T] | None = None,
    ) -> list[T]:
        """Return `function(part, *args)` of parts with all rows of some ranks each."""
        return self.ask(Question(OF_RANKS, function, args, fold))

    def by_collectives(
        self,
        function: Callable[..., T],
        *args: Any,
        fold: Callable[[list[T]], T] | None = None,
    ) -> list[T]:
        """Return `function(part, *args)` of parts with all calls of some collectives each."""
        return self.ask(Question(OF_COLLECTIVES, function, args, fold))

    def parts_by_ranks(self) -> Iterator[Frames]:
        """Yield parts with all rows of some ranks each."""
        return self.parts(OF_RANKS)

    def in_turn(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, while no other thread computes anything of this run."""
        with self._lock:
            return compute()

    def ask(self, question: Question) -> list[Any]:
        """Return the results of a question for all parts."""
        # A copy, since what failed may be computed once more.
        return self.in_turn(lambda: self._ask(replace(question)))

    def _ask(self, question: Question) -> list[Any]:
        assert self._used is None, f"{question.function} is asked for within a part"
        return self._tasks.ask(question)

    def together(self, functions: Iterable[Callable[[], T]]) -> list[T]:
        """Return the results of functions, which share passes over the parts."""
        chosen = list(functions)
        return self.in_turn(lambda: self._tasks.together(chosen))

    @cached_property
    def _tasks(self) -> Tasks:
        return Tasks(self)

    # Values of the whole run.

    def value_of(self, answer: Callable[[Frames], T], compute: Callable[[Frames], T]) -> T:
        """Return what `compute` returns for the run, computed once.

        Raises:
            Needed: A part needs it, and it is not computed yet.
        """
        return self.in_turn(partial(self._value_of, answer, compute))

    def _value_of(self, answer: Answer, compute: Answer) -> Any:
        self._require(answer)
        if answer not in self.values:
            self._tasks.once(answer, lambda: self._keep_value(answer, compute))
        return self.values[answer]

    def _keep_value(self, answer: Answer, compute: Answer) -> None:
        if answer not in self.values:
            self.values[answer] = compute(self)

    def _require(self, answer: Answer) -> None:
        """State that a value is used; while answering, it has to be known."""
        if self._used is not None:
            self._used.add(answer)
            if not self._is_known(answer):
                raise Needed(answer)

    def _is_known(self, answer: Answer) -> bool:
        return answer in self.values if sort_of(answer) is None else self.has_rows(answer)

    @cached_property
    def values(self) -> dict[Answer, Any]:
        """Values of the whole run that are known, by the function that returns them."""
        return {}

    @cached_property
    def _used(self) -> set[Answer] | None:
        """Values that the answer to a question uses; None while a run is not answering."""
        return None

    @contextmanager
    def _answering(self, used: set[Answer]) -> Iterator[None]:
        vars(self)["_used"] = used
        try:
            yield
        finally:
            vars(self)["_used"] = None

    def compute(self, value: Answer) -> None:
        """Compute a value of the whole run, or a row of each of its calls, and keep it."""
        if sort_of(value) is None:
            value(self)
        else:
            self._tasks.once(value, lambda: self._keep_rows(value))

    # A row per call.

    def of_each_call(self, answer: Answer, compute: Answer) -> Any:
        """Return a row per call of the run, computed in parts."""
        return self.rows_of(answer, None)

    def rows_of(self, answer: Answer, part: Frames | None) -> Any:
        """Return the rows of a part's calls, or of all calls.

        Raises:
            Needed: A part needs them, and they are not computed yet.
        """
        return self.in_turn(partial(self._rows_of, answer, part))

    def _rows_of(self, answer: Answer, part: Frames | None) -> Any:
        self._require(answer)
        if not self.has_rows(answer):
            self.compute(answer)
        return self.read_rows(answer, part)

    def _keep_rows(self, answer: Answer) -> None:
        if not self.has_rows(answer):
            self.keep_rows(answer)

    @abstractmethod
    def has_rows(self, answer: Answer) -> bool:
        """Return whether the rows of all calls are kept."""

    @abstractmethod
    def keep_rows(self, answer: Answer) -> None:
        """Compute the rows of all calls in parts, and keep them."""

    @abstractmethod
    def read_rows(self, answer: Answer, part: Frames | None) -> Any:
        """Return kept rows: of a part's calls, or of all calls."""

    # Answers to questions; see `Answerer`.

    def begin(self, question: Question) -> None:
        """Answer a question for the first part, or from kept results."""
        kept = self._small_answers.get(question.key)
        if kept is not None:
            question.end(kept)
            return
        for value in question.values:
            if not self._is_known(value):
                raise Needed(value)
        with self._answering(question.values):
            part = self._first_part(question.sort)
            question.begin(question.function(part, *question.args))
            if self.num_parts(question.sort) == 1:
                self._end(question)

    def finish(self, sort: str, questions: Sequence[Question]) -> None:
        """Answer questions of the same sort for all other parts, in a single pass."""
        self._first_parts.clear()
        for answers in self.other_parts(sort, questions):
            for question, answer in zip(questions, answers, strict=True):
                if isinstance(answer, Needed):
                    question.values.add(answer.value)
                    question.is_begun = False
                else:
                    question.add(answer)
        for question in questions:
            if question.is_begun:
                self._end(question)

    def other_parts(self, sort: str, questions: Sequence[Question]) -> Iterator[list[Any]]:
        """Yield the answers of each part but the first, in order; see `answers_of`."""
        for number in range(1, self.num_parts(sort)):
            yield self.answers_of(self.part(sort, number), questions)

    def answers_of(self, part: RunPart, questions: Sequence[Question]) -> list[Any]:
        """Return a part's answer to each question; `Needed` if it needs a further value."""
        return [self._answer_of(part, question) for question in questions]

    def _answer_of(self, part: RunPart, question: Question) -> Any:
        with self._answering(set()):
            try:
                return question.function(part, *question.args)
            except Needed as needed:
                return needed

    def _end(self, question: Question) -> None:
        question.end()
        if question.has_small_results:
            self._small_answers[question.key] = question.packed

    @cached_property
    def _small_answers(self) -> dict[Any, list[Packed]]:
        return {}

    def _first_part(self, sort: str) -> RunPart:
        """Return the first part of a sort; at most one first part is kept in memory."""
        if sort not in self._first_parts:
            part = self.part(sort, 0)
            self._first_parts.clear()
            self._first_parts[sort] = part
        return self._first_parts[sort]

    @cached_property
    def _first_parts(self) -> dict[str, RunPart]:
        return {}

    def calls_at(self, rows: Any) -> pd.DataFrame:
        """Return calls by their rows in table `comm`."""
        chosen = pd.Index(rows)
        return joined(self.by_ranks(_calls_among, chosen.sort_values())).loc[chosen]


@of_run
def _num_calls(run: Frames) -> int:
    return sum(run.by_ranks(_num_calls_of_part))


def _num_calls_of_part(part: Frames) -> int:
    return len(part.comm)


@of_run
def _start_ns(run: Frames) -> int:
    return min([start for start in run.by_ranks(first_instant_ns) if start >= 0], default=0)


def _calls_among(part: Frames, rows: pd.Index) -> pd.DataFrame:
    own = rows[rows.isin(part.comm.index)]
    calls = part.narrowed(rows=own).comm
    return calls[calls.index.isin(own)].copy()
