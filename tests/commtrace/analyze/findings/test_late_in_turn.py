"""Causes of delays by changing ranks: uneven work of steps and of places, and mere chance."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.findings import findings
from commtrace.analyze.findings.persistence import by_place, by_step
from tests.commtrace.analyze.rows import call, run_of, step
from tests.commtrace.analyze.split_run import SplitRun

RANKS, PLACES, STEPS = 4, 6, 40
SLOT = 10_000
"""Time from one call to the next, in ns."""

Lateness = Callable[[int, int, random.Random], list[int]]
"""How late each rank is to a call, in ns, by its step and its place."""


def recorded(lateness: Lateness, num_steps: int = STEPS, places: int = PLACES) -> Frames:
    """Steps of one all-reduce at each place, with the given delays beside small random ones."""
    chance = random.Random(0)
    calls, steps = [], []
    for number in range(num_steps):
        for place in range(places):
            late = [each + chance.randrange(50) for each in lateness(number, place, chance)]
            n = number * places + place
            for rank, at in enumerate(late):
                wait = max(late) - at + 100
                calls.append(
                    call(
                        rank=rank, id=n, seq=n, at=SLOT * n + at, until=SLOT * n + at + wait,
                        call_ns=wait, blocked_ns=wait, module=f"m{place}", step=number,
                    )
                )  # fmt: skip
        for rank in range(RANKS):
            steps.append(step(rank, number, SLOT * places * number, SLOT * places * (number + 1)))
    return run_of(calls, num_ranks=RANKS, steps=steps)


def only(rank: int) -> list[int]:
    return [5_000 * (each == rank) for each in range(RANKS)]


def by_chance(number: int, place: int, chance: random.Random) -> list[int]:
    return only(chance.randrange(RANKS))


def by_batch(number: int, place: int, chance: random.Random) -> list[int]:
    """One rank has the longest batch of a step."""
    return only(random.Random(number).randrange(RANKS))


def by_layer(number: int, place: int, chance: random.Random) -> list[int]:
    """Ranks work longer before different places."""
    return only(place % RANKS)


def once_a_step(number: int, place: int, chance: random.Random) -> list[int]:
    """The first call of a step waits for the longest batch, and no other one."""
    return by_batch(number, place, chance) if place == 0 else [0] * RANKS


def half_by_batch(number: int, place: int, chance: random.Random) -> list[int]:
    return (by_batch if chance.random() < 0.6 else by_chance)(number, place, chance)


def title_and_cost(frames: Frames) -> tuple[str, float]:
    """Return the title on changing ranks, and the part of the delays that even work would save."""
    table = findings(frames)
    (row,) = table[table["rule"] == "load_imbalance"].to_dict("records")
    delays = frames.comm["blocked_ns"].sum() - 100 * len(frames.comm)
    return row["title"], row["cost_ns"] * RANKS / delays


@pytest.mark.parametrize(
    ("lateness", "said", "part"),
    [
        (by_chance, "depends neither on the step nor on the place", 0.0),
        (by_batch, "All through a step it is mostly the same rank", 1.0),
        (half_by_batch, "All through a step it is mostly the same rank", 0.6),
        (by_layer, "At one place it is mostly the same rank, in all steps", 1.0),
        (once_a_step, "The cause is unknown", 1.0),
    ],
)
def test_the_cause_of_delays_is_what_the_late_rank_depends_on(
    lateness: Lateness, said: str, part: float
) -> None:
    places = 2 if lateness is once_a_step else PLACES
    title, saved = title_and_cost(recorded(lateness, places=places))
    assert said in title
    assert saved == pytest.approx(part, abs=0.15)


def test_delays_by_chance_come_after_what_saves_something() -> None:
    frames = recorded(by_chance)
    (last,) = findings(frames).tail(1)["rule"]
    assert last == "load_imbalance"


def test_of_a_few_steps_the_cause_is_unknown_and_so_is_the_saving() -> None:
    title, saved = title_and_cost(recorded(by_batch, num_steps=4))
    assert title.endswith("The cause is unknown: there are too few steps to compare.")
    assert saved != saved


def test_delays_of_a_single_call_are_none_of_changing_ranks() -> None:
    def stopped(number: int, place: int, chance: random.Random) -> list[int]:
        return [400_000 if (number, place) == (1, 0) else 0, *[0] * (RANKS - 1)]

    assert "load_imbalance" not in set(findings(recorded(stopped, num_steps=2))["rule"])


@pytest.mark.parametrize("seed", range(20))
def test_chance_is_hardly_ever_taken_for_a_cause(seed: int) -> None:
    def late(number: int, place: int, chance: random.Random) -> list[int]:
        """A few long delays among many short ones, more often of one rank than of others."""
        own = random.Random(1000 * seed + number * PLACES + place)
        rank = own.choice([0, 0, *range(RANKS)])
        return [each * int(own.paretovariate(1.5)) // 5 for each in only(rank)]

    frames = recorded(late, num_steps=25)
    assert (by_step(frames).part, by_place(frames).part) == (0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_a_machine_that_is_slow_for_a_while_is_no_uneven_work(seed: int) -> None:
    """One rank is late for 2.5 steps, then another one, whatever the steps and places are."""

    def late(number: int, place: int, chance: random.Random) -> list[int]:
        stretch = (number * PLACES + place + 7) // 15
        return only(random.Random(1000 * seed + stretch).randrange(RANKS))

    frames = recorded(late)
    assert (by_step(frames).part, by_place(frames).part) == (0, 0)


def test_parts_of_a_run_have_the_cause_of_the_whole() -> None:
    whole = recorded(half_by_batch)
    for cause in (by_step, by_place):
        assert cause(SplitRun(whole)) == cause(whole)
