"""Promises of `commtrace whatif` for models that train as they should.

No change can save much there, so that what it lists is what it should not promise, apart from
limits and ranges that begin at nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commtrace.analyze import load
from commtrace.analyze.replay.words import LIMIT
from commtrace.analyze.whatif.table import best_changes
from dtensor_core.testing import run_processes
from tests.commtrace.analyze.findings.test_healthy_programs import (
    fully_sharded,
    record_all,
    replicated,
)

MOST_PROMISED = 0.03
"""Part of a step that a change of a healthy program may save."""
WRAPPERS = (replicated, fully_sharded)
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Promise:
    """A change that is said to save more than `MOST_PROMISED`.

    Attributes:
        program: Model and wrapper.
        change: Text of the change.
        share: Part of the step that it saves, at least.
    """

    program: str
    change: str
    share: float


def record_models(folder: Path) -> None:
    """Record all models under each wrapper."""
    for wrap in WRAPPERS:
        own = folder / wrap.__name__
        own.mkdir(parents=True, exist_ok=True)
        run_processes(record_all, 2, wrap, str(own), timeout_s=TIMEOUT_S)


def promises(folder: Path) -> Iterator[Promise]:
    """Yield what is promised for the recorded models."""
    for wrap in WRAPPERS:
        for path in sorted((folder / wrap.__name__).glob("*.json")):
            table = best_changes(load(path))
            table = table[(table["share"] > MOST_PROMISED) & (table["bound"] != LIMIT)]
            for row in table.itertuples():
                yield Promise(f"{path.stem}, {wrap.__name__}", str(row.text), float(row.share))  # type: ignore[arg-type] - a number
