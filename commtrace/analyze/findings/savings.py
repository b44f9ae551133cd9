"""Savings of findings, capped by the time for which their calls blocked ranks.

Takes the findings of all rules, each with the time that it could save (`cost_ns`) and the calls in
which ranks were blocked for it (`waiting`). Whatever a rule states, the table of findings satisfies
two laws; a rule has nothing to do for them.

    a finding saves at most                   the blocked time of its calls on the ranks that waited
    all findings together save at most        the blocked time of the run

A finding takes an equal fraction of the blocked time of each of its calls, the costliest finding
first, and findings about the machine last. From a call that others have taken from, it takes what
they leave: time hidden behind other work cannot be saved once more by sending less often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commtrace.analyze.findings.call_set import CallSet
from commtrace.analyze.findings.finding import Finding
from commtrace.analyze.run.frame import Frames


def capped(frames: Frames, found: Sequence[Finding], of_machine: Sequence[bool]) -> list[Finding]:
    """Return the findings with the time that each of them saves beyond those before it.

    If the blocked time of none of its calls is known, the saving is unknown.
    """
    costs = [each.calls.cost_ns for each in found]
    costly = sorted(
        (n for n, cost in enumerate(costs) if cost > 0), key=lambda n: (of_machine[n], -costs[n])
    )
    if not costly:
        return [*found]
    calls = [found[number].calls.waiting for number in costly]
    blocked = np.sum(frames.by_ranks(_blocked, calls), axis=0)
    most = np.minimum([costs[number] for number in costly], blocked)
    fractions = most / np.where(blocked > 0, blocked, 1)
    lacking = np.sum(frames.by_ranks(_lacking, fractions, calls), axis=0)
    saved = np.where(blocked > 0, np.maximum(most - lacking, 0).round(), math.nan)
    results = [*found]
    for number, cost in zip(costly, saved.tolist(), strict=True):
        results[number] = replace(found[number], calls=replace(found[number].calls, cost_ns=cost))
    return results


def _blocked(part: Frames, calls: Sequence[CallSet]) -> np.ndarray:
    """Return the known blocked time of each set of calls."""
    blocked = _blocked_of_calls(part)
    return np.array([blocked[each.places_in(part.comm.index)].sum() for each in calls])


def _lacking(part: Frames, fractions: np.ndarray, calls: Sequence[CallSet]) -> np.ndarray:
    """Return the time that each set of calls wants of its blocked time and earlier sets have."""
    blocked = _blocked_of_calls(part)
    left = blocked.copy()
    found = np.zeros(len(calls))
    for number, each in enumerate(calls):
        places = each.places_in(part.comm.index)
        wanted = fractions[number] * blocked[places]
        lacking = np.maximum(wanted - left[places], 0)
        left[places] -= wanted - lacking
        found[number] = lacking.sum()
    return found


def _blocked_of_calls(part: Frames) -> np.ndarray:
    return part.comm["blocked_ns"].clip(lower=0).to_numpy("float64")
