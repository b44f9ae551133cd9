"""Page of a run that is watched: an HTML file, and the state that it requests every second.

The page loads nothing but `state`, from where it came from. All words are made here, the same as in
the terminal; the script only places them, as text.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from commtrace.escaping import visible
from commtrace.live.life import ENDED, RUNNING
from commtrace.live.snapshot import GroupState, LiveProblem, RankState, Snapshot
from commtrace.live.wording import (
    FAULTS,
    age_text,
    ages_text,
    alike,
    alike_stacks,
    blocked_text,
    capitalized,
    clock_text,
    is_users,
    names_text,
    now_text,
    num_ranks_text,
    shown_groups,
    source_beside,
    steps_text,
    trend_text,
)
from commtrace.report.offline import ENVIRONMENT, content_policy, source
from commtrace.report.style import live_style
from commtrace.tracefile.dump_files import StackDump
from commtrace.units import counted, text_of_bytes, text_of_duration, text_of_ranks

_SECOND = 1e9
_MINUTE_S = 60
_MOST_ROWS = 128
_MOST_LINES = 200
_MOST_STACKS = 50


def render_live_page(run: Path) -> str:
    """Return the page as HTML."""
    script = source("live.js")
    return ENVIRONMENT.get_template("live.html").render(
        policy=f"{content_policy(script)}; connect-src 'self'",
        # Only texts of this package are exempt from escaping; no value of a trace is.
        style=Markup(live_style()),
        script=Markup(script),
        title=run.name,
    )


class LastMinute:
    """State of the ranks with the lowest numbers, for each second of the last minute."""

    def __init__(self) -> None:
        self._times_ns: deque[int] = deque()
        self._columns: deque[list[list[Any]]] = deque()

    def columns(self, snapshot: Snapshot) -> list[list[list[Any]]]:
        """Add the state as it is now; return the columns, the oldest first.

        Returns:
            For each second that has been watched, states and how many successive ranks have each.
        """
        states = (_state_of(each) for each in snapshot.ranks[:_MOST_ROWS])
        self._times_ns.append(snapshot.at_ns)
        self._columns.append([[state, len([*ranks])] for state, ranks in groupby(states)])
        while len(self._times_ns) > 1 and self._times_ns[1] <= snapshot.at_ns - _MINUTE_S * _SECOND:
            self._times_ns.popleft()
            self._columns.popleft()
        ends_ns = (snapshot.at_ns - ago * _SECOND for ago in reversed(range(_MINUTE_S)))
        seen = (bisect_right(self._times_ns, end) for end in ends_ns)
        return [self._columns[number - 1] for number in seen if number]


def live_state(snapshot: Snapshot, minute: LastMinute | None = None) -> dict[str, Any]:
    """Return what the page shows, as JSON has it; all text is visible text."""
    steps = snapshot.steps
    lines = alike(snapshot.ranks) if len(snapshot.ranks) > 1 else [[*snapshot.ranks]]
    state = {
        "command": snapshot.command,
        "at": clock_text(snapshot.at_ns),
        "is_over": snapshot.is_over,
        "verdict": _verdict(snapshot),
        "numbers": [
            ["Ranks", num_ranks_text(snapshot), _unrecorded(snapshot)],
            ["Steps", *_step_numbers(snapshot)],
            [
                "Blocked", "–" if math.isnan(snapshot.blocked_share)
                else f"{snapshot.blocked_share:.0%}", f"of the last {snapshot.window_s:.0f} s",
            ],
            [
                "Sent", f"{text_of_bytes(sum(each.bytes_per_s for each in snapshot.kinds))}/s",
                f"{sum(each.calls_per_s for each in snapshot.kinds):,.3g} calls/s, all ranks",
            ],
        ],
        "durations": [round(each, 6) for each in steps.durations_s],
        "problems": [_problem(each) for each in snapshot.problems],
        "notes": _notes(snapshot),
        "groups": [_group(each) for each in shown_groups(snapshot)],
        "cells": [_cell(each) for each in snapshot.ranks],
        "minute": (minute or LastMinute()).columns(snapshot),
        "ranks": [_line(each) for each in lines[:_MOST_LINES] if each],
        "kinds": [
            {
                "kind": each.kind,
                "rate": f"{text_of_bytes(each.bytes_per_s)}/s",
                "calls": f"{each.calls_per_s:,.3g} calls/s",
                "bytes": each.bytes_per_s,
            }
            for each in snapshot.kinds
        ],
        "stragglers": [
            {"rank": f"rank {each.rank}", "share": each.share, "text": f"{each.share:.1%}"}
            for each in snapshot.stragglers
            if each.share >= 0.005
        ],
        "stacks": [
            _stack(threads, dumps)
            for threads, dumps in alike_stacks(snapshot.dumps, most_threads=4)[:_MOST_STACKS]
        ],
    }  # fmt: skip
    return _visible(state)


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: _visible(each) for name, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, list) else value


def _verdict(snapshot: Snapshot) -> list[str]:
    """Return the state of the run in a line, and "good", "bad" or "" if it is not known yet."""
    faults = [each for each in snapshot.problems if each.problem in FAULTS]
    if faults:
        first = _problem(faults[0])
        return [f"{capitalized(first['name'])}: {first['text']}", "bad"]
    if snapshot.problems:
        return [f"{counted(len(snapshot.problems), 'problem')}, none of them a fault", ""]
    if not snapshot.ranks:
        return ["No rank has written anything yet", ""]
    if snapshot.is_over:
        return ["The run is over; no problem was found", "good"]
    return ["The run makes progress; no problem was found", "good"]


def _unrecorded(snapshot: Snapshot) -> str:
    return (
        f"no recording yet of {text_of_ranks(snapshot.unrecorded)}" if snapshot.unrecorded else ""
    )


def _step_numbers(snapshot: Snapshot) -> tuple[str, str]:
    steps = snapshot.steps
    if steps.step < 0:
        return "–", "none has ended, or none is marked"
    rate = "" if math.isnan(steps.per_s) else f", {steps.per_s:.3g} per second"
    last = text_of_duration(steps.durations_s[-1] * _SECOND)
    trend = trend_text(steps.change)
    return f"{steps.step:,}{rate}", f"{last} each{f', {trend}' if trend else ''}"


def _notes(snapshot: Snapshot) -> list[str]:
    notes = list(snapshot.notes)
    if snapshot.is_gone:
        notes.insert(0, "the folder has vanished; this is its last state")
    if snapshot.bytes_left:
        left = text_of_bytes(snapshot.bytes_left)
        notes.insert(0, f"reading the earlier recording: {left} to go")
    return notes


def _problem(problem: LiveProblem) -> dict[str, Any]:
    since = "" if math.isnan(problem.for_s) else f" for {age_text(problem.for_s)}"
    return {
        "name": problem.problem + since,
        "text": problem.text,
        "source": source_beside(problem),
        "is_fault": problem.problem in FAULTS,
    }


def _group(group: GroupState) -> dict[str, Any]:
    num = len(group.arrived) + len(group.missing) + len(group.unknown)
    missing = "" if not group.missing else text_of_ranks(group.missing)
    if not missing and group.unknown:
        missing = f"unknown: {text_of_ranks(group.unknown)}"
    return {
        "name": group.name,
        "call": group.call,
        "arrived": f"{len(group.arrived)} of {num}",
        "share": len(group.arrived) / max(num, 1),
        "missing": missing or "all arrived",
        "is_missing": bool(group.missing),
        "for": age_text(group.for_s),
    }


def _state_of(rank: RankState) -> str:
    """Return the class of a rank's cell."""
    if rank.life == ENDED:
        return "ended"
    if rank.life != RUNNING:
        return "lost"
    if rank.is_hanging:
        return "hanging"
    return "blocked" if rank.is_blocked else "flying" if rank.call else "free"


def _cell(rank: RankState) -> list[Any]:
    return [rank.rank, _state_of(rank), f"{now_text(rank)}, {ages_text([rank])}"]


def _line(ranks: list[RankState]) -> dict[str, Any]:
    first = ranks[0]
    return {
        "ranks": names_text(ranks),
        "state": _state_of(first),
        "now": now_text(first),
        "for": ages_text(ranks),
        "step": steps_text(ranks),
        "blocked": blocked_text(ranks),
        "source": first.source if first.call or not first.source else f"after {first.source}",
    }


def _stack(threads: Any, dumps: list[StackDump]) -> dict[str, Any]:
    return {
        "title": f"{capitalized(text_of_ranks([each.rank for each in dumps]))} at "
        f"{clock_text(dumps[0].at_ns)}",
        "threads": [
            {
                "name": thread.name,
                "frames": [
                    [f"{file}:{number}", function, is_users(file)]
                    for file, number, function in thread.frames
                ],
            }
            for thread in threads
        ],
    }
