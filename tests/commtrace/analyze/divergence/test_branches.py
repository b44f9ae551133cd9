"""The statement by which a program came to one line rather than to another."""

from __future__ import annotations

from textwrap import dedent

import pytest

from commtrace.analyze.divergence.branches import (
    branch_between,
    function_around,
    headers_around,
    line_that_calls,
)

PROGRAM = dedent(
    """
    def train(batches):
        for batch in batches:
            all_reduce(1)
            if rank == 0:
                # a comment
                broadcast(2)
            elif rank == 1:
                gather(3)
            else:
                scatter(4)
            if loss < 0.1:
                break
            all_reduce(5)
        barrier(6)
        for round in rounds:
            if empty(round):
                continue
            all_reduce(11)
        if rank == 2: gather(12)
        barrier(13)


    def other(x):
        try:
            all_reduce(7)
            model(x)
            all_reduce(8)
        except ValueError as error:
            log(error)
        if done: return
        barrier(9)
        if save:
            write()
        all_reduce(10)
    """
)
LINES = dict(enumerate(PROGRAM.splitlines(), 1))


def at(text: str) -> int:
    return next(number for number, line in LINES.items() if text in line)


def texts(common: str, own: str, others: str) -> list[str]:
    places = (at(text) if text else -1 for text in (common, own, others))
    return [each.text for each in branch_between(LINES, *places)]


@pytest.mark.parametrize(
    ("common", "own", "others", "expected"),
    [
        ("(1)", "(2)", "(5)", ["if rank == 0:"]),
        ("(1)", "(5)", "(2)", ["if rank == 0:"]),
        ("(1)", "(3)", "(5)", ["if rank == 0:", "elif rank == 1:"]),
        ("(1)", "(4)", "(5)", ["elif rank == 1:", "else:"]),
        ("(1)", "(6)", "(5)", ["for batch in batches:", "if loss < 0.1:", "break"]),
        ("(5)", "(6)", "(1)", ["for batch in batches:", "if loss < 0.1:", "break"]),
        ("(7)", "(9)", "(8)", ["try:", "except ValueError as error:"]),
        ("(8)", "", "(9)", ["if done: return"]),
        ("(9)", "", "(10)", ["if save:"]),
        ("(11)", "(13)", "(11)", ["for round in rounds:", "if empty(round):", "continue"]),
        ("(11)", "(12)", "(13)", ["if rank == 2: gather(12)"]),
        ("(1)", "(1)", "(1)", []),
    ],
)
def test_the_statement_is_found(common: str, own: str, others: str, expected: list[str]) -> None:
    assert texts(common, own, others) == expected


def test_lines_that_are_not_known_end_the_search() -> None:
    excerpt = {number: text for number, text in LINES.items() if number > at("# a comment")}
    assert headers_around(excerpt, at("broadcast(2)")) == []
    assert branch_between({}, 3, 4, 5) == ()


def test_a_call_is_found_and_a_definition_is_not() -> None:
    assert line_that_calls(LINES, "broadcast", -1) == at("broadcast(2)")
    assert line_that_calls(LINES, "all_reduce", at("(1)")) == at("(5)")
    assert line_that_calls(LINES, "other", -1) == -1
    assert line_that_calls(LINES, "", -1) == -1


def test_the_lines_of_a_function_are_those_below_its_definition() -> None:
    assert [*function_around(LINES, at("(3)"))] == [*range(at("def train"), at("(13)") + 1)]
    assert [*function_around(LINES, at("(7)"))] == [*range(at("def other"), at("(10)") + 1)]
    assert function_around(LINES, at("def train")) == LINES
    assert function_around({}, 3) == {}
