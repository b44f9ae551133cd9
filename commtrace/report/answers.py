"""Lazy cache of the analyses of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pandas as pd

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import grouped
from commtrace.analyze.run.analysis import typed
from commtrace.report.detail import Detail, detail_of
from commtrace.report.evidence import evidence_of_problems
from commtrace.report.replayed_part import replayed_part

MAX_CARDS = 100
"""Largest number of findings, and of problems, that a page shows."""

OF_THE_WHOLE = ("consistency", "divergences")
"""Analyses that are meaningless for a part of a run: a call outside of it is not missing."""

REPLAYS = "whatif"
"""Analysis of replays, which is computed for some steps of a run of many calls."""
_NO_CHANGES = typed(pd.DataFrame(), CATALOG[REPLAYS].columns)


class Answers:
    """Results of the analyses of `frames` by name: `answers["by_kind"]`.

    Those in `OF_THE_WHOLE` are computed for `whole`, the complete run, if it is given. `ranks` are
    the ranks whose calls the page shows, by default all.
    """

    def __init__(
        self, frames: Frames, whole: Frames | None = None, ranks: Sequence[int] | None = None
    ) -> None:
        self.frames = frames
        self.whole = frames if whole is None else whole
        self.ranks = ranks
        self._tables: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._tables:
            self._tables[name] = self._computed(name)
        return self._tables[name]

    def _computed(self, name: str) -> pd.DataFrame:
        frames = self.whole if name in OF_THE_WHOLE else self.frames
        if name == REPLAYS:
            part = replayed_part(frames).frames
            return _NO_CHANGES.copy() if part is None else CATALOG[name].function(part)
        return CATALOG[name].function(frames)

    def compute(self, names: Sequence[str]) -> None:
        """Compute several analyses."""
        self._tables |= {name: self._computed(name) for name in names}

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The findings, with similar findings combined."""
        return grouped(self.frames)

    @cached_property
    def evidence(self) -> list[str]:
        """Calls of each of the first problems, as `rank:id` separated by commas."""
        return evidence_of_problems(self.frames, self["consistency"].head(MAX_CARDS))

    @cached_property
    def detail(self) -> Detail:
        """The calls that the page shows individually."""
        of_findings = self.findings["evidence"].head(MAX_CARDS).tolist()
        named = [text.split(",") for text in (*self.evidence, *of_findings) if text]
        return detail_of(self.frames, self.ranks, named)
