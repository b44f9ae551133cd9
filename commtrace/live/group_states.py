"""The oldest collective in flight of each group, and the members that have not issued it."""

from __future__ import annotations

from collections.abc import Mapping

from commtrace.live.snapshot import GroupState
from commtrace.live.tail import InFlight
from commtrace.live.watch import Watch, WatchedRank

MOST_GROUPS = 64
_SECOND = 1_000_000_000


def group_states(watch: Watch, nows: Mapping[int, int]) -> list[GroupState]:
    """Return the oldest collective in flight of each group, the longest wait first.

    Args:
        watch: The state of the run.
        nows: The present by the clock of each rank.
    """
    oldest: dict[int, tuple[int, InFlight]] = {}
    for rank in watch.ranks.values():
        for call, number in zip(rank.in_flight, rank.numbers, strict=False):
            group = watch.names.sites[call.site].group
            if call.complete_ns < 0 <= number:
                before = oldest.get(group)
                if before is None or number < before[0]:
                    oldest[group] = number, call
    found = [_state(watch, nows, group, *each) for group, each in oldest.items()]
    found.sort(key=lambda each: (not each.missing, -each.for_s))
    return found[:MOST_GROUPS]


def _state(
    watch: Watch, nows: Mapping[int, int], group: int, number: int, call: InFlight
) -> GroupState:
    name, members = watch.names.groups[group]
    slots, ages = watch.progress.slots, []
    arrived, missing, unknown = [], [], []
    for rank in members or sorted(each for each, of in slots if of == group):
        slot = slots.get((rank, group))
        if rank not in watch.ranks or (slot is not None and slot.is_unsure):
            unknown.append(rank)
        elif slot is not None and slot.last >= number:
            arrived.append(rank)
            ages += _ages(watch, watch.ranks[rank], group, number, nows[rank])
        else:
            missing.append(rank)
    axis = watch.names.axes.get(group, "")
    return GroupState(
        name=f"{axis} ({name})" if axis else name,
        label=watch.names.label(group),
        call=f"{watch.names.sites[call.site].kind} {number}",
        arrived=tuple(arrived),
        missing=tuple(missing),
        unknown=tuple(unknown),
        for_s=max(ages, default=float("nan")),
        last_s=min(ages, default=float("nan")),
    )


def _ages(watch: Watch, rank: WatchedRank, group: int, number: int, now_ns: int) -> list[float]:
    """Return the time in seconds that the rank has been in a collective, if it is in flight."""
    return [
        max((now_ns - call.issue_ns) / _SECOND, 0.0)
        for call, each in zip(rank.in_flight, rank.numbers, strict=False)
        if each == number and watch.names.sites[call.site].group == group
    ]
