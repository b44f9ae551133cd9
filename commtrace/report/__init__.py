"""A run as a page: one HTML file that opens offline and asks no network for anything."""

from __future__ import annotations

from commtrace.report.page import render_page, write_report

__all__ = ["render_page", "write_report"]
