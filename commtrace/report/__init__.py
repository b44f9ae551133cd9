"""A run as a page, or several compared: one HTML file that opens offline and asks for nothing."""

from __future__ import annotations

from commtrace.report.diff_page import write_diff
from commtrace.report.page import render_page, write_report

__all__ = ["render_page", "write_diff", "write_report"]
