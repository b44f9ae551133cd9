"""Figures of a run: functions that take its tables and return plotly figures, and show nothing."""

from __future__ import annotations

from commtrace.figures.bandwidth import bandwidth
from commtrace.figures.expert_load import expert_load
from commtrace.figures.flame import flame
from commtrace.figures.gpu_time import gpu_time
from commtrace.figures.matrix import matrix
from commtrace.figures.overlap_lost import overlap_lost
from commtrace.figures.pictures import PICTURES, Picture
from commtrace.figures.pipeline_schedule import pipeline_schedule
from commtrace.figures.sizes import sizes
from commtrace.figures.splits import splits
from commtrace.figures.steps import steps
from commtrace.figures.timeline import timeline
from commtrace.figures.waits import waits

__all__ = [
    "PICTURES",
    "Picture",
    "bandwidth",
    "expert_load",
    "flame",
    "gpu_time",
    "matrix",
    "overlap_lost",
    "pipeline_schedule",
    "sizes",
    "splits",
    "steps",
    "timeline",
    "waits",
]
