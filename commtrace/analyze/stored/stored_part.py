"""Part of a stored run, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from commtrace.analyze.cached_per_run import OF_RANKS, sort_of
from commtrace.analyze.frame import Frames
from commtrace.analyze.parts import Answer, RunPart
from commtrace.analyze.stored.narrowed_tables import Wanted

if TYPE_CHECKING:
    from commtrace.analyze.stored.stored_run import StoredRun


class StoredPart(RunPart):
    """Part of a stored run, whose rows are read when they are used."""

    def of_each_call(self, answer: Answer, compute: Answer) -> Any:
        """Return a row per call of this part: those that are kept, or computed if it may do so."""
        if sort_of(answer) == self.sort and not self.parent.has_rows(answer):
            return compute(self)
        return self._once(answer, partial(self.parent.rows_of, answer, self))

    def of_each_part(self, answer: Answer, compute: Answer) -> Any:
        """Return a table of this part, computed once and kept."""
        kept = self._run.part_tables.kept
        return self._once(
            answer, partial(kept, name_of(answer), self.number, partial(compute, self))
        )

    def _once(self, answer: Answer, read: Callable[[], Any]) -> Any:
        """Return what is kept of this part, which is read once."""
        if answer not in self._kept:
            self._kept[answer] = read()
        return self._kept[answer]

    @cached_property
    def _kept(self) -> dict[Answer, Any]:
        return {}

    def narrowed(
        self,
        ranks: Collection[int] | None = None,
        rows: pd.Index | None = None,
        stretches: Sequence[tuple[int, int]] | None = None,
    ) -> Frames:
        """Return a part with the given rows, of which the row groups that have them are read."""
        if self.sort != OF_RANKS:
            return self
        return self._run.narrowed_part(
            self.number, Wanted(ranks, rows, stretches, self.parent.start_ns)
        )

    @property
    def _run(self) -> StoredRun:
        return cast("StoredRun", self.parent)


def name_of(answer: Answer) -> str:
    """Return the name under which the rows or tables of an answer are kept."""
    return f"{answer.__module__.rpartition('.')[2]}.{answer.__name__}"
