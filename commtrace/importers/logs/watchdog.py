"""Calls and progress of ranks from the lines of torch's watchdog.

A line that a collective timed out is a call in flight. A status line has, for a group, the number
of the last collective that its rank issued, and of the last that completed. Time-out lines name no
group: it is taken from the status of the same rank at the same number.

A line has no year and no time zone: the year is the latest that does not lie after the file was
written, and the time is in UTC. Without the time of any line of a rank, no rank has times.

Only what lines state is a fact: a rank without a line is unknown, and so is a group whose number is
used by several groups, as in early releases, where each process counts its groups by itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from commtrace.collective_table import KINDS
from commtrace.device_kernels import UNKNOWN
from commtrace.event import CommEvent, CommunicatorRow
from commtrace.importers.log_lines import LogPlace, TimedOutWork, WorkStatus
from commtrace.importers.rank_record import RankRecord, group_row
from commtrace.torch_names import NOT_KNOWN, TRANSFERS, kind_of, shapes_text
from commtrace.units import counted

UNNAMED = "unnamed"
"""Name of the group of lines that name none, if all lines fit a single group."""

_DEFAULT = "default_pg"


@dataclass(slots=True)
class _Member:
    """A rank in a group: the largest numbers that its lines state, and what timed out."""

    description: str = ""
    group_rank: int = NOT_KNOWN
    enqueued: int = NOT_KNOWN
    started: int = NOT_KNOWN
    completed: int = NOT_KNOWN
    works: dict[int, TimedOutWork] = field(default_factory=dict)

    def see(self, place: LogPlace) -> None:
        self.description = self.description or place.description
        self.group_rank = max(self.group_rank, place.group_rank)


_Members = dict[tuple[str, int], _Member]
"""Members by group and global rank."""


@dataclass(slots=True)
class WatchdogLog:
    """Lines of the watchdog in several files.

    Attributes:
        paths: The first file with a line of each rank.
        times: First and last time of the lines of each rank, as `instant_of` returns it.
        num_unplaced: Number of lines whose rank is unknown.
        notes: Missing information.
    """

    members: _Members = field(default_factory=dict)
    paths: dict[int, Path] = field(default_factory=dict)
    times: dict[int, tuple[int, int]] = field(default_factory=dict)
    unplaced_works: list[tuple[int, TimedOutWork]] = field(default_factory=list)
    num_unplaced: int = 0
    notes: list[str] = field(default_factory=list)
    _written_ns: dict[Path, int] = field(default_factory=dict)
    _by_number: dict[tuple[int, int], set[str]] = field(default_factory=dict)

    def add(self, path: Path, rank_in_name: int, line: TimedOutWork | WorkStatus) -> None:
        """Add a line of a file."""
        place = line.place
        rank = _global_rank(place, rank_in_name)
        if rank < 0:
            self.num_unplaced += 1
            return
        self._see_time(rank, path, line)
        if isinstance(line, TimedOutWork):
            if place.group:
                member = self._member(place, rank)
                member.works.setdefault(line.seq_num, line)
                self._by_number.setdefault((rank, line.seq_num), set()).add(place.group)
            else:
                self.unplaced_works.append((rank, line))
            return
        member = self._member(place, rank)
        if line.at_work >= 0 and place.group:
            self._by_number.setdefault((rank, line.at_work), set()).add(place.group)
        member.enqueued = max(member.enqueued, line.enqueued)
        member.started = max(member.started, line.started)
        member.completed = max(member.completed, line.completed)

    def _see_time(self, rank: int, path: Path, line: TimedOutWork | WorkStatus) -> None:
        """Note the file of a rank, and the time of its line."""
        if path not in self._written_ns:
            self._written_ns[path] = path.stat().st_mtime_ns
        path = self.paths.setdefault(rank, path)
        until = instant_of(line.place.time, self._written_ns[path])
        since = self.issued_ns(rank, line) if isinstance(line, TimedOutWork) else until
        if until >= 0:
            first, last = self.times.get(rank, (until, until))
            self.times[rank] = min(first, max(since, 0)), max(last, until)

    def issued_ns(self, rank: int, work: TimedOutWork) -> int:
        """Return when a call was issued: the time of its line less its running time, or -1."""
        ended = instant_of(work.place.time, self._written_ns[self.paths[rank]])
        is_known = ended >= 0 and work.ran_for_ms >= 0
        return ended - work.ran_for_ms * 1_000_000 if is_known else NOT_KNOWN

    def _member(self, place: LogPlace, rank: int) -> _Member:
        member = self.members.setdefault((place.group or UNNAMED, rank), _Member())
        member.see(place)
        return member

    def finish(self) -> list[tuple[int, TimedOutWork]]:
        """Give calls without a group their group if it is known; return the other calls."""
        _separate(self.members, self.notes)
        left = []
        for rank, work in dict.fromkeys(self.unplaced_works):
            groups = self._by_number.get((rank, work.seq_num), set())
            own = [self.members.get((name, rank)) for name in _names(groups, rank)]
            found = [member for member in own if member is not None]
            if len(found) == 1:
                found[0].works.setdefault(work.seq_num, work)
            else:
                left.append((rank, work))
        if not left or any(name != UNNAMED for name, _ in self.members):
            return left
        if _fit_one_group(left):
            for rank, work in left:
                member = self.members.setdefault((UNNAMED, rank), _Member())
                member.see(work.place)
                member.works.setdefault(work.seq_num, work)
            self.notes.append(
                "the groups of calls, which this release of torch does not print: the calls are "
                "compared as if of a single group, since no rank belongs to two groups"
            )
            return []
        return left


def instant_of(text: str, written_ns: int) -> int:
    """Return nanoseconds of `816 01:45:40.212`, in the year that the file's age leaves; or -1.

    >>> instant_of("816 01:45:40.5", 1_770_000_000_000_000_000) // 10**9
    1755308740
    """
    found = _TIME_OF_LINE.fullmatch(text)
    if found is None:
        return NOT_KNOWN
    month, day, *time_of_day = (int(part) for part in found.groups()[:5])
    latest = datetime.fromtimestamp(written_ns // 10**9, timezone.utc) + timedelta(days=1)
    for year in range(latest.year, latest.year - 9, -1):  # some are no leap years
        with contextlib.suppress(ValueError):
            instant = datetime(year, month, day, *time_of_day, tzinfo=timezone.utc)
            if 0 <= instant.timestamp() <= latest.timestamp():
                return int(instant.timestamp()) * 10**9 + int((found[6] or "").ljust(9, "0"))
    return NOT_KNOWN


_TIME_OF_LINE = re.compile(r"(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?", re.ASCII)


def _global_rank(place: LogPlace, rank_in_name: int) -> int:
    if place.rank >= 0:
        return place.rank
    if rank_in_name >= 0:
        return rank_in_name
    is_of_all = not place.group or place.description == _DEFAULT or place.group == "0"
    return place.group_rank if is_of_all else NOT_KNOWN


def _names(groups: Iterable[str], rank: int) -> list[str]:
    return [each for name in groups for each in (name, _own_name(name, rank))]


def _own_name(name: str, rank: int) -> str:
    return f"{name} of rank {rank}"


def _separate(members: _Members, notes: list[str]) -> None:
    """Rename the groups of a number that several groups have, so that they are not compared."""
    holders: dict[tuple[str, int], set[int]] = {}
    for (name, rank), member in members.items():
        if member.group_rank >= 0 and name != UNNAMED:
            holders.setdefault((name, member.group_rank), set()).add(rank)
    shared = {name for (name, _), ranks in holders.items() if len(ranks) > 1}
    for name, rank in [key for key in members if key[0] in shared]:
        members[_own_name(name, rank), rank] = members.pop((name, rank))
    if shared:
        notes.append(
            f"the ranks of group {', '.join(sorted(shared)[:3])}: several groups have that number, "
            "which each process counts by itself, so their calls are not compared"
        )


def _fit_one_group(works: Iterable[tuple[int, TimedOutWork]]) -> bool:
    """Return whether calls can belong to a single group: one per rank, with a number."""
    numbers: dict[int, set[tuple[int, str]]] = {}
    for rank, work in works:
        numbers.setdefault(rank, set()).add((work.seq_num, work.operation))
    every = [each for of_rank in numbers.values() for each in of_rank]
    return len(every) == len(numbers) and all(number >= 0 for number, _ in every)


def add_watchdog(records: dict[int, RankRecord], log: WatchdogLog, *, has_calls: bool) -> list[str]:
    """Add groups, progress and calls in flight to ranks' records; return missing information.

    Args:
        records: The records by rank, to which records of other ranks are added.
        log: The lines.
        has_calls: Other lines have the calls, so that only progress is added.
    """
    left = log.finish()
    if log.times.keys() != log.paths.keys() or records:
        log.times.clear()
    world_size = 1 + max([*log.paths, *records])
    rows = _group_rows(log.members, world_size)
    for (name, rank), member in log.members.items():
        record = _record(records, log, rank, world_size)
        record.groups[name] = rows[name]
        record.communicators.append(
            CommunicatorRow(
                rank=rank,
                group=name,
                num_enqueued=member.enqueued,
                num_started=member.started,
                num_completed=member.completed,
            )
        )
        if not has_calls:
            for number in sorted(member.works):
                record.comm.append(_row(record, name, member.works[number], log))
    for rank, work in () if has_calls else left:
        record = _record(records, log, rank, world_size)
        record.comm.append(_row(record, "", work, log))
    return _lacks(log, left, world_size)


def _record(
    records: dict[int, RankRecord], log: WatchdogLog, rank: int, world_size: int
) -> RankRecord:
    if rank not in records:
        start, end = log.times.get(rank, (0, 0))
        records[rank] = RankRecord(rank, log.paths[rank], device="cuda", start_ns=start, end_ns=end)
    records[rank].world_size = max(records[rank].world_size, world_size)
    return records[rank]


def _group_rows(members: _Members, world_size: int) -> Mapping[str, object]:
    by_name: dict[str, dict[int, _Member]] = {}
    for (name, rank), member in members.items():
        by_name.setdefault(name, {})[rank] = member
    rows = {}
    for name, of_group in by_name.items():
        description = max((each.description for each in of_group.values()), default="")
        is_of_all = description == _DEFAULT or name == UNNAMED
        ranks = list(range(world_size)) if is_of_all else _in_order(of_group)
        rows[name] = group_row(name, description, ranks, "nccl")
    return rows


def _in_order(of_group: Mapping[int, _Member]) -> list[int]:
    """Return the global ranks with lines, by their ranks in the group as far as these are known."""
    return sorted(of_group, key=lambda rank: (of_group[rank].group_rank, rank))


def _row(record: RankRecord, group: str, work: TimedOutWork, log: WatchdogLog) -> object:
    kind = kind_of(work.operation)
    kind = kind if kind in KINDS else UNKNOWN
    is_numbered = bool(group) and kind not in TRANSFERS and work.seq_num > 0
    sizes = [shapes_text([(num,)]) if num >= 0 else "" for num in (work.num_in, work.num_out)]
    return CommEvent(
        rank=record.rank,
        id=len(record.comm),
        kind=kind,
        native_op=f"nccl:{work.operation}",
        group=group,
        seq=work.seq_num if is_numbered else NOT_KNOWN,
        issue_ns=log.issued_ns(record.rank, work) if log.times else NOT_KNOWN,
        input_shapes=sizes[0],
        output_shapes=sizes[1],
        payload_bytes=0 if kind == "barrier" else NOT_KNOWN,
    )


def _lacks(log: WatchdogLog, left: list[tuple[int, TimedOutWork]], world_size: int) -> list[str]:
    lacks = [
        "all calls but those that timed out, and of these element types, bytes, ends and lines",
        "the year and the time zone of times: the last year before the file was written, and UTC"
        if log.times
        else "times, which not all lines have",
        *log.notes,
    ]
    silent = sorted(set(range(world_size)) - log.paths.keys())
    if silent:
        lacks.append(f"lines of {counted(len(silent), 'rank')}, whose progress is unknown")
    lacks.append(f"the number of ranks: at least {world_size:,}, by the highest rank with a line")
    if log.num_unplaced:
        lacks.append(f"the ranks of lines, which are left out: {log.num_unplaced:,}")
    if left:
        lacks.append(f"the groups of calls that timed out: {len(left):,}")
    return lacks
