"""Source of a run's steps, and the step of each call if the program marked none.

A spool has the steps that the program marked, and those found while recording, by source. All ranks
use the same source, the first of these that any of them has:

    marked      `recording.step()`, or a recording that was entered several times
    optimizer   `torch.optim.Optimizer.step`
    profiler    `torch.profiler.profile.step`
    scheduler   `step` of an LR scheduler
    recording   none of these: a recording that the program made itself counts as one step
    none

A step is found when the next begins, by which time its calls have been written. Their step is
therefore derived from their issue times.

Between the steps of a run that recorded every Nth step (`every`) nothing was kept on purpose. Any
event left there, because a step was not kept as a whole, is dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commtrace.schema import STEPS
from commtrace.tracefile.outline import SpoolOrOutline
from commtrace.tracefile.spool import FOUND_STEPS, STEP_SOURCES, Spool
from commtrace.tracefile.trace import ColumnValues

if TYPE_CHECKING:
    import numpy as np

MARKED, RECORDING, NONE = "marked", "recording", "none"
STEPS_FROM = "steps_from"
"""Name of the fact of a run that states the source."""
EVERY = "every"
"""Name of the fact of a run that recorded only every Nth step."""
PARTIAL_STEPS = "partial_steps"
"""Name of the fact of a spool that lists marked steps recorded only in part."""
_NO_STEP = -1
_INSTANTS = {
    "comm": "issue_ns",
    "ops": "start_ns",
    "fingerprints": "at_ns",
    "host_events": "at_ns",
    "pipeline_actions": "start_ns",
}


def steps_from(recordings: Sequence[SpoolOrOutline]) -> str:
    """Return the source of the steps of all ranks."""
    if any(map(_is_marked, recordings)):
        return MARKED
    found = {source for each in recordings for source in _found(each)["source"]}
    of_first = next((source for source in STEP_SOURCES if source in found), "")
    return of_first or (RECORDING if any(map(_num_steps, recordings)) else NONE)


def with_steps_from(source: str, spool: Spool) -> Spool:
    """Return a spool with the steps of a source, also in its calls and operators.

    Columns that a table lacks are not missed, but for the numbers and times that steps need.
    """
    if source not in STEP_SOURCES:
        return _without_partial_steps(spool)
    found = _found(spool)
    rows = [row for row, each in enumerate(found["source"]) if each == source]
    steps = {column.name: array("q", [found[column.name][row] for row in rows]) for column in STEPS}
    steps["rank"] = array("q", [spool.facts["rank"]]) * len(rows)
    events = {
        name: {**spool.tables[name], "step": _steps_at(spool.tables[name][instant], steps)}
        for name, instant in _INSTANTS.items()
    }
    if EVERY in spool.facts["run"] and rows:
        first, last = steps["start_ns"][0], steps["end_ns"][-1]
        for name, instant in _INSTANTS.items():
            at, of_step = _views(events[name], instant, "step")
            kept = (of_step != _NO_STEP) | (at < first) | (at >= last)
            events[name] = _chosen(events[name], kept)
    return replace(spool, tables={**spool.tables, "steps": steps, **events})


def _steps_at(instants: Sequence[int], steps: Mapping[str, Sequence[int]]) -> array[int]:
    """Return the step that contains each instant; steps are in order, perhaps with gaps."""
    import numpy as np

    from commtrace.tracefile.arrays import array_of, view_of

    at = view_of(instants)
    starts, ends, numbers = _views(steps, "start_ns", "end_ns", "step")
    if not len(ends):
        return array_of(np.full(len(at), _NO_STEP))
    places = np.searchsorted(ends, at, side="right")
    is_before_end = places < len(ends)
    places = np.minimum(places, len(ends) - 1)
    return array_of(np.where(is_before_end & (starts[places] <= at), numbers[places], _NO_STEP))


def _without_partial_steps(spool: Spool) -> Spool:
    """Return a spool without the calls and operators of steps that it has only a part of."""
    import numpy as np

    partial: Any = spool.facts.get(PARTIAL_STEPS, ())
    if not partial:
        return spool
    tables = {
        name: _chosen(table, ~np.isin(_views(table, "step")[0], list(partial)))
        for name, table in spool.tables.items()
        if name in _INSTANTS
    }
    return replace(spool, tables={**spool.tables, **tables})


def _views(table: Mapping[str, ColumnValues], *names: str) -> list[np.ndarray]:
    from commtrace.tracefile.arrays import view_of  # imported late: it loads numpy

    return [view_of(table[name]) for name in names]


def _chosen(table: Mapping[str, ColumnValues], rows: np.ndarray) -> dict[str, ColumnValues]:
    """Return the rows of a table for which `rows` is true."""
    from commtrace.tracefile.arrays import taken

    places = rows.nonzero()[0]
    return {name: taken(values, places) for name, values in table.items()}


def _found(recording: SpoolOrOutline) -> Mapping[str, ColumnValues]:
    return recording.tables.get(FOUND_STEPS) or {"source": ()}


def _num_steps(recording: SpoolOrOutline) -> int:
    return len(recording.tables["steps"]["step"])


def _is_marked(recording: SpoolOrOutline) -> bool:
    """Return whether the program has marked a step; the recording as a step does not count."""
    num_steps = _num_steps(recording)
    is_one_step: Any = recording.facts.get("is_one_step", False)
    return num_steps > 1 or (num_steps == 1 and not is_one_step)
