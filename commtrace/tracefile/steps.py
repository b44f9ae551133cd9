"""Source of a run's steps, and the step of each call if the program marked none.

A spool has the steps that the program marked, and those found while recording, by source. All ranks
use the same source, the first of these that any of them has:

    marked      `recording.step()`, or a recording that was entered several times
    optimizer   `torch.optim.Optimizer.step`
    profiler    `torch.profiler.profile.step`
    scheduler   `step` of an LR scheduler
    recording   none of these: a recording that the program made itself counts as one step
    none

A step is found when the next one begins, by which time its calls have been written. Their step is
therefore derived from their issue times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from commtrace.schema import STEPS
from commtrace.tracefile.spool import FOUND_STEPS, STEP_SOURCES, Spool
from commtrace.tracefile.trace import ColumnValues

MARKED, RECORDING, NONE = "marked", "recording", "none"
STEPS_FROM = "steps_from"
"""Name of the fact of a run that states the source."""
_NO_STEP = -1
_INSTANTS = {"comm": "issue_ns", "ops": "start_ns"}


def steps_from(spools: Sequence[Spool]) -> str:
    """Return the source of the steps of all ranks."""
    if any(map(_is_marked, spools)):
        return MARKED
    found = {source for spool in spools for source in _found(spool)["source"]}
    of_first = next((source for source in STEP_SOURCES if source in found), "")
    return of_first or (RECORDING if any(map(_num_steps, spools)) else NONE)


def with_steps_from(source: str, spool: Spool) -> Spool:
    """Return a spool with the steps of a source, also in its calls and operators."""
    if source not in STEP_SOURCES:
        return spool
    found = _found(spool)
    rows = [row for row, each in enumerate(found["source"]) if each == source]
    steps = {column.name: array("q", [found[column.name][row] for row in rows]) for column in STEPS}
    steps["rank"] = array("q", [spool.facts["rank"]]) * len(rows)
    events = {
        name: {**spool.tables[name], "step": _steps_at(spool.tables[name][instant], steps)}
        for name, instant in _INSTANTS.items()
    }
    return replace(spool, tables={**spool.tables, "steps": steps, **events})


def _steps_at(instants: Sequence[int], steps: Mapping[str, array[int]]) -> array[int]:
    """Return the step that contains each instant; each step begins where the previous one ends."""
    ends, numbers = steps["end_ns"], steps["step"]
    if not ends:
        return array("q", [_NO_STEP]) * len(instants)
    first, last = steps["start_ns"][0], ends[-1]
    return array(
        "q",
        [numbers[bisect_right(ends, at)] if first <= at < last else _NO_STEP for at in instants],
    )


def _found(spool: Spool) -> Mapping[str, ColumnValues]:
    return spool.tables.get(FOUND_STEPS) or {"source": ()}


def _num_steps(spool: Spool) -> int:
    return len(spool.tables["steps"]["step"])


def _is_marked(spool: Spool) -> bool:
    """Return whether the program has marked a step; the recording as a step does not count."""
    num_steps = _num_steps(spool)
    is_one_step: Any = spool.facts.get("is_one_step", False)
    return num_steps > 1 or (num_steps == 1 and not is_one_step)
