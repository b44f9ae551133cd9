"""The theme of pictures that a notebook shows, unless it is told one."""

from __future__ import annotations

import plotly.io

from commtrace.figures.theme import DARK, LIGHT, Theme


def usual_theme() -> Theme:
    """Dark where plotly's default template is: `plotly.io.templates.default = "plotly_dark"`."""
    return DARK if "dark" in str(plotly.io.templates.default or "") else LIGHT
