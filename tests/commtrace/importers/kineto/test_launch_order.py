"""Order of launches, compared with every order that agrees with what is known."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from commtrace.importers.kineto.launch_order import LaunchedWork, LaunchOrder

LATEST = 14


@st.composite
def streams(draw: st.DrawFn) -> tuple[tuple[int, ...], list[LaunchedWork]]:
    """Instants of the launches of a stream, and its work, some of it with an unknown launch."""
    launches = sorted(draw(st.sets(st.integers(0, LATEST - 1), min_size=1, max_size=4)))
    works: list[LaunchedWork] = []
    for number, launch in enumerate(launches):
        free = works[-1].start + 1 if works else 0
        start = max(free, launch + 1) + draw(st.integers(0, 5))
        works.append(LaunchedWork(number, start, draw(st.sampled_from([launch, None])), number))
    return tuple(launches), works


@given(streams(), st.integers(0, 30))
def test_the_last_launch_is_the_true_one_or_unknown(
    made: tuple[tuple[int, ...], list[LaunchedWork]], instant: int
) -> None:
    launches, works = made
    found = LaunchOrder([works]).last_before(instant, -1)
    truth = _last(launches, instant)
    if all(work.launch is not None for work in works):
        assert found == truth
    elif found >= 0:
        assert {_last(each, instant) for each in _orders(works)} == {truth} == {found}


def _orders(works: list[LaunchedWork]) -> list[tuple[int, ...]]:
    """Every sequence of launches that the starts and the known launches allow."""
    return [
        launches
        for launches in combinations(range(LATEST), len(works))
        if all(
            at < work.start and work.launch in (None, at)
            for at, work in zip(launches, works, strict=True)
        )
    ]


def _last(launches: tuple[int, ...], instant: int) -> int:
    return sum(at < instant for at in launches) - 1


STREAM = [LaunchedWork(3, 10, 2, 103), LaunchedWork(4, 20, None, 104), LaunchedWork(5, 30, 14, 105)]


def test_an_unknown_launch_is_in_doubt_between_its_neighbours_and_before_its_start() -> None:
    order = LaunchOrder([STREAM])
    assert [order.last_before(at, 200) for at in (1, 2, 9, 13, 14, 99)] == [-1, -1, -1, -1, 5, 5]
    assert LaunchOrder([STREAM[:2]]).last_before(20, -1) == 4
    late = LaunchOrder([[*STREAM[:2], LaunchedWork(5, 30, 25, 105)]])
    assert [late.last_before(at, 200) for at in (19, 20, 24, 25)] == [-1, 4, 4, 5]


def test_launches_at_the_same_instant_are_in_the_order_of_their_correlations() -> None:
    order = LaunchOrder([[LaunchedWork(0, 10, 5, 70), LaunchedWork(1, 12, 5, 72)]])
    assert [order.last_before(5, number) for number in (-1, 70, 71, 72, 73)] == [-1, -1, 0, 0, 1]


def test_several_streams_have_one_order_and_the_doubts_of_all() -> None:
    order = LaunchOrder([STREAM, [LaunchedWork(6, 40, 16, 106)]])
    assert [order.last_before(at, 200) for at in (5, 15, 17)] == [-1, 5, 6]
