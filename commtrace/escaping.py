"""Untrusted text made safe to show: control and bidirectional characters become visible.

Names in a trace, file names and command lines may hold anything: `ESC ] 0 ;` sets a terminal's
title, U+202E turns the rest of a line around. Everything that commtrace prints for people, and
every text of its pages and errors, passes `visible` on the way. What is meant for programs (JSON,
CSV into a pipe or a file) does not.
"""

from __future__ import annotations

from typing import Any


def visible(text: str, *, keep: str = "") -> str:
    r"""`text` with its unprintable characters as Python's escapes, except for those in `keep`.

    Unprintable are control and format characters (among them everything bidirectional or of zero
    width), line and paragraph separators, surrogates, and blanks other than the space.

    >>> print(visible("run\x1b]0;owned\x07 \u202eevil"))
    run\x1b]0;owned\x07 \u202eevil
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else ascii(letter)[1:-1] for letter in text
    )


def encodable(text: str) -> str:
    r"""`text` with what UTF-8 cannot encode, half of a pair of surrogates, as an escape.

    >>> print(encodable("a\ud800"))
    a\ud800
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible_value(value: Any) -> Any:
    """A value that a template shows: a text made visible, line breaks kept; others as they are."""
    return visible(value, keep="\n\t") if type(value) is str else value
