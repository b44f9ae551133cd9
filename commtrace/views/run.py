"""Loaded runs: the frames that analyses take, with the methods to view them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from commtrace.analyze import Frames
from commtrace.analyze import load as load_frames
from commtrace.analyze.stored import DaskWorkers, StoredRun
from commtrace.errors import UsageError
from commtrace.settings import settings_of
from commtrace.tracefile import Trace, open_run
from commtrace.views.views import Views


class Run(Views, Frames):
    """One run; `run` holds facts; comm, ops, groups, ranks, steps, sources are tables."""

    __slots__ = ()

    def frames(self) -> Run:
        """Return the tables of the trace: the run itself."""
        return self

    def __repr__(self) -> str:
        from commtrace.views.card import summary

        return summary(self)


class StoredViews(Views, StoredRun):
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
    return frames if isinstance(frames, Run) else Run(**fields_of(frames))


def fields_of(frames: Frames) -> dict[str, Any]:
    """Return the tables and facts of a run by name."""
    return {field.name: getattr(frames, field.name) for field in fields(Frames)}
