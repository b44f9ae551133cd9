"""Passes over a run that several analyses share.

An analysis of a stored run asks for a function of every part, combines the results, and may then
ask for another one. `Tasks` lets several analyses go on until each of them asks; one pass over the
parts then answers all questions of one sort, and their analyses go on:

    by_module    asks ......... combines
    overlap      asks ......... combines
    findings     asks ......... combines, asks ......... combines
                      one pass                one pass

Each question is answered for the first part at once. If that needs a value of the whole run which
is not known yet (`Needed`), the value is computed first, in a task of its own, and passes for such
values come before others.

Each analysis runs in a thread of its own, but only one of them at a time: they take turns, so that
none has to guard what it caches. None may hold a lock while it asks, as `cached_property` does
before Python 3.12.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Function = Callable[..., Any]


class Needed(Exception):
    """A part needs a value of the whole run first.

    Attributes:
        value: The function of the run that returns it.
    """

    def __init__(self, value: Function) -> None:
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class Question:
    """A function of the parts of one sort, and its results.

    Attributes:
        sort: Sort of the parts.
        function: Takes a part and `args`.
        fold: Combines results of parts that follow each other, if there is one.
        results: Results of the parts, in their order.
        values: Functions whose values of the whole run it needs.
        is_begun: It is answered for the first part.
        is_over: It is answered for all parts, or failed.
        error: Error with which it failed.
        waits_for: The task that computes a value that it needs.
    """

    sort: str
    function: Function
    args: tuple[Any, ...]
    fold: Callable[[list[Any]], Any] | None = None
    results: list[Any] = field(default_factory=list)
    values: set[Function] = field(default_factory=set)
    is_begun: bool = False
    is_over: bool = False
    error: BaseException | None = None
    waits_for: Task | None = None

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

    def add(self, result: Any) -> None:
        """Add the result of the next part."""
        self.results.append(result)
        if self.fold is not None and len(self.results) > 1:
            self.results = [self.fold(self.results)]

    def end(self, results: list[Any]) -> None:
        """State the results of all parts."""
        self.results, self.is_over = results, True

    def fail(self, error: BaseException) -> None:
        """State that it cannot be answered."""
        self.error, self.is_over = error, True


_MOST_ROWS = 100_000


def _num_rows(result: Any) -> int:
    """Return the number of rows of the tables in a result."""
    if isinstance(result, (tuple, list)):
        return sum(map(_num_rows, result))
    return len(result) if hasattr(result, "index") else 1


class Answerer(Protocol):
    """A run that answers questions about its parts."""

    def begin(self, question: Question) -> None:
        """Answer a question for the first part, or from what is kept.

        Raises:
            Needed: A value is needed first.
            Exception: The function failed.
        """
        ...

    def finish(self, sort: str, questions: Sequence[Question]) -> None:
        """Answer questions of one sort for all other parts, in one pass.

        A question that needs a further value is left as if it had not begun.
        """
        ...

    def compute(self, value: Function) -> None:
        """Compute a value of the whole run, and keep it."""
        ...


@dataclass(eq=False, slots=True)
class Computation:
    """A value that one task computes and others may wait for."""

    task: Task | None
    is_over: bool = False


_STACK_BYTES = 2 << 20
"""Size of a task's stack. By default it is 8 MiB, which count towards a limit of memory."""


