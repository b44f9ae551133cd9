"""Contenders alternate, and ratios are computed as documented."""

from __future__ import annotations

import pytest

from benchmarks.measure import Figures, bytes_each, first_calls, repeated


class Machine:
    """A fake clock, and work that advances it; the machine gets slower by `drift` per second."""

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
    repeated(contenders, num_rounds=3, turn_s=0.1, clock=machine.clock)
    warming_up, *rounds = ("abc", "abc", "bca", "cab")
    assert "".join(machine.turns) == warming_up + "".join(rounds)


def test_the_ratio_is_right_though_the_machine_slows_down() -> None:
    machine = Machine(drift=0.02)
    contenders = {"one": machine.work("one", 0.001), "two": machine.work("two", 0.002)}
    figures = repeated(contenders, num_rounds=20, turn_s=0.05, clock=machine.clock)
    assert figures["one"].rounds[-1] > 1.02 * figures["one"].rounds[0], "it did slow down"
    assert figures["two"].ratio(figures["one"]) == pytest.approx(2, rel=0.01)


def test_a_turn_lasts_about_as_long_as_asked() -> None:
    machine = Machine()
    figures = repeated(
        {"quick": machine.work("quick", 1e-5)}, num_rounds=4, turn_s=0.05, clock=machine.clock
    )
    assert figures["quick"].median == pytest.approx(1e-5)
    assert machine.now == pytest.approx(4 * 0.05, rel=0.5)


def test_one_disturbed_round_does_not_move_the_result() -> None:
    quiet, disturbed = Figures((1.0, 1.0, 1.0)), Figures((2.0, 90.0, 2.0))
    assert disturbed.median == 2.0
    assert disturbed.ratio(quiet) == 2.0


def test_a_first_call_is_of_what_was_not_there_before_and_its_making_is_not_timed() -> None:
    machine = Machine()
    made: list[int] = []

    def maker(number: int):
        made.append(number)
        machine.now += 100
        return machine.work("first", 0.5)

    figures = first_calls({"one": maker}, num_rounds=3, clock=machine.clock)
    assert figures["one"].rounds == (0.5, 0.5, 0.5)
    assert made == [0, 1, 2, 3]


def test_bytes_are_those_of_objects_that_stay() -> None:
    used = 1000

    def make() -> object:
        nonlocal used
        used += 64
        return object()

    figures = bytes_each({"one": make}, num_rounds=2, num_objects=10, resident=lambda: used)
    assert figures["one"].rounds == (64.0, 64.0)


def test_the_process_grows_by_what_is_kept() -> None:
    size = 33 << 20  # large enough to be mapped as pages of its own
    figures = bytes_each({"one": lambda: b"x" * size}, num_rounds=1, num_objects=2)
    assert figures["one"].median == pytest.approx(size, rel=0.2)
