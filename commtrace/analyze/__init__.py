"""Analyses of a recorded run: `load` a trace, then call an analysis from the `CATALOG`.

frames = load("run.json")
CATALOG["by_kind"].function(frames)
"""

from __future__ import annotations

from commtrace.analyze.analysis import Analysis
from commtrace.analyze.catalog import CATALOG, analysis_named
from commtrace.analyze.frame import Frames
from commtrace.analyze.notices import Notice, notices_of
from commtrace.analyze.opening import load

__all__ = ["CATALOG", "Analysis", "Frames", "Notice", "analysis_named", "load", "notices_of"]