class Task:
    """An analysis, which runs while it has the turn.

    Attributes:
        waits_for: Questions, tasks and computations that it waits for.
        is_first: Others wait for it, so that its questions come first.
        is_over: It has returned or raised an error.
    """

    def __init__(self, tasks: Tasks, function: Callable[[], Any], *, is_first: bool) -> None:
        self.waits_for: Sequence[Question | Task | Computation] = ()
        self.is_first = is_first
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
        return not self.is_over and all(each.is_over for each in self.waits_for)

    def go_on(self) -> None:
        """Give the turn to this task; return when it waits or is over."""
        if not self._thread.is_alive():
            before = threading.stack_size(_STACK_BYTES)
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)
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

    def wait(self, waits_for: Sequence[Question | Task | Computation]) -> None:
        """Give the turn back until all of these are over."""
        self.waits_for = waits_for
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
        answerer: Answers their questions.
    """

    def __init__(self, answerer: Answerer) -> None:
        self.current = threading.local()
        self._answerer = answerer
        self._tasks: list[Task] = []
        self._questions: dict[Any, Question] = {}
        self._computations: dict[Any, Computation] = {}
        self._values: dict[Function, Task] = {}

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return what `compute` returns and caches, which no two tasks compute at a time."""
        task: Task | None = getattr(self.current, "task", None)
        computation = self._computations.get(key)
        if computation is None:
            computation = self._computations[key] = Computation(task)
            try:
                return compute()
            finally:
                computation.is_over = True
        if task is not None and not computation.is_over:
            if computation.task is not None:
                computation.task.is_first = True
            task.wait([computation])
        return compute()

    def ask(self, question: Question) -> list[Any]:
        """Return the results of a question; outside of tasks it has a pass of its own."""
        task: Task | None = getattr(self.current, "task", None)
        if task is None:
            return self.together([partial(self.ask, question)])[0]
        question = self._questions.setdefault(question.key, question)
        task.wait([question])
        if question.error is not None:
            raise question.error
        return question.results

    def together(self, functions: Iterable[Callable[[], T]]) -> list[T]:
        """Return the results of functions that may ask, in their order.

        Raises:
            Exception: That of the first of them that failed.
        """
        parent: Task | None = getattr(self.current, "task", None)
        is_first = parent is not None and parent.is_first
        tasks = [Task(self, function, is_first=is_first) for function in functions]
        self._tasks += tasks
        if parent is None:
            self._run()
        else:
            parent.wait(tasks)
        return [task.result() for task in tasks]

    def _run(self) -> None:
        while self._tasks:
            ready = [task for task in self._tasks if task.can_go_on]
            for task in ready:
                task.go_on()
            self._tasks = [task for task in self._tasks if not task.is_over]
            if not ready:
                self._answer()

    def _answer(self) -> None:
        """Begin with what has been asked; if there is nothing new, finish what most ask for."""
        new = [
            question
            for question in self._questions.values()
            if not question.is_begun and (question.waits_for is None or question.waits_for.is_over)
        ]
        # Those of one sort after each other, since one first part at a time is in memory.
        for question in sorted(new, key=lambda question: question.sort):
            self._begin(question)
        if not new:
            self._finish()
        self._questions = {
            key: question for key, question in self._questions.items() if not question.is_over
        }

    def _begin(self, question: Question) -> None:
        try:
            if question.waits_for is not None:
                question.waits_for.result()
            self._answerer.begin(question)
            question.is_begun = True
        except Needed as needed:
            question.waits_for = self._task_of(needed.value)
        except BaseException as error:  # raised again by those who asked
            question.fail(error)

    def _task_of(self, value: Function) -> Task:
        task = self._values.get(value)
        if task is None or task.is_over:
            compute = partial(self._answerer.compute, value)
            task = self._values[value] = Task(self, compute, is_first=True)
            self._tasks.append(task)
        return task

    def _finish(self) -> None:
        """Answer what most ask for, of one sort; first what others need."""
        asked = [
            (each, task.is_first)
            for task in self._tasks
            for each in task.waits_for
            if isinstance(each, Question) and each.is_begun and not each.is_over
        ]
        first = [pair for pair in asked if pair[1]] or asked
        sort = Counter(question.sort for question, _ in first).most_common(1)[0][0]
        chosen = list(dict.fromkeys(question for question, _ in asked if question.sort == sort))
        try:
            self._answerer.finish(sort, chosen)
        except BaseException as error:  # raised again by those who asked
            for question in chosen:
                question.fail(error)
