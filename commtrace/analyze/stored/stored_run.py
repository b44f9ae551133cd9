"""A run that is read from its dataset in parts, by this process or by others.

Parts are independent. Other processes open the dataset by its path, keep it for the next pass, and
answer for the parts whose numbers they are given.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from commtrace.analyze.excerpts.excerpt import Excerpt
from commtrace.analyze.run.frame import Frames, tables_of
from commtrace.analyze.run.matching import AcrossRanks, Arrays
from commtrace.analyze.run.parts import Answer, PartedRun, RunPart
from commtrace.analyze.stored.kept_arrays import kept_arrays
from commtrace.analyze.stored.kept_files import name_of_contents, temporary_copy
from commtrace.analyze.stored.lazy_table import LazyTable
from commtrace.analyze.stored.narrowed_tables import (
    NAMES,
    Wanted,
    narrowed_tables,
    tables_of_some,
)
from commtrace.analyze.stored.part_tables import PartTables
from commtrace.analyze.stored.worker_passes import Opened, Pass, Recipe
from commtrace.atomic_write import make_folder
from commtrace.errors import NotKeptError, OutputError, TraceError
from commtrace.schema import EVENT_TABLES, TABLES
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile.dataset import Dataset, StoredRows, open_dataset
from commtrace.tracefile.run_folder import PREPARED
from commtrace.workers import JobRunner, in_order

T = TypeVar("T")

ROWS_OF_PART = 500_000
"""Approximate number of calls and operators of a part, which has at least one rank."""

_PARTS_OF_WORKERS = 3
"""Number of parts from which on other processes are asked."""

_VERSION = 9
"""Changes with the meaning of arrays and tables, so that those of former versions are not used."""


class StoredPart(RunPart):
    """Part of a stored run, whose rows are read when they are used."""

    def of_each_part(self, answer: Answer, compute: Answer) -> Any:
        """Return a table of this part, computed once and kept."""
        assert isinstance(self.parent, StoredRun)
        kept = self.parent.part_tables.kept
        return self._once(
            answer, partial(kept, _name_of(answer), self.number, partial(compute, self))
        )

    def _once(self, answer: Answer, read: Callable[[], Any]) -> Any:
        """Return the answer that is kept of this part, which is read once."""
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
        """Return a part with the given rows, reading only the row groups that have them."""
        assert isinstance(self.parent, StoredRun)
        wanted = Wanted(ranks, rows, stretches, self.parent.start_ns)
        return self.parent.narrowed_part(self, wanted)


class StoredRun(PartedRun):
    """A run that has one part at a time in memory.

    Arrays and tables of parts that its analyses prepare are kept in the folder of the dataset,
    where later analyses find them; if that cannot be written, in a temporary folder that goes with
    the run.

    Args:
        dataset: Its dataset.
        settings: Settings of the project in which the run is analysed.
        rows_of_part: Approximate number of rows of a part.
        workers: Processes that answer for parts; by default, this process does.
        folder: Folder of the prepared files.
    """

    dataset: Dataset
    rows_of_part: int
    workers: JobRunner | None
    _nothing: dict[str, pd.DataFrame]
    _is_in_turn: bool
    _is_elsewhere: bool

    def __init__(
        self,
        dataset: Dataset,
        settings: Settings = DEFAULTS,
        rows_of_part: int = ROWS_OF_PART,
        workers: JobRunner | None = None,
        folder: Path | None = None,
    ) -> None:
        trace = dataset.trace(columns={})
        run, tables = tables_of(trace)
        small = {name: tables[name] for name in TABLES if name not in EVENT_TABLES}
        super().__init__(run, small, trace.path, settings)
        vars(self).update(
            dataset=dataset,
            rows_of_part=rows_of_part,
            workers=workers,
            _nothing=tables,
            _is_in_turn=False,
            _is_elsewhere=folder is not None,
        )
        if folder is not None:
            vars(self)["folder"] = folder

    def with_settings(self, settings: Settings) -> StoredRun:
        """Return the run as other settings have it."""
        run = type(self)(self.dataset, settings, self.rows_of_part, self.workers)
        vars(run)["_lock"] = self._lock  # they share processes and files
        return run

    # Parts.

    @cached_property
    def _ranks_of_parts(self) -> list[list[int]]:
        """Ranks of each part by rank."""
        parts: list[list[int]] = [[]]
        rows = 0
        of_tables = [self.dataset.manifest.rows.get(table, {}) for table in EVENT_TABLES]
        for rank in self.dataset.ranks:
            own = sum(of_ranks.get(rank, 0) for of_ranks in of_tables)
            if parts[-1] and rows + own > self.rows_of_part:
                parts.append([])
                rows = 0
            parts[-1].append(rank)
            rows += own
        return parts

    @cached_property
    def edges(self) -> np.ndarray:
        """Row of table `comm` at which each part by rank begins, and the number of all rows."""
        rows = self.dataset.manifest.rows["comm"]
        of_parts = [sum(rows[rank] for rank in ranks) for ranks in self._ranks_of_parts]
        return np.append(0, np.cumsum(of_parts))

    @property
    def num_calls(self) -> int:  # type: ignore[override] - a property of runs
        """Number of recorded calls."""
        return self.dataset.num_rows("comm")

    @property
    def num_parts(self) -> int:
        """Number of parts, at least 1."""
        return len(self._ranks_of_parts)

    def part(self, number: int) -> RunPart:
        """Return a part; the parts divide the rows of table `comm` among them."""
        tables = self._tables_of_ranks(self._ranks_of_parts[number], self.edges[number])
        return StoredPart(
            run=self.run,
            path=self.path,
            settings=self.settings,
            parent=self,
            number=number,
            comm=tables["comm"],
            ops=tables["ops"],
            kernels=tables["kernels"],
            fingerprints=tables["fingerprints"],
            host_events=tables["host_events"],
            pipeline_actions=tables["pipeline_actions"],
            later_waits=tables["later_waits"],
            syncs=tables["syncs"],
            communicators=tables["communicators"],
            removed_calls=tables["removed_calls"],
            groups=tables["groups"],
            ranks=tables["ranks"],
            steps=tables["steps"],
            sources=tables["sources"],
        )

    def narrowed_part(self, part: RunPart, wanted: Wanted) -> Excerpt:
        """Return rows of a part; see `Frames.narrowed`."""
        ranks, first = self._ranks_of_parts[part.number], int(self.edges[part.number])
        tables = narrowed_tables(self.dataset, self._nothing, ranks, first, wanted)
        # Values of its calls are taken from the part, and not from all parts of the run.
        facts = {"run": self.run, "path": self.path, "settings": self.settings, "parent": part}
        return Excerpt(**tables, **facts)

    def _tables_of_ranks(self, ranks: Sequence[int], first: int) -> Mapping[str, pd.DataFrame]:
        """Return tables of some ranks, which load their columns lazily."""
        stored = {name: StoredRows(self.dataset, name, ranks) for name in EVENT_TABLES}
        begins = {name: first if name == "comm" else 0 for name in EVENT_TABLES}
        events = {
            name: LazyTable(
                NAMES[name],
                pd.RangeIndex(begins[name], begins[name] + rows.num_rows),
                rows.columns,
            )
            for name, rows in stored.items()
        }
        return tables_of_some(self._nothing, ranks) | events

    def of_each_part(self, answer: Answer, compute: Answer) -> Any:
        """Return a table of the whole run, computed once and kept."""
        return self.part_tables.kept(_name_of(answer), None, partial(compute, self))

    def other_results(
        self, function: Callable[..., Any], args: tuple[Any, ...], used: Set[Answer]
    ) -> Iterator[bytes]:
        """Yield the pickled results of a function for each part but the first, in order."""
        numbers = range(1, self.num_parts)
        if self.workers is None or len(numbers) < _PARTS_OF_WORKERS:
            yield from super().other_results(function, args, used)
            return
        path, size = self.dataset.folder, self.rows_of_part
        recipe = Recipe(path, self.settings, size, self.folder, self.identity)
        values = {each: self.values[each] for each in used if each in self.values}
        asked = Pass(recipe, function, args, values)
        yield from in_order(self.workers.results(result_of_part, asked, numbers))

    # Prepared arrays and tables.

    def arrays_of(self, facts: AcrossRanks, in_memory: Answer) -> Arrays:
        """Return arrays with an entry for each match, computed once and kept."""
        return self.in_turn(partial(self._arrays_of, facts))

    def _arrays_of(self, facts: AcrossRanks) -> Arrays:
        if facts not in self._arrays:
            folder = self.folder / "arrays" / _name_of(facts.add)
            self._arrays[facts] = kept_arrays(self, facts, folder)
        return self._arrays[facts]

    @cached_property
    def _arrays(self) -> dict[AcrossRanks, Arrays]:
        return {}

    @cached_property
    def part_tables(self) -> PartTables:
        """Tables of each part that analyses have prepared."""
        return PartTables(self.folder / "tables")

    @cached_property
    def identity(self) -> str:
        """Identity of the contents of the run, and of its division into parts."""
        return name_of_contents(self.dataset.manifest, self.rows_of_part, _VERSION)

    @cached_property
    def folder(self) -> Path:
        """Folder of what analyses prepare."""
        folder = self.dataset.target / PREPARED / self.identity
        with suppress(OutputError):
            make_folder(folder)
            return folder
        return self._elsewhere(folder)

    def in_turn(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, while no other thread computes anything of this run.

        If something cannot be kept beside the run, it is computed once more and kept elsewhere.
        """
        with self._lock:
            if self._is_in_turn:
                return compute()
            vars(self)["_is_in_turn"] = True
            try:
                return compute()
            except NotKeptError:
                if self._is_elsewhere:
                    raise
                self._keep_elsewhere()
                return compute()
            finally:
                vars(self)["_is_in_turn"] = False

    def _elsewhere(self, folder: Path) -> Path:
        place = temporary_copy(folder, self)
        vars(self)["_is_elsewhere"] = True
        return place

    def _keep_elsewhere(self) -> None:
        vars(self)["folder"] = self._elsewhere(self.folder)
        for name in ("part_tables", "_arrays"):
            vars(self).pop(name, None)

    # Tables of all ranks.

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
    def fingerprints(self) -> pd.DataFrame:  # type: ignore[override] - read on demand
        """Table `fingerprints` of all ranks, without the other tables of events."""
        return self._alone("fingerprints")

    @cached_property
    def syncs(self) -> pd.DataFrame:  # type: ignore[override] - read on demand
        """Table `syncs` of all ranks, without the other tables of events."""
        return self._alone("syncs")

    def _alone(self, name: str) -> pd.DataFrame:
        columns = {name: [column.name for column in TABLES[name]]}
        return tables_of(self.dataset.trace(columns=columns))[1][name]

    @cached_property
    def _whole(self) -> Mapping[str, pd.DataFrame]:
        return tables_of(self.dataset.trace())[1]


def _name_of(answer: Callable[..., Any]) -> str:
    return f"{answer.__module__.rpartition('.')[2]}.{answer.__name__}"


_opened: Opened[StoredRun] = Opened()


def result_of_part(asked: Pass, number: int) -> bytes:
    """Return the pickled result of a pass for a part; runs in a worker process."""
    run = _run_of(asked.recipe)
    run.values.update({key: each for key, each in asked.values.items() if key not in run.values})
    return pickle.dumps(asked.function(run.part(number), *asked.args), protocol=5)


def _run_of(recipe: Recipe) -> StoredRun:
    if _opened.run is None or _opened.recipe != recipe:
        dataset = open_dataset(recipe.path)
        run = StoredRun(dataset, recipe.settings, recipe.rows_of_part, folder=recipe.folder)
        if run.identity != recipe.identity:
            raise TraceError(
                f"cannot read the dataset {dataset.target}",
                found="another dataset than at the beginning of the analysis",
                why="it was prepared again meanwhile",
                attempt="load the run anew, or repeat the command",
            )
        _opened.recipe, _opened.run = recipe, run
    return _opened.run
