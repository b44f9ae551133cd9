"""Whether all ranks made the same calls in an order that can end: the analysis `consistency`."""

from __future__ import annotations

from commtrace.analyze.consistency.check import CONSISTENCY, consistency

__all__ = ["CONSISTENCY", "consistency"]
