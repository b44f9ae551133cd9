"""Run torch's operator database on DTensors over ranks that are threads.

Every sample of an operator runs once on full tensors and once for each combination of its
arguments' placements. The results are compared on every rank.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from dtensor_core import DTensor, observe
from dtensor_core.dispatch.fallback import NO_RULE
from dtensor_core.testing import RankFailure, kept_mesh, run_threads
from tests.opdb.cases import Case, cases
from tests.opdb.derivatives import BY_NAME, one_level
from tests.opdb.judge import difference
from tests.opdb.layouts import Layouts, laid_out, layouts_of
from tests.opdb.runs import Run

PASS, WRONG, DESYNC, ERROR = "pass", "wrong values", "desynchronised", "error"
# Partial values that the user passes are not reduced in place, as in torch.
REFUSED = "refused"
# A run takes milliseconds; one that lasts longer than this hangs.
DEADLINE_S = 20


@dataclass
class Tally:
    """Outcomes of the combinations of one operator, and the samples that were left out."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
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
    """Run one operator on at most `samples` samples, in at most `combinations` layouts each."""
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


def _outcome(case: Case, run: Run, layout: Layouts, turn: int, tally: Tally) -> tuple[str, str]:
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

    def hear(reason: observe.Reason) -> None:
        if reason.note == NO_RULE:
            tally.missing.add(reason.operator)

    with warnings.catch_warnings(), observe.listening(hear):
        warnings.simplefilter("ignore")
        try:
            results = run_threads(body, torch.Size(run.mesh).numel(), timeout_s=DEADLINE_S)
        except RankFailure as failure:
            return DESYNC, str(failure)[:600].replace("\n", " | ")
    return judged(case, results, tally)


def _full(leaf: Any) -> Any:
    return leaf.full_tensor().detach() if isinstance(leaf, DTensor) else leaf


def judged(case: Case, results: Sequence[Any], tally: Tally) -> tuple[str, str]:
    errors = [each for each in results if isinstance(each, Exception)]
    if errors:
        text = f"{type(errors[0]).__name__}: {str(errors[0])[:500]}".replace("\n", " | ")
        if len(errors) < len(results):
            return DESYNC, text
        return (REFUSED if "placement changes are not supported" in text else ERROR), text
    problem, rounded = difference(case, results)
    tally.rounded += rounded
    return (WRONG, problem) if problem else (PASS, "")


def _reason(text: str) -> str:
    """Extract the reason from the text of an error, or its beginning."""
    why = re.search(r"[Ww]hy: (.*?)( \||$)", text)
    return why.group(1) if why else text[:80]
