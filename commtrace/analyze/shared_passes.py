"""Passes over a run that several analyses share.

An analysis of a stored run asks for a function of every part, combines the results, and may then
ask for another one. `Tasks` lets several analyses go on until each of them asks; one pass over the
parts then answers all questions of one sort, and their analyses go on:

    by_module    asks ......... combines
    overlap      asks ......... combines
    findings     asks ......... combines, asks ......... combines
                      one pass                one pass

Each analysis runs in a thread of its own, but only one of them at a time: they take turns, so that
none has to guard what it caches. None may hold a lock while it asks, as `cached_property` does
before Python 3.12.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Function = Callable[..., Any]


@dataclass(eq=False)
class Question:
    """A function of the parts of one sort, and its results.

    Attributes:
        sort: Sort of the parts.
        function: Takes a part and `args`.
        results: Results of the parts, in their order.
        error: Error of the pass.
    """

    sort: str
    function: Function
    args: tuple[Any, ...]
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None

    def is_same(self, other: Question) -> bool:
        """Return whether two questions have the same answer."""
        return self.key == other.key

    @property
    def key(self) -> Any:
        """Equal for questions with the same answer."""
        # Tables have no hash; they are the same if they are one object.
        args = [each if isinstance(each, (str, tuple)) else id(each) for each in self.args]
        return self.sort, self.function, *args

    @property
    def has_small_results(self) -> bool:
        """True if the results may be kept for the next one who asks."""
        is_by_value = all(isinstance(each, (str, tuple)) for each in self.args)
        return is_by_value and sum(map(_num_rows, self.results)) <= _MOST_ROWS


_MOST_ROWS = 100_000


def _num_rows(result: Any) -> int:
    """Return the number of rows of the tables in a result."""
    if isinstance(result, (tuple, list)):
        return sum(map(_num_rows, result))
    return len(result) if hasattr(result, "index") else 1


@dataclass(eq=False, slots=True)
class Computation:
    """A value that one task computes and others may wait for."""

    is_over: bool = False


class Task:
    """An analysis, which runs while it has the turn.

    Attributes:
        question: What it asks for; None unless it waits for an answer.
        waits_for: Tasks and computations that it waits for.
        is_over: It has returned or raised an error.
    """

    def __init__(self, tasks: Tasks, function: Callable[[], Any]) -> None:
        self.question: Question | None = None
        self.waits_for: Sequence[Task | Computation] = ()
        self.is_over = False
        self._tasks = tasks
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._turn, self._given_back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def can_go_on(self) -> bool:
        """True if it waits for nothing but its turn."""
        is_free = self.question is None and all(each.is_over for each in self.waits_for)
        return is_free and not self.is_over

    def go_on(self) -> None:
        """Give the turn to this task; return when it waits or is over."""
        if not self._thread.is_alive():
            self._thread.start()
        self._turn.release()
        self._given_back.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        self._tasks.current.task = self
        try:
            self._result = self._function()
        except BaseException as error:  # raised again where the result is asked for
            self._error = error
        finally:
            self.is_over = True
            self._given_back.release()

    def wait(self) -> None:
        """Give the turn back until this task can go on."""
        self._given_back.release()
        self._turn.acquire()

    def result(self) -> Any:
        """Return the result of the analysis, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class Tasks:
    """Analyses of one run that share passes over it.

    Args:
        answer: Answers questions of one sort in one pass: appends to the results of each.
    """

    def __init__(self, answer: Callable[[str, Sequence[Question]], None]) -> None:
        self.current = threading.local()
        self._answer = answer
        self._tasks: list[Task] = []
        self._computations: dict[Any, Computation] = {}

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return what `compute` returns and caches, which no two tasks compute at a time."""
        task: Task | None = getattr(self.current, "task", None)
        computation = self._computations.get(key)
        if computation is None:
            computation = self._computations[key] = Computation()
            try:
                return compute()
            finally:
                computation.is_over = True
        if task is not None and not computation.is_over:
            task.waits_for = [computation]
            task.wait()
        return compute()

    def ask(self, question: Question) -> list[Any]:
        """Return the results of a question; outside of tasks it has a pass of its own."""
        task: Task | None = getattr(self.current, "task", None)
        if task is None:
            self._answer(question.sort, [question])
        else:
            task.question = question
            task.wait()
        if question.error is not None:
            raise question.error
        return question.results

    def together(self, functions: Iterable[Callable[[], T]]) -> list[T]:
        """Return the results of functions that may ask, in their order.

        Raises:
            Exception: That of the first of them that failed.
        """
        parent: Task | None = getattr(self.current, "task", None)
        tasks = [Task(self, function) for function in functions]
        self._tasks += tasks
        if parent is None:
            self._run()
        else:
            parent.waits_for = tasks
            parent.wait()
        return [task.result() for task in tasks]

    def _run(self) -> None:
        while self._tasks:
            ready = [task for task in self._tasks if task.can_go_on]
            for task in ready:
                task.go_on()
            self._tasks = [task for task in self._tasks if not task.is_over]
            if not ready:
                self._answer_most()

    def _answer_most(self) -> None:
        """Answer the questions of the sort that most tasks ask for, in one pass."""
        asking = [(task, task.question) for task in self._tasks if task.question is not None]
        sorts = [question.sort for _, question in asking]
        sort = max(dict.fromkeys(sorts), key=sorts.count)
        distinct: list[Question] = []
        for task, question in asking:
            if question.sort != sort:
                continue
            task.question = None
            same = next((each for each in distinct if each.is_same(question)), None)
            if same is None:
                distinct.append(question)
            else:
                question.results = same.results  # filled below
        error: BaseException | None = None
        try:
            self._answer(sort, distinct)
        except BaseException as raised:  # raised again by those who asked
            error = raised
        for _, question in asking:
            if question.sort == sort:
                question.error = error
