"""Reference computation of every number: plain loops over the rows of a trace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from commtrace.collective_table import KINDS, busbw_factor
from commtrace.event import ROWS
from commtrace.tracefile import Trace

NAMES = (
    "num_calls",
    "calls_per_step",
    "payload_bytes",
    "wire_bytes",
    "time_ns",
    "device_ns",
    "blocked_ns",
    "num_untimed",
    "share",
    "share_of_steps",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
)


def rows(trace: Trace, table: str) -> list[Any]:
    return [ROWS[table](*row) for row in trace.rows(table)]


def known_sum(values: Iterable[int]) -> float:
    known = [value for value in values if value >= 0]
    return sum(known) if known else math.nan


def time_of(call: Any) -> int:
    """Time from issue to completion; -1 if the end of the call is unknown."""
    has_end = call.complete_ns >= call.issue_ns or call.blocked_ns >= 0
    return duration_of(call) if call.issue_ns >= 0 and has_end else -1


def duration_of(call: Any) -> int:
    """Time for which the call is known to have lasted, at least."""
    if call.complete_ns >= call.issue_ns:
        return call.complete_ns - call.issue_ns
    return max(call.blocked_ns, call.call_ns, 0)


def measured_time_of(call: Any) -> int:
    """Time by which bandwidth is computed: on the device, if no other time is known."""
    return time if (time := time_of(call)) >= 0 else call.device_ns


def steps_left_out(trace: Trace) -> set[int]:
    """The first step, or a single later one, that takes twice the median of those after it."""
    durations: dict[int, list[int]] = {}
    for each in rows(trace, "steps"):
        if each.start_ns >= 0 and each.end_ns >= 0:
            durations.setdefault(each.step, []).append(max(each.end_ns - each.start_ns, 0))
    lasts = {step: sum(times) / len(times) for step, times in durations.items()}
    first, others = min(lasts, default=-1), sorted(lasts)[1:]
    usual = statistics.median([lasts[step] for step in others] or [0])
    if "part" in trace.run or usual <= 0:
        return set()
    found = [step for step in others if len(others) > 2 and lasts[step] >= 2 * usual]
    return {*(found if len(found) == 1 else ()), *([first] if lasts[first] >= 2 * usual else ())}


def measures_of(trace: Trace, calls: list[Any]) -> dict[str, float]:
    """Measures of some of a trace's calls."""
    num_ranks = len(rows(trace, "ranks"))
    recorded = sum(rank.end_ns - rank.start_ns for rank in rows(trace, "ranks"))
    away = steps_left_out(trace)
    steps = [each for each in rows(trace, "steps") if each.step not in away]
    num_steps = len({(each.rank, each.step) for each in steps})
    sizes = {group.name: group.size for group in rows(trace, "groups")}
    blocked = known_sum(call.blocked_ns for call in calls)
    timed = [call for call in calls if call.payload_bytes >= 0 and measured_time_of(call) > 0]
    seconds = sum(measured_time_of(call) for call in timed) / 1e9
    payload = sum(call.payload_bytes for call in timed)
    bus = sum(
        call.payload_bytes * busbw_factor(call.kind, sizes[call.group])
        for call in timed
        if call.kind in KINDS and call.group in sizes
    )
    return {
        "num_calls": len(calls) / num_ranks,
        "calls_per_step": _ratio(
            sum(call.step >= 0 and call.step not in away for call in calls), num_steps
        ),
        "payload_bytes": known_sum(call.payload_bytes for call in calls) / num_ranks,
        "wire_bytes": known_sum(call.wire_bytes for call in calls) / num_ranks,
        "time_ns": known_sum(time_of(call) for call in calls) / num_ranks,
        "device_ns": known_sum(call.device_ns for call in calls) / num_ranks,
        "blocked_ns": blocked / num_ranks,
        "num_untimed": sum(call.blocked_ns < 0 for call in calls) / num_ranks,
        "share": blocked / recorded,
        "share_of_steps": _ratio(
            known_sum(
                call.blocked_ns for call in calls if call.step >= 0 and call.step not in away
            ),
            sum(step.end_ns - step.start_ns for step in steps),
        ),
        "algbw_bytes_per_s": payload / seconds if payload else math.nan,
        "busbw_bytes_per_s": bus / seconds if bus else math.nan,
    }


