"""Outcomes of many programs: counts by operator and family, and shrunk failures."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core.operators import table
from tests.programs.generate import generate
from tests.programs.given import text_of
from tests.programs.program import Program
from tests.programs.run import check, is_rounding, on_one_device
from tests.programs.shrink import shrink


@dataclass
class Tally:
    """Counts of programs and their parts; `failures` are texts with their programs."""

    programs: int = 0
    statements: int = 0
    differentiated: int = 0
    raising: int = 0
    unstable: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class _Families(TorchDispatchMode):
    """Count the operators that run, by their family of rules."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[family_of(func)] += 1
        return func(*args, **(kwargs or {}))


def family_of(op: Any) -> str:
    """Return the family of rules that serves an operator, or "no rule"."""
    row = table.row_of(op)
    if row is None:
        return "no rule"
    for name, family in table.FAMILIES.items():
        if any(row is each for each in family.ROWS.values()):
            return name
    return "pointwise"


def tally_of(seeds: Sequence[int]) -> Tally:
    """Run the programs of these seeds and tally their outcomes."""
    tally = Tally()
    for seed in seeds:
        program = None
        try:
            program = generate(seed, tally.refused)
            count(tally, program)
            _judge(tally, seed, program)
        except Exception as error:  # of the harness: some cannot be pickled to another process
            script = program.script() if program else ""
            tally.failures.append((seed, f"{type(error).__name__}: {error}", script))
    return tally


def count(tally: Tally, program: Program) -> None:
    """Count the parts of a program."""
    tally.programs += 1
    tally.statements += len(program.statements)
    tally.differentiated += bool(program.differentiated)
    for statement in program.statements:
        tally.raising += statement.raises
        if not statement.raises:
            tally.operators.update(statement.operators())
    for given in program.given:
        words = re.sub(r"\d+", "", text_of(given.placements)).split()
        kinds = [given.values, given.memory] if given.sample is None else ["sampled"]
        tally.layouts.update([*words, *kinds, str(given.dtype).removeprefix("torch.")])
        dims = [getattr(p, "dim", None) for p in given.placements]
        tally.layouts["nested"] += len(dims) - dims.count(None) > len({*dims} - {None})
        tally.layouts["empty"] += 0 in given.shape
    tally.layouts[f"mesh {'x'.join(map(str, program.mesh_shape))}"] += 1
    with _Families() as counted, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_one_device(program)
    tally.families += counted.found


def _judge(tally: Tally, seed: int, program: Program) -> None:
    try:
        _, left_out = check(program)
        tally.left_out.update(left_out)
        return
    except Exception as error:
        found = error
    if is_rounding(found):
        tally.unstable += 1
        return
    small = shrink(program, fails_alike(found))
    tally.failures.append((seed, str(failure(small) or found), small.script()))


def failure(program: Program, run: Callable[..., Any] | None = None) -> Exception | None:
    """Return the error of a program, or None."""
    try:
        check(program, *([run] if run else []))
    except Exception as error:
        return error
    return None


def fails_alike(error: Exception) -> Callable[[Program], bool]:
    """Return a predicate that is true for a smaller program that fails with the same error."""

    def fails(program: Program) -> bool:
        try:
            on_one_device(program)
        except Exception:
            return False
        found = failure(program)
        if type(found) is not type(error):
            return False
        return not is_rounding(found)

    return fails
