"""From a seed to a program: statements are drawn until one device accepts ten of them.

A statement is accepted if it runs, and if its results are finite, not too many, and stable: from
values that are a little off, by more than another order of summation makes, come results that are
a little off. That leaves out ties, kinks and jumps, where nothing can be compared.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.dtensor_core.programs.draw import MOST_ELEMENTS, Draw
from tests.dtensor_core.programs.operators import FAMILIES, in_place
from tests.dtensor_core.programs.program import Program, Statement
from tests.dtensor_core.programs.run import EXACT, ROUGH, on_one_device, outcome, same

LENGTH = 10
_LARGEST = 1e4
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)


def generate(seed: int) -> Program:
    """The program of a seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in range(100):
            program = _Making(Draw(seed * 100 + attempt)).program()
            if program is not None:
                return program
    raise AssertionError(f"seed {seed} makes no program")


class _Making:
    """A program in the making, and its values on two devices, one of them a little off."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.tolerance = (ROUGH if draw.rough else EXACT) / 10
        self.statements: list[Statement] = []
        self.nudged: dict[str, Any] = {}
        self.count = 0

    def program(self) -> Program | None:
        """The program, or None if none was found with these dice."""
        families, weights = list(FAMILIES), list(FAMILIES.values())
        for _ in range(LENGTH * 8):
            family = self.draw.dice.choices(families, weights)[0]
            code = family(self.draw)
            try:
                self.add(code, in_place=family is in_place)
            except _REFUSALS:
                if family is in_place:
                    self.replay()
            if len(self.statements) == LENGTH:
                return self.finished()
        return None

    def add(self, code: str, *, in_place: bool) -> None:
        """Add a statement, whose results are accepted."""
        self.know_what_is_given()
        compiled = Statement((), code).compiled()
        first, second = (outcome(compiled, v) for v in (self.draw.values, self.nudged))
        several = isinstance(first, (list, tuple))
        exact, nudged = (list(each) if several else [each] for each in (first, second))
        for one, other in zip(exact, nudged, strict=True):
            if not isinstance(one, torch.Tensor) or one.numel() > MOST_ELEMENTS:
                raise ValueError("not a result for a program")
            if one.is_floating_point() and not bool((one.abs() < _LARGEST).all()):
                raise ValueError("values that are too large")
            same(other, one, self.tolerance)
        targets = tuple(f"v{self.count + index}" for index in range(len(exact)))
        self.count += len(targets)
        self.draw.values.update(zip(targets, exact, strict=True))
        self.nudged.update(zip(targets, nudged, strict=True))
        self.statements.append(Statement(targets, code, several, in_place))

    def know_what_is_given(self) -> None:
        for given in self.draw.given[len([n for n in self.nudged if n[0] == "a"]) :]:
            whole = given.whole(self.tolerance / 100)
            self.nudged[given.name] = whole.requires_grad_(given.requires_grad)

    def replay(self) -> None:
        """Undo what a statement wrote that was not accepted after all."""
        for values, nudge in ((self.draw.values, 0.0), (self.nudged, self.tolerance / 100)):
            values.clear()
            for given in self.draw.given:
                values[given.name] = given.whole(nudge).requires_grad_(given.requires_grad)
            for statement in self.statements:
                result = outcome(statement.compiled(), values)
                results = result if statement.several else [result]
                values.update(zip(statement.targets, results, strict=True))

    def finished(self) -> Program | None:
        """The program, with the gradients that are asked for, if those are stable too."""
        draw = self.draw
        smooth = [
            name for name, value in draw.values.items() if name[0] == "v" and value.requires_grad
        ]
        wanted = tuple(smooth[-2:]) if draw.chance(0.8) else ()
        rough = any(value.dtype is torch.float32 for value in draw.values.values())
        program = Program(
            draw.mesh_shape, tuple(draw.given), tuple(self.statements), wanted, rough
        ).without(set())
        try:
            exact, nudged = on_one_device(program), on_one_device(program, self.tolerance / 100)
            for (_, one), (_, other) in zip(exact, nudged, strict=True):
                if one.is_floating_point() and not bool((one.abs() < _LARGEST * 100).all()):
                    return None
                same(other, one, self.tolerance)
        except _REFUSALS:
            return None
        return program
