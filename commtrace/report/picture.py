"""A single picture as a file: a self-contained page, or a format that plotly can write.

.html            opens anywhere, in light and dark
.json            plotly's figure, for other programs
.png .svg .pdf   static images, with the package kaleido
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from commtrace.analyze import Frames, notices_of
from commtrace.analyze.run.program_folder import name_of
from commtrace.atomic_write import atomic_write
from commtrace.errors import UsageError
from commtrace.figures.flame import VALUES, flame_nodes
from commtrace.figures.pictures import PICTURES
from commtrace.figures.theme import DARK, LIGHT, recolouring
from commtrace.figures.timeline import MAX_MARKS
from commtrace.report.offline import offline_page
from commtrace.report.style import picture_style
from commtrace.selection import WHOLE_RUN, Selection

DRAWN = (".png", ".svg", ".pdf")
FORMATS = (".html", ".json", *DRAWN)
SCRIPTS = ("figures.js", "picture.js")
WIDTH_PIXELS = 1400


def check_format(path: Path) -> None:
    """Reject a path whose format cannot be written, before any work is done.

    Raises:
        UsageError: The suffix is none of `FORMATS`, or needs a package that is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(
            f"cannot draw {path.name}",
            found=f"the suffix {suffix}" if suffix else "no suffix",
            attempt=f"one of {', '.join(FORMATS)}",
        )
    if suffix in DRAWN and find_spec("kaleido") is None:
        raise UsageError(
            f"cannot draw {path.name}",
            found="no package kaleido",
            why=f"plotly needs it for {', '.join(DRAWN)}",
            attempt="`pip install kaleido`, or .html, whose buttons save .svg and .png",
        )


def write_flame(frames: Frames, path: Path, *, value: str = "", phase: str = "") -> None:
    """Write the flame graph of a run; on an HTML page, its measure can be chosen.

    Raises:
        UsageError: The format cannot be written, or the phase does not communicate.
    """
    figure = PICTURES["flame"].draw(frames, value=value, phase=phase)
    nodes = flame_nodes(frames)
    drawn = {name: nodes[name].tolist() for name in VALUES if nodes[name].max() > 0}
    note = "Click a block to zoom into it, the bar on top to come back."
    measures = {VALUES[name]: values for name, values in drawn.items()} if figure.data else {}
    write_picture(
        figure,
        path,
        about=_about(frames, "flame"),
        note=note,
        measures=measures,
        chosen=VALUES.get(value, ""),
    )


def write_timeline(frames: Frames, path: Path, selection: Selection = WHOLE_RUN) -> None:
    """Write the timeline of a run, or of the selected window and ranks.

    Raises:
        UsageError: The format cannot be written, or the run has no such rank.
    """
    figure: Any = PICTURES["timeline"].draw(
        frames, window_ns=selection.window_ns, ranks=selection.ranks
    )
    note = (
        "Drag over a time range to zoom in, double-click to zoom out; hover over a call for"
        " details."
    )
    if not figure.layout.meta["single"]:
        note += (
            f" More than {MAX_MARKS:,} waits and transfers are not drawn individually: the height "
            "of a colour is the share of its column's time. --steps or --window show single calls."
        )
    if any(trace.meta.get("is_merged") for trace in figure.data):
        note += (
            " A pale bar of a stream stands for several kernels: it is as opaque as the stream is"
            " busy."
        )
    write_picture(figure, path, about=_about(frames, "timeline"), note=note)


def write_picture(
    figure: go.Figure,
    path: Path,
    *,
    about: Sequence[str] = (),
    note: str = "",
    measures: Mapping[str, Sequence[float]] | None = None,
    chosen: str = "",
) -> None:
    """Write a figure in light colours to `path` atomically, in the format of its suffix.

    Args:
        figure: The figure.
        path: File to write.
        about: Lines above the figure, on an HTML page.
        note: Line below the figure, on an HTML page.
        measures: By title, alternative values of the first trace that an HTML page offers.
        chosen: Title of the measure that is drawn.

    Raises:
        UsageError: The format cannot be written.
    """
    check_format(path)
    write = _WRITERS.get(path.suffix.lower(), _write_drawn)
    page = {"about": about, "note": note, "measures": dict(measures or {}), "chosen": chosen}
    with atomic_write(path) as unfinished:
        write(figure, unfinished, page)


def _about(frames: Frames, name: str) -> list[str]:
    """Return the run's command, and the run's limitations for the picture."""
    return [name_of(frames), *(notice.text for notice in notices_of(frames, name))]


def _write_json(figure: go.Figure, path: Path, page: Mapping[str, Any]) -> None:
    path.write_text(str(figure.to_json()), encoding="utf-8")


def _write_drawn(figure: Any, path: Path, page: Mapping[str, Any]) -> None:
    figure.write_image(path, width=WIDTH_PIXELS, height=figure.layout.height)


def _write_page(figure: go.Figure, path: Path, page: Mapping[str, Any]) -> None:
    data = {
        "figure": figure.to_plotly_json(),
        "dark": recolouring(LIGHT, DARK),
        "measures": page["measures"],
        "chosen": page["chosen"],
    }
    text = offline_page(
        "picture.html",
        style=picture_style(),
        scripts=SCRIPTS,
        data=data,
        title=page["about"][0] if page["about"] else "commtrace",
        about=page["about"],
        note=page["note"],
        measures=list(page["measures"]),
        chosen=page["chosen"],
    )
    path.write_text(text, encoding="utf-8", newline="\n")


_WRITERS: dict[str, Callable[[go.Figure, Path, Mapping[str, Any]], None]] = {
    ".html": _write_page,
    ".json": _write_json,
}
