"""Analyses that go on until each of them asks share a pass over the parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from commtrace.analyze.shared_passes import Needed, Question, Tasks

PARTS = (1, 2, 3)


def double(part: int, *more: str) -> str:
    return f"{2 * part}{''.join(more)}"


def fails(part: int) -> int:
    raise ValueError(f"part {part}")


class Passes:
    """Answers questions, and keeps the questions of each pass."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, list[Any]]] = []
        self.tasks = Tasks(self)
        self.known: dict[Any, Any] = {}

    def begin(self, question: Question) -> None:
        question.begin(question.function(PARTS[0], *question.args))

    def finish(self, sort: str, questions: Sequence[Question]) -> None:
        self.passes.append((sort, [(each.function.__name__, *each.args) for each in questions]))
        for each in questions:
            for part in PARTS[1:]:
                each.add(each.function(part, *each.args))
            each.end()

    def compute(self, value: Any) -> None:
        self.known[value] = value(self)

    def ask(self, sort: str, function: Any = double, *args: str) -> list[Any]:
        return self.tasks.ask(Question(sort, function, args))


def test_a_question_outside_of_tasks_has_a_pass_of_its_own() -> None:
    run = Passes()
    assert run.ask("ranks") == run.ask("ranks") == ["2", "4", "6"]
    assert len(run.passes) == 2


def test_questions_of_several_analyses_share_a_pass() -> None:
    run = Passes()
    found = run.tasks.together([partial(run.ask, "ranks", double, each) for each in "abc"])
    assert found[1] == ["2b", "4b", "6b"]
    assert run.passes == [("ranks", [("double", "a"), ("double", "b"), ("double", "c")])]


def test_the_same_question_is_answered_once_for_all_who_ask() -> None:
    run = Passes()
    found = run.tasks.together([partial(run.ask, "ranks", double, "x")] * 3)
    assert found == [["2x", "4x", "6x"]] * 3
    assert run.passes == [("ranks", [("double", "x")])]


def test_the_sort_that_most_ask_for_comes_first() -> None:
    run = Passes()

    def twice() -> list[str]:
        return run.ask("ranks", double, "1") + run.ask("collectives", double, "2")

    run.tasks.together([partial(run.ask, "collectives"), twice, partial(run.ask, "ranks")])
    assert run.passes == [
        ("ranks", [("double", "1"), ("double",)]),
        ("collectives", [("double",), ("double", "2")]),
    ]


def test_results_are_folded_as_they_come() -> None:
    run = Passes()
    question = Question("ranks", double, (), "+".join)
    assert run.tasks.ask(question) == ["2+4+6"]


def test_a_value_that_a_part_needs_is_computed_before_and_once_for_all() -> None:
    run = Passes()

    def value(run: Passes) -> str:
        return run.ask("collectives")[0]

    def needs(part: int, name: str) -> str:
        if value not in run.known:
            raise Needed(value)
        return f"{run.known[value]}{part}{name}"

    found = run.tasks.together(
        [partial(run.ask, "ranks", needs, "a"), partial(run.ask, "ranks", needs, "b")]
    )
    assert found == [["21a", "22a", "23a"], ["21b", "22b", "23b"]]
    assert run.passes == [
        ("collectives", [("double",)]),
        ("ranks", [("needs", "a"), ("needs", "b")]),
    ]


def test_what_others_need_comes_before_what_more_ask_for() -> None:
    run = Passes()

    def value(run: Passes) -> str:
        return run.ask("collectives", double, "needed")[0]

    def needs(part: int) -> str:
        if value not in run.known:
            raise Needed(value)
        return "done"

    asked = [partial(run.ask, "ranks", double, each) for each in "ab"]
    run.tasks.together([partial(run.ask, "ranks", needs), *asked])
    assert run.passes == [
        ("collectives", [("double", "needed")]),
        ("ranks", [("needs",), ("double", "a"), ("double", "b")]),
    ]


