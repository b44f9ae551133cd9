"""The analyses of one run, each computed once, when it is first asked for."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import together

OF_THE_WHOLE = ("consistency",)
"""What a part of a run cannot tell: a call outside of it is not a missing one."""


class Answers:
    """`answers["by_kind"]` is that analysis of `frames`; some are of `whole`, where it is given."""

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
        """What could be better, alike findings as one."""
        return together(self["findings"])
