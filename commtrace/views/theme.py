"""Default theme of pictures in notebooks."""

from __future__ import annotations

import plotly.io

from commtrace.figures.theme import DARK, LIGHT, Theme


def usual_theme() -> Theme:
    """Return the dark theme if plotly's default template is dark, such as "plotly_dark"."""
    return DARK if "dark" in str(plotly.io.templates.default or "") else LIGHT
