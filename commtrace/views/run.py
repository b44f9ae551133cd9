"""Loaded runs: the frames that analyses take, with the methods to view them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from commtrace.analyze import Frames
from commtrace.analyze import load as load_frames
from commtrace.analyze.stored import DaskWorkers, StoredRun
from commtrace.errors import UsageError
from commtrace.settings import settings_of
from commtrace.tracefile import Trace, open_run
from commtrace.views.views import Views

if TYPE_CHECKING:
    from commtrace.views.table import Table
    from commtrace.views.whatif import WhatIf


class ReplayedViews(Views):
    """Mixin of loaded runs, which can be replayed with changes."""

    __slots__ = ()

    @overload
    def whatif(self) -> Table: ...

    @overload
    def whatif(self, change: str, /, *changes: str, all_steps: bool = ...) -> WhatIf[Run]: ...

    def whatif(self, *changes: str, all_steps: bool = False) -> Table | WhatIf[Run]:
        """Replay the run with changes; without any, return the changes that pay, best first.

        Args:
            changes: Changes that are made together, such as `remove where kind=barrier`, as
                `commtrace whatif` takes them, or texts of column `text` of the table.
            all_steps: Replay all steady steps of a run of more than 500,000 calls, not only some in
                the middle; its replayed run is not kept.

        Raises:
            UsageError: There is no such change, it names nothing in the run or contradicts another,
                or the trace lacks times.
        """
        from commtrace.analyze.whatif.asked import what_if
        from commtrace.views.whatif import WhatIf

        if not changes:
            return self.table("whatif")
        return WhatIf(what_if(self.frames(), changes, all_steps=all_steps), _run_of)


class Run(ReplayedViews, Frames):
    """One run; `run` holds facts; comm, ops, groups, ranks, steps, sources are tables."""

    __slots__ = ()

    def frames(self) -> Run:
        """Return the tables of the trace: the run itself."""
        return self

    def __repr__(self) -> str:
        from commtrace.views.card import summary

        return summary(self)


class StoredViews(ReplayedViews, StoredRun):
    """A run that is larger than memory; tables comm, ops and kernels are read when asked for."""

    def frames(self) -> StoredViews:
        """Return the tables of the run: the run itself."""
        return self

    def __repr__(self) -> str:
        from commtrace.views.card import summary

        return summary(self)


def load(source: Path | str | Trace | Frames, *, dask: Any = None) -> Run | StoredViews:
    """Load the run in a trace, given by its path or already read.

    The calls of a run with millions of calls and a dataset are loaded lazily. The settings of the
    current folder determine its findings.

    Args:
        source: The trace.
        dask: A `distributed.Client`, whose workers then analyse the parts of the run in a folder;
            they must find the folder under the same path.

    Raises:
        UsageError: A client is given, and the source is no folder with a dataset.
        TraceError: The path holds no trace.
        SettingsError: There is a mistake in the settings.
    """
    if dask is not None:
        if not isinstance(source, (str, Path)):
            raise UsageError("cannot analyse a run in memory with Dask", attempt="its folder")
        dataset = open_run(Path(source), in_parts=True)
        frames = load_frames(dataset, settings_of(), DaskWorkers(dask))
    else:
        frames = load_frames(source, settings_of())
    if isinstance(frames, StoredRun):
        return StoredViews(frames.dataset, frames.settings, workers=frames.workers)
    return frames if isinstance(frames, Run) else _run_of(frames)


def _run_of(frames: Frames) -> Run:
    return Run(**fields_of(frames))


def fields_of(frames: Frames) -> dict[str, Any]:
    """Return the tables and facts of a run by name."""
    return {field.name: getattr(frames, field.name) for field in fields(Frames)}
