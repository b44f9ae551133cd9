"""The analysis `consistency`: all ranks make the same calls, in an order that cannot deadlock."""

from __future__ import annotations

from commtrace.analyze.consistency.check import CONSISTENCY, consistency

__all__ = ["CONSISTENCY", "consistency"]
