from __future__ import annotations

from commtrace.analyze.consistency.deadlock_cycle import shortest_cycle


def test_the_shortest_way_back_is_found() -> None:
    ways = {"a": "bc", "b": "d", "c": "e", "d": "e", "e": "fa", "f": "a"}
    assert shortest_cycle("a", ways.__getitem__) == ["a", "c", "e"]


def test_a_way_to_itself_is_a_circle_of_one() -> None:
    assert shortest_cycle(1, {1: [2, 1], 2: [1]}.__getitem__) == [1]


def test_circles_elsewhere_are_none() -> None:
    assert shortest_cycle(0, {0: [1], 1: [2], 2: [1]}.__getitem__) == []
