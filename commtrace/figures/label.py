"""Text for pictures: names from a trace made safe, and lines of a hover label.

plotly reads labels and hover texts as a small HTML, so a name is escaped before it gets there, and
one that never ends is cut in the middle, where names differ least.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from commtrace.escaping import visible

LONGEST = 160
WIDTH = 96
MOST_LINES = 6

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "})


def plain(text: str, *, longest: int = LONGEST) -> str:
    """`text` such that plotly shows it literally, at most `longest` characters of it.

    Control and bidirectional characters are made visible; a line break becomes a blank.

    >>> plain("<b>x</b>")
    '&lt;b&gt;x&lt;/b&gt;'
    """
    if len(text) > longest:
        head = (longest - 1) // 2
        text = f"{text[:head]}…{text[head + 1 - longest :]}"
    return visible(text, keep="\n\r").translate(_ESCAPES)


def wrapped(text: str) -> str:
    """`text` as `plain` has it, in lines of at most `WIDTH` characters."""
    return lines(plain(line) for line in textwrap.wrap(text, WIDTH)[:MOST_LINES])


def lines(parts: Iterable[str]) -> str:
    """The parts that are not empty, one below the other."""
    return "<br>".join(part for part in parts if part)


def bold(text: str) -> str:
    """`text`, which must be safe already, in bold."""
    return f"<b>{text}</b>"
