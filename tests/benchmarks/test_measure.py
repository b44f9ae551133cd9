"""Contenders take turns, and a ratio is what it says."""

from __future__ import annotations

import pytest

from benchmarks.measure import Timing, alternate


class Machine:
    """A clock, and work that takes its time; the machine gets slower by `drift` a second."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now = 0.0
        self.drift = drift
        self.turns: list[str] = []

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float):
        def call() -> None:
            if not self.turns or self.turns[-1] != name:
                self.turns.append(name)
            self.now += seconds * (1 + self.drift * self.now)

        return call


def test_contenders_take_turns_and_each_comes_first_once() -> None:
    machine = Machine()
    contenders = {name: machine.work(name, 0.1) for name in "abc"}
    alternate(contenders, num_rounds=3, turn_s=0.1, clock=machine.clock)
    warming_up, *rounds = ("abc", "abc", "bca", "cab")
    assert "".join(machine.turns) == warming_up + "".join(rounds)


def test_the_ratio_is_right_though_the_machine_slows_down() -> None:
    machine = Machine(drift=0.02)
    contenders = {"one": machine.work("one", 0.001), "two": machine.work("two", 0.002)}
    times = alternate(contenders, num_rounds=20, turn_s=0.05, clock=machine.clock)
    assert times["one"].rounds[-1] > 1.02 * times["one"].rounds[0], "the machine did slow down"
    assert times["two"].ratio(times["one"]) == pytest.approx(2, rel=0.01)


def test_a_turn_lasts_about_as_long_as_asked() -> None:
    machine = Machine()
    times = alternate(
        {"quick": machine.work("quick", 1e-5)}, num_rounds=4, turn_s=0.05, clock=machine.clock
    )
    assert times["quick"].seconds == pytest.approx(1e-5)
    assert machine.now == pytest.approx(4 * 0.05, rel=0.5)


def test_one_disturbed_round_does_not_move_the_result() -> None:
    quiet, disturbed = Timing((1.0, 1.0, 1.0)), Timing((2.0, 90.0, 2.0))
    assert disturbed.seconds == 2.0
    assert disturbed.ratio(quiet) == 2.0
