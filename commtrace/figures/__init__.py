"""Pictures of a run: functions of its tables that return plotly figures and show nothing."""

from __future__ import annotations

from commtrace.figures.flame import flame
from commtrace.figures.timeline import timeline

__all__ = ["flame", "timeline"]
