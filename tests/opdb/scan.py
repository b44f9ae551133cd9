"""Run torch's operator database on DTensors over ranks that are threads.

Every sample of an operator runs once on full tensors and once for each combination of its
arguments' placements. The results are compared on every rank.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from dtensor_core import DTensor, observe
from dtensor_core.dispatch.special.fallback import NO_RULE
from dtensor_core.testing import RankFailure, kept_mesh, run_threads
from tests.opdb.cases import Case, cases
from tests.opdb.derivatives import BY_NAME, one_level
from tests.opdb.judge import difference
from tests.opdb.layouts import Layouts, laid_out, layouts_of
from tests.opdb.refusals import why_refused
from tests.opdb.runs import Run

PASS = "pass"
WRONG, DESYNC, ERROR = BAD = "wrong values", "desynchronised", "error"
# All ranks raise an error of `refusals`.
REFUSED = "refused"
# A run takes milliseconds beside the time of torch's kernels; one that lasts longer hangs.
DEADLINE_S = 20
# Ranks share the cores with other processes, and time one call on full tensors each.
_SLOWER = 2


@dataclass
class Tally:
    """Outcomes of the combinations of an operator, and the samples that were left out."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    rounded: int = 0
    missing: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        """ "all", "some" or "none" of the combinations passed, or "untried"."""
        total = sum(self.outcomes.values()) - self.outcomes[REFUSED]
        passed = self.outcomes[PASS]
        return (
            "untried" if not total else "all" if passed == total else "some" if passed else "none"
        )


def scan(info: Any, run: Run, *, samples: int, combinations: int) -> Tally:
    """Run an operator on at most `samples` samples, in at most `combinations` layouts each."""
    tally = Tally()
    chooser = random.Random(0)
    # torch's own function captures a stack per device type, which takes half as long as a call.
    with (
        patch.object(torch, "manual_seed", torch.default_generator.manual_seed),
        one_level() if run.variant in BY_NAME else nullcontext(),
    ):
        for case in cases(info, run, samples, tally.left_out):
            for turn, layout in enumerate(layouts_of(case.tensors, run, chooser, combinations)):
                outcome, text = _outcome(case, run, layout, turn, tally)
                _note(tally, case, layout, outcome, text)
    return tally


def _note(tally: Tally, case: Case, layout: Layouts, outcome: str, text: str) -> None:
    tally.outcomes[outcome] += 1
    if outcome not in (PASS, REFUSED):
        shapes = [tuple(t.shape) for t in case.tensors]
        texts = [" ".join(map(str, each)) for each in layout]
        tally.failures.append(f"{outcome}: {shapes} {texts} {case.text}: {text}")
    if outcome == ERROR:
        tally.reasons[_reason(text)] += 1
    if outcome == REFUSED:
        tally.refusals[why_refused(case.info.name, text) or ""] += 1


def _outcome(case: Case, run: Run, layout: Layouts, turn: int, tally: Tally) -> tuple[str, str]:
    def hear(reason: observe.Reason) -> None:
        if reason.note == NO_RULE:
            tally.missing.add(reason.operator)

    with warnings.catch_warnings(), observe.listening(hear):
        warnings.simplefilter("ignore")
        try:
            results = _on_ranks(case, run, layout, turn)
        except RankFailure as failure:
            return DESYNC, str(failure)[:600].replace("\n", " | ")
        return judged(case, results, tally, partial(_agrees_in_wide, case, run, layout, turn))


def _on_ranks(case: Case, run: Run, layout: Layouts, turn: int) -> Sequence[Any]:
    """Return the result of each rank, or its exception."""

    def body() -> Any:
        mesh = kept_mesh(run.mesh)
        numbers = iter(layout)
        leaves = [
            laid_out(leaf, mesh, next(numbers)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in case.leaves
        ]
        try:
            return [_full(leaf) for leaf in case.run(*case.arguments(leaves), turn)]
        except Exception as error:
            return error

    return run_threads(body, torch.Size(run.mesh).numel(), timeout_s=deadline_s(case, run))


def deadline_s(case: Case, run: Run) -> float:
    """Return the time for all ranks, which may share one core: each may call the full kernels."""
    return DEADLINE_S + _SLOWER * torch.Size(run.mesh).numel() * case.seconds


def _agrees_in_wide(case: Case, run: Run, layout: Layouts, turn: int) -> bool:
    """True if the ranks' results in wide numbers are torch's."""
    wide = case.in_wide_numbers()
    if wide is None:
        return False
    try:
        results = _on_ranks(wide, run, layout, turn)
    except RankFailure:
        return False
    if any(isinstance(each, Exception) for each in results):
        return False
    return not difference(wide, results)[0]


def _full(leaf: Any) -> Any:
    return leaf.full_tensor().detach() if isinstance(leaf, DTensor) else leaf


def judged(
    case: Case, results: Sequence[Any], tally: Tally, agrees_in_wide: Callable[[], bool]
) -> tuple[str, str]:
    """Return the outcome of a call and its text, and count what rounding explains."""
    errors = [each for each in results if isinstance(each, Exception)]
    if errors:
        text = f"{type(errors[0]).__name__}: {str(errors[0])[:500]}".replace("\n", " | ")
        if len(errors) < len(results):
            return DESYNC, text
        return (REFUSED if why_refused(case.info.name, text) else ERROR), text
    problem, rounded = difference(case, results, agrees_in_wide)
    tally.rounded += rounded
    return (WRONG, problem) if problem else (PASS, "")


def _reason(text: str) -> str:
    """Extract the reason from the text of an error, or its beginning."""
    why = re.search(r"[Ww]hy: (.*?)( \||$)", text)
    return why.group(1) if why else text[:80]
