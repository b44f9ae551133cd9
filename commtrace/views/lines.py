"""Lines of styled text that the terminal and notebooks show alike.

A line is a tuple of spans, each a text with one of `STYLES`. The command line maps styles to those
of rich, and `markup` to HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import Markup

from commtrace.escaping import visible

STYLES: dict[str, tuple[str, str]] = {
    "": ("", ""),
    "strong": ("bold", "font-weight: 600"),
    "faint": ("dim", "opacity: .72"),
    "here": ("bold cyan", "font-weight: 600"),
    "chosen": ("green", "font-weight: 600"),
    "advice": ("green", ""),
    "good": ("bold green", "font-weight: 600"),
    "warning": ("yellow", "border-left: 3px solid #d97a24; padding-left: 6px"),
    "serious": ("bold yellow", "font-weight: 600"),
    "bad": ("bold red", "font-weight: 600; border-left: 3px solid #d03b3b; padding-left: 6px"),
}
"""Styles by name: rich's in the terminal, and CSS in a notebook."""


class StyledText(NamedTuple):
    """A part of a line."""

    text: str
    style: str = ""


StyledLine = tuple[StyledText, ...]


def line(text: str, style: str = "") -> StyledLine:
    """Return a line of a single style."""
    return (StyledText(text, style),)


def text_of(spans: StyledLine) -> str:
    """Return a line without styles, with control characters visible."""
    return visible("".join(span.text for span in spans))


def markup(lines: Iterable[StyledLine]) -> Markup:
    """Return lines as HTML, escaped, each an element that keeps its spaces."""
    return Markup("").join(
        Markup('<div style="white-space: pre-wrap">{}</div>').format(
            Markup("").join(
                Markup('<span style="{}">{}</span>').format(STYLES[style][1], visible(text))
                if style
                else Markup("{}").format(visible(text))
                for text, style in spans
            )
        )
        for spans in lines
    )
