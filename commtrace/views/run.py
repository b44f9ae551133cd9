"""Loaded runs: the frames that analyses take, with the methods to view them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from commtrace.analyze import Frames
from commtrace.analyze import load as load_frames
from commtrace.settings import settings_of
from commtrace.tracefile import Trace
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


def load(source: Path | str | Trace | Frames) -> Run:
    """Load the run in a trace, given by its path or already read.

    The settings of the current folder determine its findings.

    Raises:
        TraceError: The path holds no trace.
        SettingsError: There is a mistake in the settings.
    """
    frames = load_frames(source, settings_of())
    return frames if isinstance(frames, Run) else Run(**fields_of(frames))


def fields_of(frames: Frames) -> dict[str, Any]:
    """Return the tables and facts of a run by name."""
    return {field.name: getattr(frames, field.name) for field in fields(Frames)}
