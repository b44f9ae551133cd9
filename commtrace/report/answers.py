"""Lazy cache of the analyses of one run."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import grouped

OF_THE_WHOLE = ("consistency",)
"""Analyses that are meaningless for a part of a run: a call outside of it is not a missing one."""


class Answers:
    """Results of the analyses of `frames` by name: `answers["by_kind"]`.

    Those in `OF_THE_WHOLE` are computed for `whole`, the complete run, if it is given.
    """

    def __init__(self, frames: Frames, whole: Frames | None = None) -> None:
        self.frames = frames
        self.whole = frames if whole is None else whole
        self._tables: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._tables:
            frames = self.whole if name in OF_THE_WHOLE else self.frames
            self._tables[name] = CATALOG[name].function(frames)
        return self._tables[name]

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The findings, similar ones combined."""
        return grouped(self["findings"])
