"""What can be asked of a run, wherever it is: a trace that was loaded, or a recording.

The methods look up what they need when they are called: a recording that nobody looks at loads
neither pandas nor plotly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.errors import RecordingError, unknown_name
from commtrace.schema import TABLES

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from commtrace.analyze import Frames
    from commtrace.views.explained import Explained
    from commtrace.views.table import Table


class Views(ABC):
    """The methods; `frames()` gives what they look at."""

    __slots__ = ()

    @abstractmethod
    def frames(self) -> Frames:
        """The tables of the trace."""

    def table(self, name: str) -> Table:
        """A table by name: comm, ops, groups, ranks, steps, sources, or an analysis.

        An analysis goes by its name, such as by_module.

        It shows its values with units; they are plain numbers. Raises UsageError where there is
        no such table, naming those that there are.
        """
        from commtrace.analyze import CATALOG, analysis_named
        from commtrace.views.table import Table

        frames = self.frames()
        if name in TABLES:
            return Table.of(getattr(frames, name), TABLES[name], frames.start_ns)
        analysis = analysis_named(name)
        if analysis is None:
            raise unknown_name("table", name, [*TABLES, *CATALOG])
        return Table.of(analysis.function(frames), analysis.columns, frames.start_ns)

    def findings(self) -> Table:
        """What could be better, what it would save and how, the most expensive first."""
        from commtrace.analyze import CATALOG
        from commtrace.views.findings import Findings

        frames = self.frames()
        return Findings.of_run(CATALOG["findings"].function(frames), frames)

    def explain(self, call: str) -> Explained:
        """The story of one call: `0:92` is call 92 of rank 0; `longest` blocks longest.

        Raises UsageError where there is no such call.
        """
        from commtrace.analyze.story import explain, find_call
        from commtrace.views.explained import Explained

        frames = self.frames()
        return Explained(explain(frames, find_call(frames, call)))

    def diff(self, after: Views | Frames | Path | str) -> Table:
        """Changes from this run to another, by module, operator, kind, group and phase.

        The other run is a recording, a loaded run or the path of a trace. Raises a TraceError
        where the path holds none.
        """
        from commtrace.analyze import load
        from commtrace.analyze.diff import COLUMNS, diff
        from commtrace.views.table import Table

        other = after.frames() if isinstance(after, Views) else load(after)
        return Table.of(diff(self.frames(), other), COLUMNS)

    def picture(self, name: str, **options: Any) -> go.Figure:
        """A picture by name: flame, timeline, steps, waits, sizes or matrix.

        Options are those of its function in `commtrace.figures`. It is dark where `theme` says so,
        or where plotly's default template is a dark one.
        """
        from commtrace.figures import PICTURES
        from commtrace.views.theme import usual_theme

        if name not in PICTURES:
            raise unknown_name("picture", name, PICTURES)
        return PICTURES[name].draw(self.frames(), **({"theme": usual_theme()} | options))

    def flame(self, **options: Any) -> go.Figure:
        """Which module communicates: phase, module, operator and kind by `value`, wire bytes."""
        return self.picture("flame", **options)

    def timeline(self, **options: Any) -> go.Figure:
        """When each rank communicates, and who waits."""
        return self.picture("timeline", **options)

    def matrix(self, **options: Any) -> go.Figure:
        """How many bytes each rank sends to each other one."""
        return self.picture("matrix", **options)

    def sizes(self, **options: Any) -> go.Figure:
        """How large the messages of each kind are."""
        return self.picture("sizes", **options)

    def waits(self, **options: Any) -> go.Figure:
        """How long each rank is blocked, by waiting and by transfer."""
        return self.picture("waits", **options)

    def report(self, path: Path | str) -> Path:
        """Write the page of the run to `path`, and return the path."""
        from commtrace.report import write_report

        return write_report(self.frames(), path)

    def _repr_html_(self) -> str | None:
        from commtrace.views.card import card

        try:
            return card(self.frames())
        except RecordingError:  # it has not begun
            return None
