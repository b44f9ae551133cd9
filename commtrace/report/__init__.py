"""Reports: an HTML file for a run, or for a comparison of several, that works offline."""

from __future__ import annotations

from commtrace.report.diff_page import write_diff
from commtrace.report.page import render_page, write_report
from commtrace.report.values_page import write_comparison

__all__ = ["render_page", "write_comparison", "write_diff", "write_report"]
