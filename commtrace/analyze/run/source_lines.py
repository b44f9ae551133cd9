"""Lines of the program's files, as they are now or as they were recorded."""

from __future__ import annotations

from pathlib import Path

from commtrace.analyze.run.frame import Frames
from commtrace.tracefile.sources import MAX_CHARACTERS_SHOWN, read_lines

_CUT = MAX_CHARACTERS_SHOWN
"""Least length of a recorded line that may have been cut, in any version of the format."""


def lines_of_file(frames: Frames, file: str) -> dict[int, str]:
    """Return the lines of a file, as it is now if the recorded lines are still in it.

    A file without recorded lines is read if it has not changed since the run began, or in any case
    for an imported trace.
    """
    rows = frames.sources[frames.sources["file"] == file]
    recorded = {
        int(row.line) + place: text
        for row in rows.itertuples()
        for place, text in enumerate(str(row.text).split("\n"))
    }
    folders = [Path()] if frames.path is None else [Path(), frames.path.parent]
    path = next((folder / file for folder in folders if read_lines(folder / file)), None)
    now = {} if path is None else dict(enumerate(read_lines(path), 1))
    is_same = all(_is_line(now.get(line, "").rstrip(), text) for line, text in recorded.items())
    if recorded:
        return now if is_same else recorded
    return now if frames.run.get("imported_from") or _is_older(path, frames) else {}


def _is_older(path: Path | None, frames: Frames) -> bool:
    """Return whether a file was last changed before the run began."""
    start_ns = frames.ranks["start_ns"].min()
    try:
        return path is not None and path.stat().st_mtime_ns < start_ns
    except OSError:
        return False


def _is_line(text: str, recorded: str) -> bool:
    """Return whether a line is still as recorded; the recorded text may have been cut."""
    return text == recorded or (len(recorded) >= _CUT and text.startswith(recorded))


def line_text(frames: Frames, file: str, line: int) -> str:
    """Return the text of a line without indentation and comment; empty if it is unknown."""
    text = lines_of_file(frames, file).get(line, "").strip()
    return text.partition("  #")[0].rstrip()
