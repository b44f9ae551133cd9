"""Parts of a run: the frames of a time window, or of some of its steps.

A collective is included with all of its members or not at all, so that waits stay known: it is
included if any member's call touches the window. A step has the calls that it issued or, on a
device, the calls that run in it (`step_times`). The recorded time of ranks and steps is clipped to
the window, so that shares refer to it. Consistency across ranks cannot be judged from a part; it is
checked on the entire run. Kernels beside the calls and in the window are included, and the next
kernel of each stream, whose launch explains the idle time before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from commtrace.analyze.excerpts.excerpt import (
    Stretch,
    check_size,
    chosen,
    completed,
    excerpt,
    selected,
    touching,
)
from commtrace.analyze.measures.arrivals import end_ns
from commtrace.analyze.measures.step_times import by_clock, runs_in
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.run.matching import is_transfer, numbers
from commtrace.errors import UsageError
from commtrace.selection import Selection
from commtrace.units import text_of_duration


def part_in_time(frames: Frames, selection: Selection) -> Frames:
    """Return the steps and the time window of a run that are selected, or else the run itself.

    Raises:
        UsageError: The run has no such part, or more than can be read at once of a stored run.
    """
    if selection.steps is not None:
        frames = of_steps(frames, *selection.steps)
    if selection.window_ns is not None:
        frames = within(frames, selection.window_ns)
    return frames


def within(frames: Frames, window_ns: tuple[int, int]) -> Frames:
    """Return the part of the run that touches a time window, in ns since the start of the run.

    Raises:
        UsageError: No communication was recorded in the window, or more than can be read at once
            of a stored run.
    """
    window_text = " to ".join(text_of_duration(edge) for edge in window_ns)
    rows = completed(frames, touching, (window_ns,), stretches=(window_ns,))
    if not len(rows):
        ends = max(frames.by_ranks(_last_end_ns)) - frames.start_ns
        raise UsageError(
            f"no communication from {window_text}",
            found=f"a run whose last call ends {text_of_duration(max(ends, 0))} after its start",
            attempt="another window",
        )
    first, last = (edge + frames.start_ns for edge in window_ns)
    return _part(frames, rows, first, last, window_text)


def _last_end_ns(part: Frames) -> int:
    return int(end_ns(part.comm).max()) if len(part.comm) else -1


def window_of_steps(frames: Frames, first: int, last: int) -> tuple[int, int]:
    """Return start and end of the steps from `first` to `last`, in ns since the start of the run.

    Raises:
        UsageError: None of these steps was marked.
    """
    steps = frames.timed_steps
    chosen = steps[steps["step"].between(first, last)]
    if chosen.empty:
        known = steps["step"]
        raise UsageError(
            f"no step from {first} to {last}",
            found=f"steps {known.min()} to {known.max()}" if len(steps) else "no steps",
            attempt="other steps" if len(steps) else "a time window",
        )
    start = frames.start_ns
    return int(chosen["start_ns"].min()) - start, int(chosen["end_ns"].max()) - start


def of_steps(frames: Frames, first: int, last: int, rows: pd.Index | None = None) -> Frames:
    """Return the part of the run in the steps from `first` to `last`, both included.

    Args:
        frames: The run.
        first: First step.
        last: Last step.
        rows: Labels of its calls, if `rows_of_steps` has returned them already.

    Raises:
        UsageError: None of these steps was marked, or they have more than can be read at once of a
            stored run.
    """
    begins, ends = (edge + frames.start_ns for edge in window_of_steps(frames, first, last))
    steps = frames.steps[frames.steps["step"].between(first, last)]
    steps_text = f"step {first}" if first == last else f"steps {first} to {last}"
    rows = rows_of_steps(frames, first, last) if rows is None else rows
    part = _part(frames, rows, begins, ends, steps_text)
    return replace(part, steps=steps.reset_index(drop=True))


def rows_of_steps(frames: Frames, first: int, last: int) -> pd.Index:
    """Return the labels of the calls of the part that `of_steps` returns, in its order."""
    choose = completed if any(frames.by_ranks(_any_by_clock)) else selected
    return choose(frames, runs_in, first, last)


def _any_by_clock(part: Frames) -> bool:
    return bool(by_clock(part).any())


def _part(frames: Frames, rows: pd.Index, first: int, last: int, description: str) -> Frames:
    check_size(frames, len(rows), description)
    calls = excerpt(frames, rows)
    comm = calls.comm.assign(seq=_renumbered(calls)).reset_index(drop=True)
    # All kernels beside the selected calls, which show where these are exposed.
    since = min(first, comm["issue_ns"].where(comm["issue_ns"] >= 0, first).min())
    until = max(last, end_ns(comm).max())
    stretches = (first, last), (since, until)
    num_rows = len(comm) + sum(frames.by_ranks(_num_beside, *stretches))
    check_size(frames, num_rows, description)
    found = zip(*frames.by_ranks(_beside, *stretches), strict=True)
    ops, kernels, fingerprints, syncs = map(joined, found)
    steps, ranks = frames.steps.copy(), frames.ranks.copy()
    in_steps = (steps["start_ns"] < last) & (steps["end_ns"] > first)
    for table in (steps, ranks):
        for name in ("start_ns", "end_ns"):
            known = table[name] >= 0
            table[name] = np.where(known, table[name].clip(first, last), table[name])
    return Frames(
        run={**frames.run, "part": description},
        comm=comm,
        ops=ops.reset_index(drop=True),
        kernels=kernels.reset_index(drop=True),
        fingerprints=fingerprints.reset_index(drop=True),
        host_events=_touching(frames.host_events, "at_ns", first, last),
        pipeline_actions=_touching(frames.pipeline_actions, "start_ns", first, last),
        later_waits=_touching(frames.later_waits, "at_ns", first, last),
        syncs=syncs.reset_index(drop=True),
        communicators=frames.communicators,
        removed_calls=frames.removed_calls,
        groups=frames.groups,
        ranks=ranks,
        steps=steps[in_steps].reset_index(drop=True),
        sources=frames.sources,
        path=frames.path,
        settings=frames.settings,
    )


def _touching(table: pd.DataFrame, start: str, first: int, last: int) -> pd.DataFrame:
    """Return the rows of a table that overlap a stretch of time."""
    begin = table[start]
    is_in = (begin < last) & (begin + table["duration_ns"] > first)
    return table[is_in].reset_index(drop=True)


def _num_beside(part: Frames, *stretches: Stretch) -> int:
    return sum(int(mask.sum()) for mask in _masks_beside(part, *stretches))


def _beside(part: Frames, *stretches: Stretch) -> tuple[pd.DataFrame, ...]:
    """Return operators, fingerprints and waits of the first stretch, and kernels of the second."""
    in_ops, in_kernels, in_values, in_syncs = _masks_beside(part, *stretches)
    tables = part.ops[in_ops].copy(), chosen(part.kernels, in_kernels)
    return *tables, part.fingerprints[in_values].copy(), chosen(part.syncs, in_syncs)


def _masks_beside(part: Frames, stretch: Stretch, of_kernels: Stretch) -> tuple[pd.Series, ...]:
    """Return masks of operators, kernels (also the next of each stream), fingerprints and waits."""
    ops, kernels = part.ops, part.kernels
    first, last = stretch
    in_ops = (ops["start_ns"] < last) & (ops["start_ns"] + ops["duration_ns"] > first)
    at = part.fingerprints["at_ns"]
    in_values = (at >= first) & (at < last)
    begin = part.syncs["at_ns"]
    in_syncs = (begin < last) & (begin + part.syncs["duration_ns"] > first)
    first, last = of_kernels
    start = kernels["start_ns"]
    touches = (start < last) & (start + kernels["duration_ns"] > first)
    later = kernels[start >= last].sort_values("start_ns", kind="stable")
    follows = later.drop_duplicates(["rank", "device", "stream"]).index
    in_kernels = touches | pd.Series(kernels.index.isin(follows), index=kernels.index)
    return in_ops, in_kernels, in_values, in_syncs


def _renumbered(calls: Frames) -> pd.Series:
    """Return the calls' `seq` in their groups, counted anew from 0 in groups with transfers.

    `matching` separates collectives from transfers in such groups by counting, so there must be no
    gaps.
    """
    comm = calls.comm
    mixed = comm["group"].isin(_groups_of_transfers(calls))
    if not mixed.any():
        return comm["seq"]
    known = mixed & (is_transfer(calls) | (numbers(calls) >= 0)) & (comm["seq"] >= 0)
    ordered = comm[known].sort_values("seq", kind="stable")
    count = ordered.groupby(["rank", "group"], observed=True).cumcount()
    return comm["seq"].mask(mixed, -1).mask(known, count).astype("int64")


@of_run
def _groups_of_transfers(run: Frames) -> frozenset[str]:
    return frozenset().union(*run.by_ranks(_groups_of_transfers_of_part))


def _groups_of_transfers_of_part(part: Frames) -> set[str]:
    return set(part.comm["group"][is_transfer(part)].unique())