def _ratio(part: float, total: float) -> float:
    return part / total if total else math.nan


EVERYONE = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


TRANSFERS = ("send", "recv")


def numbers_of(comm: list[Any]) -> list[int]:
    """Sequence number of each collective in its group, not counting transfers."""
    transfers: dict[tuple[int, str], list[int]] = {}
    for call in comm:
        if call.kind in TRANSFERS and call.seq >= 0:
            transfers.setdefault((call.rank, call.group), []).append(call.seq)
    return [
        call.seq - sum(before < call.seq for before in transfers.get((call.rank, call.group), ()))
        for call in comm
    ]


def other_end_of(comm: list[Any], call: Any) -> Any:
    """Return the call at the other end of a transfer, or None."""

    def same_way(kind: str, rank: int, peer: int) -> list[Any]:
        found = [
            c for c in comm if (c.kind, c.rank, c.peer, c.group) == (kind, rank, peer, call.group)
        ]
        return sorted(found, key=lambda c: c.id)

    if call.peer < 0:
        return None
    place = same_way(call.kind, call.rank, call.peer).index(call)
    others = same_way(TRANSFERS[call.kind == "send"], call.peer, call.rank)
    return others[place] if place < len(others) else None


def waits_of(trace: Trace) -> list[tuple[int, int] | None]:
    """Each call's wait and the rank that ended it, from first principles; None if not known."""
    found = waits_and_last_calls_of(trace)
    return [None if each is None else (each[0], each[1].rank) for each in found]


def waits_and_last_calls_of(trace: Trace) -> list[tuple[int, Any] | None]:
    """Each call's wait and the call that ended it; None if not known."""
    comm, lasts = rows(trace, "comm"), last_calls_of(trace)
    return [
        None if last is None or call.blocked_ns < 0 else (_wait_of(call, last), last)
        for call, last in zip(comm, lasts, strict=True)
    ]


def last_calls_of(trace: Trace) -> list[Any]:
    """The last call to arrive of those that each call needs, itself included; None if not known."""
    comm = rows(trace, "comm")
    sizes = {group.name: group.size for group in rows(trace, "groups")}
    numbers = numbers_of(comm)
    peers_of: dict[Any, list[Any]] = {}
    for call, number in zip(comm, numbers, strict=True):
        if call.kind not in TRANSFERS:
            peers_of.setdefault((call.group, number), []).append(call)
    return [
        _last_of(comm, call, peers_of.get((call.group, number), []), sizes.get(call.group))
        for call, number in zip(comm, numbers, strict=True)
    ]


def _last_of(comm: list[Any], call: Any, peers: list[Any], size: int | None) -> Any:
    if call.kind in TRANSFERS:
        peers = [call, other_end_of(comm, call)]
        total = peers[1] is not None
    else:
        total = (
            len(peers) == size
            and len({peer.rank for peer in peers}) == len(peers)
            and len({(peer.kind, peer.root) for peer in peers}) == 1
        )
    if not total or call.kind == "made_up":
        return None
    is_root = call.rank == call.root
    if call.kind in (*EVERYONE, *TRANSFERS) or (call.kind in ("reduce", "gather") and is_root):
        needed = peers
    elif call.kind in ("broadcast", "scatter"):
        needed = [peer for peer in peers if peer.rank == call.root]
    else:
        needed = []
    return max([call, *needed], key=lambda peer: (peer.issue_ns, peer is call, -peer.rank))


def _wait_of(call: Any, last: Any) -> int:
    in_call = min(call.call_ns, call.blocked_ns)
    returned = call.issue_ns + in_call  # no wait begins before this; one may end after completion
    ended = call.issue_ns + duration_of(call)
    spans = [
        (call.issue_ns, returned),
        (max(returned, ended - (call.blocked_ns - in_call)), ended),
    ]
    return sum(max(0, min(end, last.issue_ns) - start) for start, end in spans)
