"""Passes over a run that several analyses share.

An analysis of a stored run asks for a function of every part, combines the results, and may then
ask for another. `Tasks` lets several analyses run until each of them asks; a single pass over the
parts then answers all questions of the same sort, and their analyses go on:

    by_module    asks ......... combines
    overlap      asks ......... combines
    findings     asks ......... combines, asks ......... combines
                      one pass                one pass

Each question is answered for the first part at once. If that needs a value of the whole run which
is not known yet (`Needed`), the value is computed first, in a task of its own, and passes for such
values come before others.

Each analysis runs in a greenlet of its own: only one of them runs at a time, until it waits, so
that none has to guard what it caches. All of them are on the thread that asked first; others wait
until it is done (`PartedRun.in_turn`). Threads instead of greenlets would have to take turns, too,
but the allocator gives each of them memory of its own, which none of the others can use when it is
free.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent, greenlet

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


@dataclass(frozen=True, slots=True)
class Packed:
    """A result of a part, pickled, since a small table takes much more memory as objects."""

    data: bytes

    @classmethod
    def of(cls, result: Any) -> Packed:
        """Return a result as bytes; a packed result is returned as it is."""
        return result if isinstance(result, cls) else cls(pickle.dumps(result, protocol=5))

    @property
    def result(self) -> Any:
        """The result."""
        return pickle.loads(self.data)


@dataclass(eq=False)
class Question:
    """A function of the parts of a sort, and its results.

    Attributes:
        sort: Sort of the parts.
        function: Takes a part and `args`.
        fold: Combines results of consecutive parts, if given.
        packed: Results of the parts, in their order.
        folded: The result combined so far, if they are combined.
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
    packed: list[Packed] = field(default_factory=list)
    folded: Any = None
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
    def results(self) -> list[Any]:
        """Results of the parts, in their order."""
        return [each.result for each in self.packed]

    @property
    def has_small_results(self) -> bool:
        """True if the results may be kept for equal questions later."""
        is_by_value = all(isinstance(each, (str, tuple)) for each in self.args)
        return is_by_value and sum(len(each.data) for each in self.packed) <= _MOST_BYTES

    def begin(self, result: Any) -> None:
        """State the result of the first part."""
        self.packed, self.folded, self.is_begun = [], None, True
        self.add(result)

    def add(self, result: Any) -> None:
        """Add the result of the next part."""
        if self.fold is None:
            self.packed.append(Packed.of(result))
            return
        result = result.result if isinstance(result, Packed) else result
        self.folded = result if self.folded is None else self.fold([self.folded, result])

    def end(self, packed: list[Packed] | None = None) -> None:
        """State that all parts have results, or give the results known from before."""
        if packed is not None:
            self.packed = packed
        elif self.fold is not None:
            self.packed, self.folded = [Packed.of(self.folded)], None
        self.is_over = True

    def fail(self, error: BaseException) -> None:
        """State that it cannot be answered."""
        self.error, self.is_over = error, True


_MOST_BYTES = 4 << 20


class Answerer(Protocol):
    """A run that answers questions about its parts."""

    def begin(self, question: Question) -> None:
        """Answer a question for the first part, or from kept results.

        Raises:
            Needed: A value is needed first.
            Exception: The function failed.
        """
        ...

    def finish(self, sort: str, questions: Sequence[Question]) -> None:
        """Answer questions of the same sort for all other parts, in a single pass.

        A question that needs a further value is left as if it had not begun.
        """
        ...

    def compute(self, value: Function) -> None:
        """Compute a value of the whole run, and keep it."""
        ...


@dataclass(eq=False, slots=True)
class Computation:
    """A value that a task computes and others may wait for."""

    task: Task | None
    is_over: bool = False


class Task(greenlet):
    """An analysis, which runs while it has the turn.

    Attributes:
        tasks: The analyses that it belongs to.
        waits_for: Questions, tasks and computations that it waits for.
        is_first: Others wait for it, so that its questions come first.
        is_over: It has returned or raised an error.
    """

    def __init__(self, tasks: Tasks, function: Callable[[], Any], *, is_first: bool) -> None:
        super().__init__(self._compute)
        self.tasks = tasks
        self.waits_for: Sequence[Question | Task | Computation] = ()
        self.is_first = is_first
        self.is_over = False
        self._function = function
        self._result: Any = None
        self._error: Exception | None = None

    @property
    def can_go_on(self) -> bool:
        """True if it waits for nothing but its turn."""
        return not self.is_over and all(each.is_over for each in self.waits_for)

    def go_on(self) -> None:
        """Give the turn to this task; return when it waits or is over."""
        self.parent = getcurrent()
        self.switch()

    def end(self) -> None:
        """End this task where it waits, if it has begun and is not over."""
        if self:  # has a stack
            self.parent = getcurrent()
            self.throw()

    def _compute(self) -> None:
        try:
            self._result = self._function()
        except Exception as error:  # raised again where the result is asked for
            self._error = error
        finally:
            self.is_over = True

    def wait(self, waits_for: Sequence[Question | Task | Computation]) -> None:
        """Give the turn back until all of these are over."""
        assert self.parent is not None
        self.waits_for = waits_for
        self.parent.switch()

    def result(self) -> Any:
        """Return the result of the analysis, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class Tasks:
    """Analyses of a run that share passes over it.

    Args:
        answerer: Answers their questions.
    """

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._tasks: list[Task] = []
        self._questions: dict[Any, Question] = {}
        self._computations: dict[Any, Computation] = {}
        self._values: dict[Function, Task] = {}

    @property
    def _current(self) -> Task | None:
        """The task that runs, None outside of all."""
        running = getcurrent()
        return running if isinstance(running, Task) and running.tasks is self else None

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return what `compute` returns and caches, which no two tasks compute at a time."""
        task = self._current
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
        task = self._current
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
            Exception: The error of the first function that failed.
        """
        parent = self._current
        is_first = parent is not None and parent.is_first
        tasks = [Task(self, function, is_first=is_first) for function in functions]
        self._tasks += tasks
        if parent is None:
            self._run()
        else:
            parent.wait(tasks)
        return [task.result() for task in tasks]

    def _run(self) -> None:
        try:
            while self._tasks:
                ready = [task for task in self._tasks if task.can_go_on]
                for task in ready:
                    task.go_on()
                self._tasks = [task for task in self._tasks if not task.is_over]
                if not ready:
                    self._answer()
        except BaseException:  # such as an interrupt by the user
            begun, self._tasks, self._questions, self._values = self._tasks, [], {}, {}
            for task in begun:
                task.end()
            raise

    def _answer(self) -> None:
        """Begin new questions; if there are none, finish the sort that most tasks ask for."""
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
        """Answer the sort that most tasks ask for, considering tasks that others wait for first."""
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
