"""Selection of a part of a run by options: a time window, a range of steps, some ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commtrace.errors import UsageError
from commtrace.selection import Selection
from commtrace.settings import EVERY_LINK, speeds_of_links
from commtrace.units import ns_of_text

if TYPE_CHECKING:
    from commtrace.analyze import Frames

# The sum with the start of a run is a 64-bit integer.
FOREVER_NS = 1 << 62


def window_of(text: str | None) -> tuple[int, int] | None:
    """Parse a window such as `1.5s:2s` into nanoseconds; either end may be open.

    >>> window_of("1.5ms:2s")
    (1500000, 2000000000)
    """
    if text is None:
        return None
    edges = [edge.strip() for edge in text.split(":")]
    known = [_nanoseconds(edge) for edge in edges if edge]
    if len(edges) != 2 or not known or None in known:
        raise UsageError(
            f"cannot read the window {text!r}",
            why="a window is two times relative to the start of the run, with units",
            attempt="--window 1.5s:2s, or 250ms: for an open end",
        )
    first = _nanoseconds(edges[0]) or 0 if edges[0] else 0
    last = _nanoseconds(edges[1]) or 0 if edges[1] else FOREVER_NS
    if last <= first:
        raise UsageError(
            f"cannot show the window {text!r}",
            found="an end that is not after the start",
            attempt="the earlier time first",
        )
    return first, last


def steps_of(text: str | None) -> tuple[int, int] | None:
    """Parse a range of steps, `3:5`, or a single step, into the first and the last.

    >>> steps_of("3:5"), steps_of("4")
    ((3, 5), (4, 4))
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,18})\s*(?::\s*(\d{1,18})\s*)?", text)
    if not found:
        raise UsageError(
            f"cannot read the steps {text!r}",
            why="steps are the numbers of the first and the last step",
            attempt="--steps 3:5, or --steps 4",
        )
    first, last = int(found[1]), int(found[2] or found[1])
    return min(first, last), max(first, last)


# Keeps a range from filling the memory.
MOST_RANKS = 1 << 20


def ranks_of(text: str | None, option: str = "--ranks") -> list[int] | None:
    """Parse ranks, given individually or as ranges by an option.

    >>> ranks_of("0-2,8")
    [0, 1, 2, 8]
    """
    if text is None:
        return None
    found: set[int] = set()
    for piece in text.split(","):
        parts = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", piece)
        edges = sorted([int(parts[1]), int(parts[2] or parts[1])]) if parts else []
        if not edges or edges[1] - edges[0] > MOST_RANKS:
            raise UsageError(
                f"cannot read the ranks {text!r}",
                why="ranks are numbers or ranges, separated by commas",
                attempt=f"{option} 0,1, or {option} 0-3,8",
            )
        found.update(range(edges[0], edges[1] + 1))
    return sorted(found)


def _nanoseconds(text: str) -> int | None:
    found = ns_of_text(text)
    return None if found is None else min(round(found), FOREVER_NS)


def link_of(texts: list[str] | None) -> dict[str, str] | None:
    """Return the speeds of links by mesh axis or group, checked.

    >>> link_of(["400 Gbit/s", "tp=450 GB/s"])
    {'*': '400 Gbit/s', 'tp': '450 GB/s'}
    """
    if not texts:
        return None
    parts = [text.rpartition("=") for text in texts]
    found = {name.strip() or EVERY_LINK: speed.strip() for name, _, speed in parts}
    speeds_of_links(found)
    return found


def selection_of(
    window: str | None = None,
    steps: str | None = None,
    ranks: str | None = None,
    link: list[str] | None = None,
) -> Selection:
    """Return what the options of a command select, checked.

    Raises:
        UsageError: an option cannot be read.
    """
    return Selection(window_of(window), steps_of(steps), ranks_of(ranks), link_of(link))


def part_of(frames: Frames, selection: Selection) -> Frames:
    """Return the part of a run that is selected; the run itself if none is.

    Raises:
        UsageError: the run has no such part, or more than can be read at once of a stored run.
    """
    from commtrace.analyze.excerpts.time_window import part_in_time

    frames = part_in_time(frames, selection)
    if selection.ranks is not None:
        from commtrace.analyze.excerpts.excerpt import of_ranks
        from commtrace.figures.timeline import ranks_of as ranks_in

        frames = of_ranks(frames, ranks_in(frames, selection.ranks))
    return frames
