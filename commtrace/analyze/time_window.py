"""Parts of a run: the frames of a time window, or of some of its steps.

A collective is included with all of its members or not at all, so that waits stay known: it is
included if any member's call touches the window. A step has the calls that it issued, but of the
calls on a device those that run in it (`step_times`). The recorded time of ranks and steps is
clipped to the window, so that shares refer to it. Consistency across ranks cannot be judged from a
part; it is checked on the entire run. Kernels are those beside the calls and in the window, and the
next one of each stream, whose launch explains the idle time before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import end_ns
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, numbers, partners
from commtrace.analyze.step_times import by_clock, runs_in
from commtrace.errors import UsageError
from commtrace.units import text_of_duration


def within(frames: Frames, window_ns: tuple[int, int]) -> Frames:
    """Return the part of the run that touches a time window, in ns since the start of the run.

    Raises:
        UsageError: No communication was recorded in the window.
    """
    start = frames.start_ns
    first, last = window_ns[0] + start, window_ns[1] + start
    comm = frames.comm
    touches = (comm["issue_ns"] >= 0) & (comm["issue_ns"] < last) & (end_ns(comm) > first)
    if not touches.any():
        lasts = text_of_duration(max(int(end_ns(comm).max()) - start, 0) if len(comm) else 0)
        window_text = " to ".join(text_of_duration(edge) for edge in window_ns)
        raise UsageError(
            f"no communication from {window_text}",
            found=f"a run whose last call ends {lasts} after its start",
            attempt="another window",
        )
    window_text = " to ".join(text_of_duration(edge) for edge in window_ns)
    return _part(frames, _complete_collectives(frames, touches), first, last, window_text)


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


def of_steps(frames: Frames, first: int, last: int) -> Frames:
    """Return the part of the run in the steps from `first` to `last`, both included.

    Raises:
        UsageError: None of these steps was marked.
    """
    begins, ends = (edge + frames.start_ns for edge in window_of_steps(frames, first, last))
    chosen = frames.steps[frames.steps["step"].between(first, last)]
    steps_text = f"step {first}" if first == last else f"steps {first} to {last}"
    selected = runs_in(frames, first, last)
    if by_clock(frames).any():
        selected = _complete_collectives(frames, selected)
    part = _part(frames, selected, begins, ends, steps_text)
    return replace(part, steps=chosen.reset_index(drop=True))


def _complete_collectives(frames: Frames, touches: pd.Series) -> pd.Series:
    """Extend the mask to all members of its collectives and to both ends of its transfers."""
    group = frames.comm["group"].cat.codes
    number = numbers(frames)
    # The codes of few groups have 8 bits, in which the product would overflow.
    key = pd.Series(
        group.to_numpy(dtype="int64") * (number.max() + 2) + number, index=number.index
    ).where(number >= 0, -1)
    members = key.isin(key[touches & (key >= 0)].unique())
    partner = partners(frames)[touches]
    return touches | members | touches.index.isin(partner[partner >= 0])


def _part(frames: Frames, selected: pd.Series, first: int, last: int, description: str) -> Frames:
    comm = frames.comm.assign(seq=_renumbered(frames, selected))[selected].reset_index(drop=True)
    for name in comm.columns[comm.dtypes == "category"]:
        comm[name] = comm[name].cat.remove_unused_categories()
    ops, steps, ranks = frames.ops, frames.steps.copy(), frames.ranks.copy()
    # All kernels beside the selected calls, which tell where these are exposed.
    since = min(first, comm["issue_ns"].where(comm["issue_ns"] >= 0, first).min())
    until = max(last, end_ns(comm).max())
    in_ops = (ops["start_ns"] < last) & (ops["start_ns"] + ops["duration_ns"] > first)
    values = frames.fingerprints
    in_values = (values["at_ns"] >= first) & (values["at_ns"] < last)
    in_steps = (steps["start_ns"] < last) & (steps["end_ns"] > first)
    for table in (steps, ranks):
        for name in ("start_ns", "end_ns"):
            known = table[name] >= 0
            table[name] = np.where(known, table[name].clip(first, last), table[name])
    return frames.in_memory(
        run={**frames.run, "part": description},
        comm=comm,
        ops=ops[in_ops].reset_index(drop=True),
        kernels=_kernels_of(frames.kernels, since, until),
        fingerprints=values[in_values].reset_index(drop=True),
        steps=steps[in_steps].reset_index(drop=True),
        ranks=ranks,
    )


def _kernels_of(kernels: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    """Return the kernels between two instants, and the next one of each stream."""
    start = kernels["start_ns"]
    touches = (start < last) & (start + kernels["duration_ns"] > first)
    later = kernels[start >= last].sort_values("start_ns", kind="stable")
    follows = later.drop_duplicates(["rank", "device", "stream"]).index
    part = kernels[touches | kernels.index.isin(follows)].reset_index(drop=True)
    for name in part.columns[part.dtypes == "category"]:
        part[name] = part[name].cat.remove_unused_categories()
    return part


def _renumbered(frames: Frames, selected: pd.Series) -> pd.Series:
    """Return the calls' `seq` in their groups, counted anew from 0 in groups with transfers.

    `matching` separates collectives from transfers in such groups by counting, so there must be no
    gaps.
    """
    comm = frames.comm
    sent = is_transfer(frames)
    if not sent.any():
        return comm["seq"]
    mixed = selected & comm["group"].isin(comm["group"][sent].unique())
    known = mixed & (sent | (numbers(frames) >= 0)) & (comm["seq"] >= 0)
    ordered = comm[known].sort_values("seq", kind="stable")
    count = ordered.groupby(["rank", "group"], observed=True).cumcount()
    return comm["seq"].mask(mixed, -1).mask(known, count).astype("int64")
