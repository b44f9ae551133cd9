"""A run that is read from its dataset in parts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import OF_RANKS
from commtrace.analyze.frame import Frames, tables_of
from commtrace.analyze.parts import PartedRun, RunPart
from commtrace.analyze.stored.collective_blocks import CollectiveBlocks, group_sizes
from commtrace.analyze.stored.row_store import RowStore
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile.dataset import Dataset

ROWS_OF_PART = 500_000
"""Number of calls and operators of a part, about: a part has one rank at least."""


class StoredRun(PartedRun):
    """A run of which one part at a time is in memory.

    Args:
        dataset: Its dataset.
        settings: Settings of the project in which the run is analysed.
        rows_of_part: Number of rows of a part, about.
    """

    def __init__(
        self, dataset: Dataset, settings: Settings = DEFAULTS, rows_of_part: int = ROWS_OF_PART
    ) -> None:
        trace = dataset.trace(columns={})
        run, tables = tables_of(trace)
        small = {name: tables[name] for name in ("groups", "ranks", "steps", "sources")}
        super().__init__(run, small, trace.path, settings)
        self.__dict__.update(_dataset=dataset, _rows_of_part=rows_of_part)

    def with_settings(self, settings: Settings) -> StoredRun:
        """Return the run as other settings have it."""
        return type(self)(self.dataset, settings, self.__dict__["_rows_of_part"])

    @property
    def dataset(self) -> Dataset:
        """Dataset of the run."""
        return self.__dict__["_dataset"]

    @cached_property
    def _ranks_of_parts(self) -> list[list[int]]:
        """Ranks of each part by rank."""
        parts: list[list[int]] = [[]]
        rows = 0
        for rank in self.dataset.ranks:
            own = sum(self.dataset.num_rows(table, rank) for table in ("comm", "ops", "kernels"))
            if parts[-1] and rows + own > self.__dict__["_rows_of_part"]:
                parts.append([])
                rows = 0
            parts[-1].append(rank)
            rows += own
        return parts

    @cached_property
    def _edges(self) -> np.ndarray:
        """Row of table `comm` at which each part by rank begins, and the number of all rows."""
        num_rows = [
            sum(self.dataset.num_rows("comm", rank) for rank in ranks)
            for ranks in self._ranks_of_parts
        ]
        return np.append(0, np.cumsum(num_rows))

    @property
    def num_calls(self) -> int:  # type: ignore[override] - a property of runs
        """Number of recorded calls."""
        return self.dataset.num_rows("comm")

    def parts(self, sort: str) -> Iterator[RunPart]:
        """Yield the parts of a sort; each row of table `comm` is in one of them."""
        if sort == OF_RANKS:
            yield from map(self._part_of_ranks, range(len(self._ranks_of_parts)))
        else:
            yield from map(self._part_of_collectives, range(self._blocks.num_blocks))

    def _part_of_ranks(self, number: int) -> RunPart:
        _, tables = tables_of(self.dataset.trace(ranks=self._ranks_of_parts[number]))
        rows = pd.RangeIndex(self._edges[number], self._edges[number + 1])
        return self._part(OF_RANKS, tables | {"comm": tables["comm"].set_axis(rows)})

    def _part_of_collectives(self, block: int) -> RunPart:
        return self._part("collectives", self._nothing | {"comm": self._blocks.read(block)})

    def _part(self, sort: str, tables: Mapping[str, pd.DataFrame]) -> RunPart:
        return RunPart(
            run=self.run,
            path=self.path,
            settings=self.settings,
            parent=self,
            sort=sort,
            comm=tables["comm"],
            ops=tables["ops"],
            kernels=tables["kernels"],
            groups=tables["groups"],
            ranks=tables["ranks"],
            steps=tables["steps"],
            sources=tables["sources"],
        )

    @cached_property
    def _nothing(self) -> dict[str, pd.DataFrame]:
        """Tables of a part without events."""
        _, tables = tables_of(self.dataset.trace(columns={}))
        return tables

    @cached_property
    def _blocks(self) -> CollectiveBlocks:
        sizes = self.by_ranks(group_sizes)
        blocks = CollectiveBlocks(self._folder / "blocks", sizes, self.__dict__["_rows_of_part"])
        for number, part in enumerate(self.parts(OF_RANKS)):
            blocks.write(part, number)
        return blocks

    def stored(self, answer: Callable[[Frames], Any], sort: str, part: RunPart | None) -> Any:
        """Return the rows of a part's calls, or of all calls, of what parts of a sort answer."""
        name = f"{answer.__module__.rpartition('.')[2]}.{answer.__name__}"
        if not self._rows.has(name):
            self._rows.write(name, map(answer, self.parts(sort)))
        index = pd.RangeIndex(self._edges[-1]) if part is None else part.comm.index
        return self._rows.read(name, index)

    @cached_property
    def _rows(self) -> RowStore:
        return RowStore(self._folder / "rows", self._edges)

    @cached_property
    def _folder(self) -> Path:
        """Folder of what is computed on the way."""
        folder = Path(tempfile.mkdtemp(prefix="commtrace-"))
        finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @cached_property
    def comm(self) -> pd.DataFrame:  # type: ignore[override] - read on demand
        """Table `comm` of all ranks."""
        return self._whole["comm"]

    @cached_property
    def ops(self) -> pd.DataFrame:  # type: ignore[override] - read on demand
        """Table `ops` of all ranks."""
        return self._whole["ops"]

    @cached_property
    def kernels(self) -> pd.DataFrame:  # type: ignore[override] - read on demand
        """Table `kernels` of all ranks."""
        return self._whole["kernels"]

    @cached_property
    def _whole(self) -> Mapping[str, pd.DataFrame]:
        return tables_of(self.dataset.trace())[1]
