"""Methods to view a run, shared by loaded traces and recordings.

The methods import their dependencies when they are called: recording alone loads neither pandas nor
plotly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.errors import RecordingError, unknown_name
from commtrace.schema import TABLES
from commtrace.selection import Selection

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from commtrace.analyze import Frames
    from commtrace.views.checked import Checked
    from commtrace.views.explained import Explained
    from commtrace.views.table import Table


class Views(ABC):
    """Mixin with the methods; `frames()` returns the tables they show."""

    __slots__ = ()

    @abstractmethod
    def frames(self) -> Frames:
        """Return the tables of the trace."""

    def table(self, name: str) -> Table:
        """Return a table by name: comm, ops, groups, ranks, steps, sources, or an analysis.

        An analysis goes by its name, such as by_module. The table displays its values with units;
        they are plain numbers.

        Raises:
            UsageError: There is no such table; the error lists those that exist.
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

    def sql(self, statement: str, **runs: Views | Frames | Path | str) -> pd.DataFrame:
        """Answer a question in SQL, read-only; `commtrace sql RUN` lists tables and columns.

        Times are in ns and sizes in bytes. An unknown number is missing (`<NA>` or nan).

        Args:
            statement: One statement that selects, in the dialect of DuckDB.
            runs: Other runs by name, whose tables are `NAME.table`.

        Raises:
            UsageError: The statement does more, names what does not exist, or exceeds a limit.
        """
        from commtrace.analyze.sql import Database

        others = {name: _frames_of(each) for name, each in runs.items()}
        with Database({"": self.frames(), **others}) as database:
            return database.query(statement)

    def findings(self) -> Table:
        """Return avoidable communication with its cost and a remedy, the costliest first."""
        from commtrace.analyze import CATALOG
        from commtrace.views.findings import Findings

        frames = self.frames()
        return Findings.of_run(CATALOG["findings"].function(frames), frames)

    def explain(self, call: str) -> Explained:
        """Explain a call: `0:92` is call 92 of rank 0, `longest` the call that blocks longest.

        Raises:
            UsageError: There is no such call.
        """
        from commtrace.analyze.run.program_folder import program_folder
        from commtrace.analyze.story import explain, find_call
        from commtrace.views.explained import Explained

        frames = self.frames()
        return Explained(explain(frames, find_call(frames, call)), program_folder(frames))

    def check(self, *, gradients: bool = False) -> Checked:
        """Check that all ranks made consistent calls, as `commtrace check` does.

        The result states the first disagreement, the ranks to blame, and where they parted before;
        or how many calls were compared. `has_fault` is for programs, `problems` is the table.

        Args:
            gradients: State how each gradient was reduced, of a run recorded with `values`.
        """
        from commtrace.views.checked import Checked

        return Checked.of(self.frames(), gradients=gradients)

    def diff(self, after: Views | Frames | Path | str) -> Table:
        """Return the changes from this run to another, by module, operator, kind, group and phase.

        Args:
            after: A recording, a loaded run or the path of a trace.

        Raises:
            TraceError: The path holds no trace.
        """
        from commtrace.analyze.comparisons.diff import COLUMNS, diff
        from commtrace.views.table import Table

        return Table.of(diff(self.frames(), _frames_of(after)), COLUMNS)

    def picture(self, name: str, **options: Any) -> go.Figure:
        """Draw a picture by name.

        Names are flame, timeline, steps, overlap_lost, gpu_time, waits, sizes, bandwidth, matrix,
        pipeline_schedule, splits and expert_load.

        For options, see its function in `commtrace.figures`. The dark theme is used if `theme`
        asks for it, or by default if plotly's default template is dark.
        """
        return _drawn(self.frames(), name, options)

    def flame(self, **options: Any) -> go.Figure:
        """Draw communication by phase, module, operator and kind, as wide as its `value`.

        By default, `value` is the first of wire bytes, time, exposed time and calls that is not
        zero.
        """
        return self.picture("flame", **options)

    def timeline(self, **options: Any) -> go.Figure:
        """Draw the communication and the waits of each rank over time.

        With `critical_path=True`, the critical path is drawn over them.
        """
        return self.picture("timeline", **options)

    def matrix(self, **options: Any) -> go.Figure:
        """Draw the bytes that each rank sends to every other rank."""
        return self.picture("matrix", **options)

    def splits(self, **options: Any) -> go.Figure:
        """Draw how much each rank sends to the experts of every other rank, by layer."""
        return self.picture("splits", **options)

    def expert_load(self, **options: Any) -> go.Figure:
        """Draw the load of experts, or of their ranks, over the steps of a layer."""
        return self.picture("expert_load", **options)

    def pipeline_schedule(self, **options: Any) -> go.Figure:
        """Draw the schedule of a pipeline as it ran, above the ideal schedule."""
        return self.picture("pipeline_schedule", **options)

    def sizes(self, **options: Any) -> go.Figure:
        """Draw the sizes of the messages of each kind."""
        return self.picture("sizes", **options)

    def bandwidth(
        self, *, link: str | Mapping[str, str] | None = None, **options: Any
    ) -> go.Figure:
        """Draw busbw by message size, with the wait for late ranks and without it.

        Args:
            link: Speed of the link to compare with, such as `400 Gbit/s`, or speeds by mesh axis or
                group; by default the speed in the settings, else the best busbw of the run.
            options: As for `picture`.

        Raises:
            UsageError: `link` is no speed.
        """
        return _drawn(self.frames().with_link(link), "bandwidth", options)

    def waits(self, **options: Any) -> go.Figure:
        """Draw the time for which each rank is blocked, by waiting and by transfer."""
        return self.picture("waits", **options)

    def overlap_lost(self, **options: Any) -> go.Figure:
        """Draw for each place how much communication was hidden, and how much could have been."""
        return self.picture("overlap_lost", **options)

    def gpu_time(self, **options: Any) -> go.Figure:
        """Draw the time of each device: computing, communicating, copying, or idle, and why."""
        return self.picture("gpu_time", **options)

    def report(
        self,
        path: Path | str,
        *,
        window_ns: tuple[int, int] | None = None,
        steps: tuple[int, int] | None = None,
        ranks: Sequence[int] | None = None,
        link: str | Mapping[str, str] | None = None,
    ) -> Path:
        """Write the page of the run to `path`, and return the path.

        Args:
            path: File to write.
            window_ns: Restricts the page to a time window, in ns since the start of the run.
            steps: Restricts the page to steps, from the first to the last, both included.
            ranks: The only ranks whose calls are shown individually; by default all.
            link: Speed of links, such as `400 Gbit/s`, or speeds by mesh axis or group, instead of
                the speeds in the settings.

        Raises:
            UsageError: The run has no such part, or `link` is no speed.
        """
        from commtrace.report import write_report

        return write_report(self.frames(), path, Selection(window_ns, steps, ranks, link))

    def _repr_html_(self) -> str | None:
        from commtrace.views.card import card

        try:
            return card(self.frames())
        except RecordingError:  # the recording has not begun
            return None


def _frames_of(run: Views | Frames | Path | str) -> Frames:
    """Return the tables of a recording, a loaded run, or the run at a path."""
    from commtrace.analyze import load

    return run.frames() if isinstance(run, Views) else load(run)


def _drawn(frames: Frames, name: str, options: dict[str, Any]) -> go.Figure:
    """Return a picture, by default in the dark theme if plotly's default template is dark."""
    import plotly.io

    from commtrace.analyze.notices import replayed_note
    from commtrace.figures import PICTURES
    from commtrace.views.figure import Drawn

    if name not in PICTURES:
        raise unknown_name("picture", name, PICTURES)
    theme = "dark" if "dark" in str(plotly.io.templates.default or "") else "light"
    figure = PICTURES[name].draw(frames, **({"theme": theme} | options))
    if note := replayed_note(frames):
        figure.update_layout(title_subtitle={"text": note, "font": {"size": 12}})
    return Drawn(figure)
