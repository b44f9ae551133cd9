"""A trace that was loaded: the frames that analyses take, with the methods to look at them."""

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
    """One run: `run` holds facts about it; comm, ops, groups, ranks, steps, sources are tables."""

    __slots__ = ()

    def frames(self) -> Run:
        """The tables of the trace: itself."""
        return self

    def __repr__(self) -> str:
        from commtrace.views.card import summary

        return summary(self)


def load(source: Path | str | Trace | Frames) -> Run:
    """The run in a trace, given by its path or already read.

    Its findings are those that the settings of the current folder leave.

    Raises a TraceError where the path holds none, and SettingsError for a mistake in the settings.
    """
    frames = load_frames(source, settings_of())
    return frames if isinstance(frames, Run) else Run(**fields_of(frames))


def fields_of(frames: Frames) -> dict[str, Any]:
    """The tables and facts of a run by name."""
    return {field.name: getattr(frames, field.name) for field in fields(Frames)}
