"""Generate a program from a seed: draw statements until a single device accepts enough of them.

A statement is accepted if it runs, and if its results are not too large, finite (in programs
without special values) and stable. Stable means that inputs perturbed by more than another order
of summation would lead to slightly different results only. This excludes ties, kinks and jumps,
where a comparison is impossible. Some statements that torch refuses are kept: ranks must refuse
them, too. Each seed tries operators of the database of its own first, so that all of them are used.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch

from tests.programs import lists, operators, storage
from tests.programs.database import operators as database
from tests.programs.draw import MOST_ELEMENTS, Draw
from tests.programs.program import PRECISIONS, Program, Statement, names_in
from tests.programs.run import as_meta, on_one_device, outcome, same
from tests.programs.sampling import sampled_call

SHORTEST, LONGEST = 5, 30
# Operators of the database that a seed tries before all others; the seeds take turns.
OWN = 5
_LARGEST = 1e4
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError, NotImplementedError)
_FAMILIES = {
    **operators.FAMILIES,
    storage.other_dtype: 2,
    storage.strided: 3,
    storage.diagonals: 2,
    storage.written_view: 3,
    storage.read: 1,
    **lists.FAMILIES,
}
_MOST_RAISING = 3


def _is_repeated(d: Draw, code: str) -> bool:
    return ".expand(" in code or any(0 in each.stride() for each in _read(d, code))


def _has_gaps(d: Draw, code: str) -> bool:
    return not all(each.is_contiguous() for each in _read(d, code))


def _is_not_finite(d: Draw, code: str) -> bool:
    return not all(bool(each.isfinite().all()) for each in _read(d, code))


def _is_empty(d: Draw, code: str) -> bool:
    return any(0 in each.shape for each in _read(d, code))


def _read(d: Draw, code: str) -> list[torch.Tensor]:
    """The tensors that a statement reads."""
    tensors = d.tensors()
    return [tensors[name] for name in names_in(code) if name in tensors]


# Kernels of the CPU that read memory beyond a tensor or between its elements, those that end the
# process, or raise at times, if a value is not finite, those that find a basis, or a sign, in
# rounding alone, and strides of tensors without elements, which differ between kernels.
_UNRELIABLE = (
    ("median|lowrank|det", _is_repeated),
    ("native_group_norm", _has_gaps),
    ("eigvals|svd|nuc|pinv|matrix_rank|linalg.cond|lstsq", _is_not_finite),
    (r"\.view\(torch\.", _is_empty),
)


class Unfit(ValueError):
    """A result that cannot be compared or used further."""


@lru_cache(maxsize=1)
def _turns() -> Sequence[str]:
    """The operators of the database in an arbitrary fixed order."""
    names = sorted(database())
    random.Random(0).shuffle(names)
    return names


def generate(seed: int, refused: Counter[tuple[str, str]] | None = None) -> Program:
    """Generate the program of a seed; `refused` counts the reasons for rejecting operators."""
    own = [_turns()[(seed * OWN + n) % len(_turns())] for n in range(OWN)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in range(100):
            making = _Making(Draw(seed * 100 + attempt), own, refused)
            program = making.program()
            if program is not None:
                return program
    raise AssertionError(f"seed {seed} makes no program")


class _Making:
    """An unfinished program, and its values on two devices, one of them perturbed."""

    def __init__(
        self, draw: Draw, own: Sequence[str], refused: Counter[tuple[str, str]] | None
    ) -> None:
        self.draw = draw
        self.own = own
        self.refused = Counter() if refused is None else refused
        self.statements: list[Statement] = []
        self.nudged: dict[str, Any] = {}
        self.count = 0
        self.length = draw.dice.randint(SHORTEST, LONGEST)
        self.precision = Program((), (), (), (), draw.floating).precision

    def program(self) -> Program | None:
        """Return the program, or None if these random choices give none."""
        own = list(self.own) * 4
        families, weights = list(_FAMILIES), list(_FAMILIES.values())
        for _ in range(self.length * 12):
            if len(self.statements) >= self.length:
                return self.finished()
            if own and self.draw.chance(0.5):
                name = own.pop(0)
                if self.try_operator(name):
                    own = [each for each in own if each != name]
            elif self.draw.chance(0.3):
                self.try_operator(self.draw.one_of(_turns()))
            else:
                family = self.draw.dice.choices(families, weights)[0]
                try:
                    code = family(self.draw)
                except RuntimeError:  # it looked at a view that a write has cut off
                    continue
                self.try_code(code)
        return None

    def try_operator(self, name: str) -> bool:
        """Add a call of an operator of the database, if any is accepted."""
        for _ in range(3):
            try:
                reason = self.try_code(sampled_call(self.draw, name))
            except (ValueError, RuntimeError) as error:
                reason = str(error)
            if not reason:
                return True
            self.refused[name, reason] += 1
        return False

    def try_code(self, code: str) -> str:
        """Add a statement if it is accepted; returns the reason if it is not."""
        in_place = _writes(code)
        try:
            self.add(code, in_place=in_place)
        except Unfit as error:
            reason = str(error)
        except _REFUSALS as error:
            reason = f"{type(error).__name__}: {str(error)[:80]}"
            self.refuse(code, in_place)
        else:
            return ""
        if in_place:
            self.replay()
        return reason

    def refuse(self, code: str, in_place: bool) -> None:
        """Keep, at times, a statement that writes nothing and that torch refuses whatever the data.

        An error that depends on data is raised only by the ranks that hold those data, as
        documented.
        """
        raising = sum(statement.raises for statement in self.statements)
        if in_place or raising >= _MOST_RAISING or not self.draw.chance(0.1):
            return
        metas = {name: as_meta(value) for name, value in self.draw.values.items()}
        try:
            outcome(Statement((), code).compiled(), metas)
        except Exception:
            self.statements.append(Statement((f"e{self.count}",), code, raises=True))
            self.count += 1

    def add(self, code: str, *, in_place: bool) -> None:
        """Add a statement, whose results are accepted."""
        if any(re.search(kernel, code) and wrong(self.draw, code) for kernel, wrong in _UNRELIABLE):
            raise Unfit("torch's kernel is not reliable")
        self.know_what_is_given()
        compiled = Statement((), code).compiled()
        shapes = {name: value.shape for name, value in self.draw.tensors().items()}
        first, second = (outcome(compiled, v) for v in (self.draw.values, self.nudged))
        several = isinstance(first, (list, tuple)) and any(
            isinstance(each, torch.Tensor) for each in first
        )
        exact, nudged = (list(each) if several else [each] for each in (first, second))
        for one, other in zip(exact, nudged, strict=True):
            self.check(one, other)
        if any(self.draw.values[name].shape != shape for name, shape in shapes.items()):
            raise Unfit("what is written changes its shape")
        targets = tuple(f"v{self.count + index}" for index in range(len(exact)))
        self.count += len(targets)
        self.draw.values.update(zip(targets, exact, strict=True))
        self.nudged.update(zip(targets, nudged, strict=True))
        self.statements.append(Statement(targets, code, several, in_place))

    def check(self, one: Any, other: Any) -> None:
        """Raise Unfit if a result cannot be part of the program."""
        if not isinstance(one, torch.Tensor):
            if one != other or not isinstance(
                one, (bool, int, float, str, list, tuple, type(None))
            ):
                raise Unfit("not a result for a program")
            return
        if one.layout is not torch.strided or one.is_quantized or one.is_nested:
            raise Unfit(f"the result is {one.layout}")
        if one.numel() > MOST_ELEMENTS:
            raise Unfit("too many elements")
        if one.is_floating_point() or one.is_complex():
            if (
                one.dtype.itemsize == 1
                or torch.finfo(one.dtype).eps > torch.finfo(self.draw.floating).eps
            ):
                raise Unfit(f"a result of {one.dtype}")
            size = one.detach().abs().double()
            if self.draw.kind == "special":
                size = size.nan_to_num(0, 0, 0)
            if not bool((size < _LARGEST).all()):
                raise Unfit("values that are too large")
        try:
            same(other, one, self.precision.stable)
        except AssertionError:
            raise Unfit("not stable") from None

    def know_what_is_given(self) -> None:
        for given in self.draw.given[len([n for n in self.nudged if n[0] == "a"]) :]:
            full = given.full(self.precision.nudge)
            self.nudged[given.name] = full.requires_grad_(given.requires_grad)

    def replay(self) -> None:
        """Undo the writes of a statement that was rejected afterwards."""
        for values, nudge in ((self.draw.values, 0.0), (self.nudged, self.precision.nudge)):
            values.clear()
            for given in self.draw.given:
                values[given.name] = given.full(nudge).requires_grad_(given.requires_grad)
            for statement in self.statements:
                if statement.raises:
                    continue
                result = outcome(statement.compiled(), values)
                results = result if statement.several else [result]
                values.update(zip(statement.targets, results, strict=True))

    def finished(self) -> Program | None:
        """Return the program with its gradients, or with fewer or none if those are not stable."""
        draw = self.draw
        smooth = [n for n, value in draw.tensors().items() if n[0] == "v" and value.requires_grad]
        wanted = tuple(smooth[-3:]) if draw.chance(0.8) else ()
        for differentiated in (wanted, wanted[-1:], ()):
            program = Program(
                draw.mesh_shape,
                tuple(draw.given),
                tuple(self.statements),
                differentiated,
                narrowest(draw.tensors().values()),
            ).without(set())
            if self.is_stable(program):
                return program
        return None

    def is_stable(self, program: Program) -> bool:
        nudge = self.precision.nudge
        try:
            exact, nudged = on_one_device(program), on_one_device(program, nudge)
            for (text, one), (_, other) in zip(exact, nudged, strict=True):
                if not isinstance(one, torch.Tensor):
                    continue
                limit = _LARGEST * 100 if text.startswith("gradient") else float("inf")
                if self.draw.kind != "special" and not bool((one.abs().double() <= limit).all()):
                    return False
                same(other, one, self.precision.stable)
        except Exception:
            return False
        return True


def narrowest(tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """The least precise floating type among tensors; a complex type counts as its parts' type."""
    kinds = {each.dtype.to_real() if each.is_complex() else each.dtype for each in tensors}
    found = [dtype for dtype in PRECISIONS if dtype in kinds]
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _writes(code: str) -> bool:
    """Return whether a statement may write to the value of a variable."""
    return any(mark in code for mark in ("op_(", "out=", "_(", ".data"))
