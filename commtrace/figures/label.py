"""Text in figures: escaped names from a trace, and lines of hover labels.

plotly interprets labels and hover texts as a subset of HTML, so names are escaped. Names that are
too long are shortened in the middle, where they differ least.
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
    """Escape `text` so that plotly shows it literally, and shorten it to `longest` characters.

    Control and bidirectional characters are made visible; a line break becomes a blank.

    >>> plain("<b>x</b>")
    '&lt;b&gt;x&lt;/b&gt;'
    """
    # Shortened before it is escaped, so that no escape is cut in two.
    if len(text) > longest:
        head = (longest - 1) // 2
        text = f"{text[:head]}…{text[head + 1 - longest :]}"
    return visible(text, keep="\n\r").translate(_ESCAPES)


def wrapped(text: str) -> str:
    """Escape `text` like `plain`, in at most `MOST_LINES` lines of at most `WIDTH` characters."""
    return lines(plain(line) for line in textwrap.wrap(text, WIDTH)[:MOST_LINES])


def layers_folded(path: str) -> str:
    """Return a module's path with `*` for each number, so that equal layers have equal names.

    >>> layers_folded("layers.0.attention")
    'layers.*.attention'
    """
    return ".".join("*" if name.isdigit() else name for name in path.split("."))


def path_end(path: str, longest: int) -> str:
    """Return a path without as many of its first names as do not fit, at least its last name.

    >>> path_end("model.layers.0.attention.wo", 20)
    '….0.attention.wo'
    """
    names = path.split(".")
    while len(names) > 1 and len(path) > longest:
        names = names[1:]
        path = ".".join(["…", *names])
    return path if len(path) <= longest else f"…{path[1 - longest :]}"


def lines(parts: Iterable[str]) -> str:
    """Join the parts that are not empty, one per line."""
    return "<br>".join(part for part in parts if part)


def bold(text: str) -> str:
    """Format `text`, which must be escaped already, in bold."""
    return f"<b>{text}</b>"
