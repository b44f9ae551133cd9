"""Calls in which a job hangs according to its dumps or logs, as `commtrace check` found them."""

from __future__ import annotations

from functools import partial
from typing import Any

from commtrace.analyze.consistency import consistency
from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, LOG
from commtrace.analyze.findings.finding import FAULT, Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import PROCESS_GROUPS
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import numbers

_NOBODY_MISSING = (
    "No rank is missing. Look at the network and the device of the rank that has completed less."
)
_ADVICE = {"in flight": _NOBODY_MISSING, "hanging call": _NOBODY_MISSING}
_OTHER = "`commtrace check` has the fault; look at the stacks of the ranks that it names."


def hang(frames: Frames) -> list[Finding]:
    """Faults of table `consistency` at a collective that has not ended."""
    if frames.run.get("imported_from") not in (FLIGHT_RECORDER, LOG):
        return []
    faults = consistency(frames)
    faults = faults[faults["is_fault"] & (faults["number"] >= 0)].to_dict("records")
    if not faults:
        return []
    return [
        Finding(
            str(faults[place]["explanation"]),
            _ADVICE.get(str(faults[place]["problem"]), _OTHER),
            calls,
        )
        for place, calls in selected(frames, partial(_calls_of, faults))
    ]


def _calls_of(faults: list[dict[Any, Any]], part: Frames) -> Selected:
    """Return the calls of each fault that have not ended, by its place."""
    comm, number = part.comm, numbers(part)
    found: Selected = {}
    for place, fault in enumerate(faults):
        is_of_fault = (comm["group"] == fault["group"]) & (number == fault["number"])
        own = comm[is_of_fault & (comm["complete_ns"] < 0)]
        if len(own):
            found[place] = calls_in(part, own, cost_bytes=0.0)
    return found


HANG = Rule(
    "hang",
    "collectives that have not ended, at a fault of the run",
    hang,
    (PROCESS_GROUPS,),
    concerns=FAULT,
    cure=None,
)
