"""Escaping of untrusted text: control and bidirectional characters become visible.

Names in a trace, file names and command lines may contain anything: `ESC ] 0 ;` sets a terminal's
title, U+202E reverses the rest of a line. All output for people, and all text in pages and errors,
passes `visible`. Output for programs (JSON, CSV into a pipe or a file) does not.
"""

from __future__ import annotations

from typing import Any


def visible(text: str, *, keep: str = "") -> str:
    r"""Return `text` with unprintable characters as Python escapes, except for those in `keep`.

    Control and format characters (including all that are bidirectional or zero-width), line and
    paragraph separators, surrogates, and blanks other than the space are unprintable.

    >>> print(visible("run\x1b]0;owned\x07 \u202eevil"))
    run\x1b]0;owned\x07 \u202eevil
    """
    # The usual case costs no copy.
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else ascii(letter)[1:-1] for letter in text
    )


def encodable(text: str) -> str:
    r"""Return `text` with lone surrogates, which UTF-8 cannot encode, as escapes.

    >>> print(encodable("a\ud800"))
    a\ud800
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible_value(value: Any) -> Any:
    """Make a template value visible if it is text, keeping line breaks; return others unchanged."""
    return visible(value, keep="\n\t") if type(value) is str else value
