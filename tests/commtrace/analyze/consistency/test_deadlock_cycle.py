"""Cycles of a directed graph."""

from __future__ import annotations

import doctest

from commtrace.analyze.consistency import deadlock_cycle
from commtrace.analyze.consistency.deadlock_cycle import graph_of, shortest_cycle
from commtrace.analyze.consistency.deadlocks import deadlock_cycles
from commtrace.analyze.consistency.waiting import Wait


def test_the_shortest_way_back_is_found() -> None:
    ways = {"a": "bc", "b": "d", "c": "e", "d": "e", "e": "fa", "f": "a"}
    graph = graph_of((at, then) for at, after in ways.items() for then in after)
    assert shortest_cycle(graph, "a") == ["a", "c", "e"]


def test_a_node_that_leads_to_itself_is_a_cycle_of_one() -> None:
    assert shortest_cycle(graph_of([(1, 2), (1, 1), (2, 1)]), 1) == [1]


def test_cycles_elsewhere_are_none() -> None:
    assert shortest_cycle(graph_of([(0, 1), (1, 2), (2, 1)]), 0) == []


def test_the_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(deadlock_cycle).failed == 0


def wait_of(rank: int, others: tuple[int, ...], group: str, number: int = 0) -> Wait:
    return Wait(rank, rank, others, group, number, "a call", "", rank)


def test_two_calls_that_lack_each_others_thousands_of_members_are_one_deadlock() -> None:
    half = 4096
    first, second = tuple(range(half)), tuple(range(half, 2 * half))
    waits = [wait_of(rank, second, "tp") for rank in first]
    waits += [wait_of(rank, first, "dp") for rank in second]
    assert [[each.rank for each in cycle] for cycle in deadlock_cycles(waits)] == [[0, half]]