def test_an_error_of_a_value_reaches_those_that_need_it() -> None:
    run = Passes()

    def value(run: Passes) -> None:
        raise KeyError("no value")

    def needs(part: int) -> None:
        raise Needed(value)

    def careful() -> str:
        with pytest.raises(KeyError, match="no value"):
            run.ask("ranks", needs)
        return "went on"

    assert run.tasks.together([careful, partial(run.ask, "ranks")]) == ["went on", ["2", "4", "6"]]


def test_an_analysis_may_have_parts_that_go_on_together() -> None:
    run = Passes()

    def nested() -> list[list[str]]:
        before = run.ask("ranks", double, "0")
        inner = run.tasks.together([partial(run.ask, "ranks", double, each) for each in "ab"])
        return [before, *inner, run.ask("ranks", double, "9")]

    found = run.tasks.together([nested, partial(run.ask, "ranks", double, "0")])
    assert found[0] == [["20", "40", "60"], *([f"{2 * p}{x}" for p in PARTS] for x in "ab9")]
    assert [len(questions) for _, questions in run.passes] == [1, 2, 1]


def test_an_error_of_a_part_reaches_all_who_asked() -> None:
    run = Passes()

    def careful() -> str:
        with pytest.raises(ValueError, match="part 1"):
            run.ask("ranks", fails)
        return "went on"

    with pytest.raises(ValueError, match="part 1"):
        run.tasks.together([careful, partial(run.ask, "ranks", fails)])
    assert run.tasks.together([careful, lambda: "not asked"]) == ["went on", "not asked"]


def test_an_error_of_one_analysis_leaves_the_others_alone() -> None:
    run, done = Passes(), list[str]()

    def wrong() -> None:
        run.ask("ranks")
        raise KeyError("mine")

    def right() -> None:
        run.ask("ranks")
        done.extend(run.ask("ranks", double, "end"))

    with pytest.raises(KeyError, match="mine"):
        run.tasks.together([wrong, right])
    assert done == ["2end", "4end", "6end"]


def test_a_value_is_computed_by_one_analysis_while_the_others_wait() -> None:
    run, computed = Passes(), list[list[str]]()

    def value() -> list[str]:
        if not computed:
            computed.append(run.ask("ranks", double, "v"))
        return computed[0]

    found = run.tasks.together([partial(run.tasks.once, "v", value) for _ in range(3)])
    assert found == [["2v", "4v", "6v"]] * 3
    assert run.passes == [("ranks", [("double", "v")])]
    assert run.tasks.once("v", value) is computed[0]


def test_no_analysis_sees_what_another_makes_of_a_result() -> None:
    run = Passes()

    def numbers(part: int) -> list[int]:
        return [part]

    def doubled() -> list[list[int]]:
        found = run.ask("ranks", numbers)
        for each in found:
            each *= 2
        return found

    found = run.tasks.together([doubled, partial(run.ask, "ranks", numbers)])
    assert found == [[[1, 1], [2, 2], [3, 3]], [[1], [2], [3]]]
    assert run.passes == [("ranks", [("numbers",)])]


def test_an_interrupt_ends_all_of_them_and_leaves_nothing_behind() -> None:
    run = Passes()
    ended = []

    def interrupted() -> None:
        run.ask("ranks")
        raise KeyboardInterrupt

    def waits() -> None:
        try:
            run.ask("ranks")
            run.ask("ranks", double, "later")
        finally:
            ended.append("waits")

    with pytest.raises(KeyboardInterrupt):
        run.tasks.together([interrupted, waits])
    assert ended == ["waits"]
    assert run.ask("ranks") == ["2", "4", "6"]
    assert "later" not in str(run.passes)


def test_an_interrupt_before_a_needed_value_begins_leaves_it_to_be_computed() -> None:
    run = Passes()

    def value(run: Passes) -> str:
        return run.ask("collectives")[0]

    def needs(part: int) -> str:
        if value not in run.known:
            raise Needed(value)
        return run.known[value]

    def interrupted(part: int) -> None:
        raise KeyboardInterrupt

    asked = [partial(run.ask, "a", needs), partial(run.ask, "b", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        run.tasks.together(asked)
    assert run.ask("a", needs) == ["2"] * 3
