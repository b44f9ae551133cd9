"""A run in memory that is analysed in parts, as a stored one is: `split_run(frames, ...)`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.parts import PartedRun, RunPart
from commtrace.schema import EVENT_TABLES, TABLES

OF_RANK = (
    *EVENT_TABLES,
    "ranks",
    "steps",
    "host_events",
    "pipeline_actions",
    "later_waits",
    "communicators",
    "removed_calls",
)
SMALL = tuple([name for name in TABLES if name not in EVENT_TABLES])


class SplitRun(PartedRun):
    """A run with a part for the first rank, and one for the others."""

    def __init__(self, frames: Frames) -> None:
        super().__init__(
            frames.run,
            {name: getattr(frames, name) for name in SMALL},
            frames.path,
            frames.settings,
        )
        vars(self).update(original=frames)

    @property
    def num_parts(self) -> int:
        return len(self._parts)

    def part(self, number: int) -> RunPart:
        return self._parts[number]

    @cached_property
    def _parts(self) -> list[RunPart]:
        frames: Any = vars(self)["original"]
        tables = [getattr(frames, name) for name in OF_RANK]
        ranks = sorted(set().union(*(table["rank"] for table in tables)))
        return [
            self._part(
                number,
                **{
                    name: _own(getattr(frames, name), getattr(frames, name)["rank"].isin(some))
                    for name in OF_RANK
                },
            )
            for number, some in enumerate((ranks[:1], ranks[1:]))
        ]

    def _part(self, number: int, **tables: pd.DataFrame) -> RunPart:
        frames: Any = vars(self)["original"]
        empty = {name: getattr(frames, name)[:0] for name in EVENT_TABLES}
        small = {name: getattr(frames, name) for name in SMALL}
        return RunPart(
            run=frames.run,
            path=frames.path,
            settings=frames.settings,
            parent=self,
            number=number,
            **(empty | small | tables),
        )


def _own(table: pd.DataFrame, is_own: pd.Series) -> pd.DataFrame:
    """Some rows, with categories of their own."""
    rows = table[is_own].copy()
    for name in rows.columns[rows.dtypes == "category"]:
        rows[name] = rows[name].cat.remove_unused_categories()
    return rows
