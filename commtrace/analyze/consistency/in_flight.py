"""Collectives in dumps that all ranks have issued and that had not ended: not a desync.

A group stands at its lowest number in flight. If each member has issued that call, no rank is
missing: the network, or the device of the rank with fewer completed calls, is stuck. Ranks without
a dump may have issued the call. In a broadcast the root may complete first, in a reduce the other
ranks, so in calls with a root no rank counts as behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

import pandas as pd

from commtrace.analyze.consistency.absences import Absence
from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, Coverage, source_of
from commtrace.analyze.consistency.numbered import numbered
from commtrace.analyze.consistency.problem import Problem, call_text, numbers_text
from commtrace.analyze.run.frame import Frames
from commtrace.torch_names import ROOTED
from commtrace.units import NANOSECONDS_PER_SECOND, text_of_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Stuck:
    """The first call in flight of a group whose recorded members have all issued it.

    Attributes:
        calls: The calls that had not ended, by rank.
        members: Members with a dump.
        completed: Number of the last collective that each member's device has completed.
    """

    group: str
    number: int
    calls: pd.DataFrame
    members: tuple[int, ...]
    completed: Mapping[int, int]

    @property
    def at_ns(self) -> int:
        """Arrival of the last rank in the call."""
        return int(self.calls["issue_ns"].max())

    def behind(self) -> list[int]:
        """Return the members whose device has completed fewer calls, if they are a minority."""
        if set(self.calls["kind"]) & ROOTED:
            return []
        most = max(self.completed.values())
        found = [rank for rank, number in self.completed.items() if number < most]
        return found if len(found) * 2 < len(self.completed) else []


def stuck_calls(frames: Frames, covered: Coverage) -> list[Stuck]:
    """Return the first call in flight of each group if all its recorded members have issued it."""
    if covered.imported_from != FLIGHT_RECORDER:
        return []
    parts = frames.by_ranks(_unended)
    status = frames.communicators[frames.communicators["num_completed"] >= 0]
    if not (len(status) or any(has_ends for _, has_ends in parts)):
        return []  # the backend records no ends
    rows = pd.concat([unended for unended, _ in parts]).astype({"group": object})
    found = []
    for group, of_group in rows.groupby("group", sort=True):
        number = int(of_group["number"].min())
        reached = covered.reached[covered.reached["group"] == group]
        reached = reached[~reached["rank"].isin(covered.unrecorded)]
        if reached.empty or (reached["last"] < number).any():
            continue
        last = dict(zip(reached["rank"], reached["last"], strict=True))
        first = of_group.groupby("rank")["number"].min()
        completed = {rank: int(first.get(rank, each + 1)) - 1 for rank, each in last.items()}
        calls = of_group[of_group["number"] == number].sort_values("rank")
        found.append(Stuck(str(group), number, calls, tuple(sorted(last)), completed))
    return sorted(found, key=lambda each: each.at_ns)


def _unended(part: Frames) -> tuple[pd.DataFrame, bool]:
    calls = numbered(part)
    calls = calls[~calls["native_op"].astype(str).str.startswith("gloo")]  # gloo records no ends
    return calls[calls["complete_ns"] < 0], bool((part.comm["complete_ns"] >= 0).any())


def explained_absences(absent: list[Absence], stuck: list[Stuck]) -> set[tuple[str, int]]:
    """Return absences of ranks that are still in an earlier call that all members issued."""
    first = {each.group: each for each in stuck}
    return {
        (each.group, each.number)
        for each in absent
        if each.group in first and first[each.group].number < each.number
    }


def calls_in_flight(
    covered: Coverage, stuck: list[Stuck], until_ns: int | None
) -> Iterator[Problem]:
    """Yield the first call that all ranks have issued and that had not ended.

    Args:
        covered: Coverage of the run.
        stuck: The calls, by arrival.
        until_ns: Time of the first fault; calls issued later are consequences of it.
    """
    for each in stuck[:1]:
        if until_ns is not None and until_ns <= each.at_ns:
            continue
        call = each.calls.iloc[0]
        named = call_text(
            str(call["kind"]), each.number, each.group, covered.names.get(each.group, "")
        )
        line = f" at {source_of(call)}" if source_of(call) else ""
        since = datetime.fromtimestamp(max(each.at_ns, 0) // NANOSECONDS_PER_SECOND, timezone.utc)
        members = covered.reached.loc[covered.reached["group"] == each.group, "rank"]
        unrecorded = sorted(set(members) & covered.unrecorded)
        who = (
            f"all ranks with a dump arrived; {text_of_ranks(unrecorded)} left none"
            if unrecorded
            else "all ranks arrived: not a desync"
        )
        text = f"In flight since {since:%Y-%m-%d %H:%M:%S} UTC, {named}{line}, {who}."
        behind = each.behind()
        most = max(each.completed.values())
        if behind:
            least = min(each.completed[rank] for rank in behind)
            text += (
                f" The device of {text_of_ranks(behind)} has completed calls up to {least}, "
                f"other devices up to {most}."
            )
        elif not unrecorded:
            text += " The network or a device is stuck, or the job was still running."
        if len(stuck) > 1:
            text += f" Calls of {len(stuck) - 1} other groups are in flight, too."
        yield Problem(
            problem="in flight",
            is_fault=True,
            group=each.group,
            mesh_axis=covered.axes.get(each.group, ""),
            number=each.number,
            ranks=numbers_text(behind),
            found=f"in flight on {text_of_ranks(each.calls['rank'].tolist())}",
            source=source_of(call),
            explanation=text,
            at_ns=each.at_ns,
        )
