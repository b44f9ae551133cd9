"""The law of savings, checked on a run in memory or a stored run: `broken_laws(frames)`.

    0 <= least <= most <= time of the steps that count

They are the steady steps, and all of a stall; without steps, the run counts as one. A saving of
time names its change.
"""

from __future__ import annotations

import math

from commtrace.analyze import Frames
from commtrace.analyze.findings import Reported, reported
from commtrace.analyze.measures.steady_steps import is_steady

_ROUNDING = 1 + 1e-9


def broken_laws(frames: Frames) -> list[str]:
    """Describe each finding whose saving is below 0, above the steps' time, or of no change."""
    return [text for each in reported(frames) if (text := _broken(frames, each))]


def _broken(frames: Frames, each: Reported) -> str:
    row = each.row
    least, most = row["cost_ns"], row["most_ns"]
    if math.isnan(least):
        return "" if math.isnan(most) else f"{row['rule']} saves {least} to {most} ns"
    time = _time_ns(frames, is_once=each.rule.is_once)
    if not 0 <= least <= most <= time * _ROUNDING:
        return f"{row['rule']} saves {least} to {most} of {time} ns: {row['title']}"
    if most > 0 and not row["change"]:
        return f"{row['rule']} saves {most} ns by no change: {row['title']}"
    return ""


def _time_ns(frames: Frames, *, is_once: bool) -> float:
    """Return the time of the steps that count, mean over ranks; with kernels, of the whole run."""
    steps = frames.timed_steps
    counted = steps if is_once else steps[is_steady(frames, steps["step"])]
    if not len(counted) or any(frames.by_ranks(_has_kernels)):
        first, last = zip(*frames.by_ranks(_ends_ns), strict=True)
        return max(last) - min(first)
    lasts = (counted["end_ns"] - counted["start_ns"]).groupby(counted["step"]).mean()
    return float(lasts.sum())


def _has_kernels(part: Frames) -> bool:
    return len(part.kernels) > 0


_SPANS = (
    ("comm", "issue_ns", "call_ns"),
    ("comm", "issue_ns", "blocked_ns"),
    ("comm", "wait_begin_ns", "first_wait_ns"),
    ("kernels", "start_ns", "duration_ns"),
)
_INSTANTS = {
    "comm": ("issue_ns", "complete_ns", "result_used_ns"),
    "timed_steps": ("start_ns", "end_ns"),
}


def _ends_ns(part: Frames) -> tuple[int, int]:
    """Return the first and the last known instant of a part."""
    known = [getattr(part, table)[name] for table, names in _INSTANTS.items() for name in names]
    for table, begin, lasts in _SPANS:
        rows = getattr(part, table)
        known += [rows[begin], (rows[begin] + rows[lasts].clip(lower=0)).where(rows[begin] >= 0)]
    every = [int(at) for instants in known for at in instants[instants >= 0]]
    return min(every), max(every)
