"""A run in memory that is analysed in parts, like a stored run: `split_run(frames, ...)`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from commtrace.analyze.cached_per_run import OF_COLLECTIVES, OF_RANKS, sort_of
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import TRANSFERS
from commtrace.analyze.parts import Answer, PartedRun, RunPart
from commtrace.analyze.shared_passes import Question
from commtrace.schema import EVENT_TABLES, TABLES

OF_RANK = (
    *EVENT_TABLES,
    "ranks",
    "steps",
    "host_events",
    "pipeline_actions",
    "communicators",
    "removed_calls",
)
SMALL = tuple([name for name in TABLES if name not in EVENT_TABLES])


class SplitRun(PartedRun):
    """A run with a part for the first rank, another for the others, and two for its collectives."""

    kept: dict[Answer, Any]

    def __init__(self, frames: Frames) -> None:
        super().__init__(
            frames.run,
            {name: getattr(frames, name) for name in SMALL},
            frames.path,
            frames.settings,
        )
        vars(self).update(original=frames, kept={})

    def num_parts(self, sort: str) -> int:
        return len(self._of(sort))

    def part(self, sort: str, number: int) -> RunPart:
        return self._of(sort)[number]

    def has_rows(self, answer: Answer) -> bool:
        return answer in self.kept

    def keep_rows(self, answer: Answer) -> None:
        sort = sort_of(answer)
        assert sort is not None
        self.kept[answer] = pd.concat(self.ask(Question(sort, answer, ()))).sort_index()

    def read_rows(self, answer: Answer, part: Frames | None) -> Any:
        rows = self.kept[answer]
        return rows if part is None else rows.loc[part.comm.index]

    def _of(self, sort: str) -> list[RunPart]:
        return self._of_ranks if sort == OF_RANKS else self._of_collectives

    @cached_property
    def _of_ranks(self) -> list[RunPart]:
        frames: Any = vars(self)["original"]
        tables = [getattr(frames, name) for name in OF_RANK]
        ranks = sorted(set().union(*(table["rank"] for table in tables)))
        return [
            self._part(
                OF_RANKS,
                number,
                **{
                    name: _own(getattr(frames, name), getattr(frames, name)["rank"].isin(some))
                    for name in OF_RANK
                },
            )
            for number, some in enumerate((ranks[:1], ranks[1:]))
        ]

    @cached_property
    def _of_collectives(self) -> list[RunPart]:
        comm: Any = vars(self)["original"].comm
        is_transfer = comm["kind"].isin(TRANSFERS)
        # Transfers of a group are together; collectives of a group, by their number in it.
        seq = comm["seq"].where(~is_transfer, -1)
        if is_transfer.any():
            seq = seq.where(~comm["group"].isin(comm["group"][is_transfer].unique()), -1)
        place = (comm["group"].cat.codes.astype("int64") + seq) % 2
        return [self._part(OF_COLLECTIVES, each, comm=_own(comm, place == each)) for each in (0, 1)]

    def _part(self, sort: str, number: int, **tables: pd.DataFrame) -> RunPart:
        frames: Any = vars(self)["original"]
        empty = {name: getattr(frames, name)[:0] for name in EVENT_TABLES}
        small = {name: getattr(frames, name) for name in SMALL}
        return RunPart(
            run=frames.run,
            path=frames.path,
            settings=frames.settings,
            parent=self,
            sort=sort,
            number=number,
            **(empty | small | tables),
        )


def _own(table: pd.DataFrame, is_own: pd.Series) -> pd.DataFrame:
    """Some rows, with categories of their own."""
    rows = table[is_own].copy()
    for name in rows.columns[rows.dtypes == "category"]:
        rows[name] = rows[name].cat.remove_unused_categories()
    return rows
