"""The laws of savings, checked on a run in memory or a stored run: `broken_laws(frames)`.

a finding saves at most                   the blocked time of its calls on the ranks that waited
a finding other than a stall, at most     the blocked time in steps that are not left out
all findings together save at most        the blocked time of the run
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commtrace.analyze import Frames
from commtrace.analyze.findings import reported
from commtrace.analyze.findings.call_set import CallSet
from commtrace.analyze.measures.steady_steps import is_counted

_ROUNDING = 1 + 1e-9


def broken_laws(frames: Frames) -> list[str]:
    """Describe each finding that saves more than its calls blocked, and the sum of all if so."""
    every = reported(frames)
    num_ranks = max(frames.num_ranks, 1)
    sets = [finding.calls.waiting for _, finding, _ in every]
    *blocked, steady, total = np.sum(frames.by_ranks(_blocked_ns, sets), axis=0)
    saved = [row["cost_ns"] * num_ranks for *_, row in every]
    limits = [
        most if row["rule"] == "stall" else min(most, steady)
        for (*_, row), most in zip(every, blocked, strict=True)
    ]
    found = [
        f"{row['rule']} saves {cost} of {most} ns: {row['title']}"
        for (*_, row), cost, most in zip(every, saved, limits, strict=True)
        if cost > most * _ROUNDING
    ]
    if np.nansum(saved) > total * _ROUNDING:
        found.append(f"all findings save {np.nansum(saved)} of {total} ns")
    return found


def _blocked_ns(part: Frames, sets: Sequence[CallSet]) -> list[float]:
    """Return the known blocked time of each set of calls, of steps that count, and of all calls."""
    blocked = part.comm["blocked_ns"].clip(lower=0).astype("float64").to_numpy()
    steady = blocked[is_counted(part, part.comm["step"])].sum()
    of_sets = (blocked[each.places_in(part.comm.index)].sum() for each in sets)
    return [*of_sets, steady, blocked.sum()]
