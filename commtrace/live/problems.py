"""Problems of a run as it is now, by the consistency check of finished runs.

If a run hangs, the check reads all data recorded so far, so that its result is the result of
`commtrace check`. If the data is large, or nothing hangs, the check reads the tail of the run: the
calls in flight, the last call of each rank in each of its groups, and the recent calls kept in
memory. The check needs pandas and some time, so it runs only if a rank hangs or calls disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from commtrace.errors import TraceError
from commtrace.event import CommEvent, GroupRow, RankRow
from commtrace.live.life import DIED, ENDED, GONE, OVER, SILENT
from commtrace.live.names import TRANSFERS, RunNames, Site
from commtrace.live.notes import problems_of_lives
from commtrace.live.snapshot import LiveProblem, RankState
from commtrace.live.tail import CALL_COLUMNS, InFlight, number_fact, text_fact
from commtrace.live.watch import Watch, WatchedRank
from commtrace.tracefile import trace_of_rows
from commtrace.tracefile.running import READ_NS
from commtrace.units import counted

HANG, WAITING, MISMATCH, STRAGGLER = "hang", "waiting", "mismatch", "straggler"

_DISAGREEMENTS = frozenset(("kind", "reduce_op", "root", "dtype", "size"))
_OF_HANGS = _DISAGREEMENTS | {
    "deadlock",
    "missing call",
    "extra call",
    "transfer",
    "tag",
    "group order",
}
_MOST_BYTES = 16_000_000
"""Size of a run up to which all of it is checked while it hangs."""
_SUMMARY = "cannot check the tail of the run"
_PLACE = {name: place for place, name in enumerate(CALL_COLUMNS)}
_OF_SITE = [name for name in Site._fields if name != "group"]


@dataclass(frozen=True, slots=True)
class _Row:
    rank: int
    id: int
    number: int
    issue_ns: int
    complete_ns: int
    site: int
    thread: int = -1
    step: int = -1


def hangs(
    watch: Watch, lives: Mapping[int, str], since_ns: int, *, reads_all: bool
) -> tuple[list[LiveProblem], bool]:
    """Return the causes of hanging ranks: the faults that began before `since_ns`, in order.

    Args:
        watch: The state of the run.
        lives: The state of each rank.
        since_ns: The time.
        reads_all: Check all data recorded so far, unless it is large.

    Returns:
        The causes, and False if the data could not be read at the moment, so that only the last
        calls were checked.
    """
    judged, is_read = None, True
    if reads_all:
        try:
            judged = _judged(watch.folder)
        except (TraceError, OSError):  # a rank begins, or removes its files
            is_read = False
    if judged is None:
        judged = [(row, None) for row in _consistency(watch, lives, _tail(watch))]
    found = [
        _problem(row, HANG, watch, parted)
        for row, parted in judged
        if row["is_fault"] and row["problem"] in _OF_HANGS and 0 <= row["at_ns"] <= since_ns
    ]
    return found, is_read


def of_lives(
    watch: Watch, lives: Mapping[int, str], run: Path, known: Sequence[LiveProblem] = ()
) -> list[LiveProblem]:
    """Return a problem for each state of ranks that stopped writing before they ended.

    If ranks died of a fault of other ranks, it comes first.

    Args:
        watch: The state of the run.
        lives: The state of each rank.
        run: Its folder, or its file. It is read once all ranks are over, unless it is large.
        known: Calls in which ranks disagree, so far.
    """
    found = problems_of_lives(watch, lives)
    died = next((each for each in found if each.problem == DIED), None)
    if died is None:
        return found
    if not known and all(life in OVER for life in lives.values()):
        judged: list[_Judged] = []
        with suppress(TraceError, OSError):  # the files may be removed meanwhile
            judged = _judged(run) or []
        known = [_problem(row, DIED, watch, parted) for row, parted in judged if row["is_fault"]]
    is_of_others = bool(known) and {*known[0].ranks} != {*died.ranks}
    return [replace(known[0], problem=DIED), *found] if is_of_others else found


_Judged: TypeAlias = "tuple[dict[str, Any], dict[str, Any] | None]"
"""A row of table `consistency`, and its divergence if there is one."""


def _judged(run: Path) -> list[_Judged] | None:
    """Return the faults in the data recorded so far, each with its divergence.

    None if the data is large.

    Raises:
        TraceError, OSError: It cannot be read at the moment.
    """
    from commtrace.analyze import load
    from commtrace.analyze.consistency import consistency
    from commtrace.analyze.divergence import divergences, of_fault
    from commtrace.tracefile import read_trace

    files = [run] if run.is_file() else run.rglob("*.spool")
    if sum(path.stat().st_size for path in files) > _MOST_BYTES:
        return None
    frames = load(read_trace(run))
    # `hangs` leaves out recent calls by itself, of an age that the user chooses.
    facts = {name: fact for name, fact in frames.run.items() if name != READ_NS}
    frames = replace(frames, run=facts)
    faults, parted = consistency(frames), divergences(frames)
    rows = [{str(name): each for name, each in row.items()} for row in faults.to_dict("records")]
    return [(row, next(iter(of_fault(parted, row)), None)) for row in rows]


def unexplained(hanging: Sequence[RankState]) -> LiveProblem:
    """Return a problem for ranks that hang although no rank is known to be missing."""
    longest = max(hanging, key=lambda each: each.stuck_s)
    others = len(hanging) - 1
    more = f", and {counted(others, 'other rank')} in calls too" if others else ""
    why = (
        "The other end has been issued, or its rank is not recorded: the transfer itself hangs, or "
        "the other rank has not issued it."
        if longest.call.startswith(TRANSFERS)
        else "All recorded members have arrived there: the transfer itself hangs, or a member "
        "without a recording is missing."
    )
    text = f"Rank {longest.rank} is in {longest.call}{more}. {why}"
    return LiveProblem(
        problem=HANG,
        ranks=tuple(each.rank for each in hanging),
        text=text,
        source=longest.source,
        for_s=longest.stuck_s,
    )


def mismatches(watch: Watch, lives: Mapping[int, str]) -> list[LiveProblem]:
    """Return the calls in which members of a group disagree."""
    rows = _tail(watch)
    for (_, number), ends in watch.disagreements.found.items():
        # An id that no call has: the ids of these calls are not kept.
        rows += [_Row(rank, 1 << 60, number, 0, 0, site) for rank, site in ends]
    groups = {group for group, _ in watch.disagreements.found}
    rows = [row for row in rows if watch.names.sites[row.site].group in groups]
    return [
        _problem(row, MISMATCH, watch, None)
        for row in _consistency(watch, lives, rows)
        if row["problem"] in _DISAGREEMENTS
    ]


def _problem(
    row: Mapping[str, Any], problem: str, watch: Watch, parted: Mapping[str, Any] | None
) -> LiveProblem:
    from commtrace.analyze.divergence import verdict_of

    begun_ns = row["at_ns"]
    return LiveProblem(
        problem=problem,
        ranks=tuple(int(rank) for rank in row["ranks"].split(",") if rank),
        text=verdict_of(row, parted),
        source=row["source"],
        for_s=(watch.clock.wall_ns() - begun_ns) / 1e9 if begun_ns > 0 else float("nan"),
    )


def _tail(watch: Watch) -> list[_Row]:
    """Return the calls that show the progress of each rank, each once."""
    behind = _least_numbers(watch)
    rows: dict[tuple[int, int], _Row] = {}
    for (rank, _), slot in watch.progress.slots.items():
        if slot.last_call is not None and rank in watch.ranks:
            number, issue, complete, site = slot.last_call
            rows[rank, number] = _Row(rank, number, slot.last, issue, complete, site)
    for rank in watch.ranks.values():
        for row in _recent(rank, watch, behind):
            rows.setdefault((row.rank, row.id), row)
        for call, number in zip(rank.in_flight, rank.numbers, strict=False):
            if watch.names.sites[call.site].kind not in TRANSFERS:
                rows[rank.rank, call.id] = _in_flight_row(rank, call, number, watch.names)
    for rank, call in _lone_transfers(watch):
        rows[rank.rank, call.id] = _in_flight_row(rank, call, -1, watch.names)
    return list(rows.values())


def _in_flight_row(rank: WatchedRank, call: InFlight, number: int, names: RunNames) -> _Row:
    # A thread is stopped only by a call that it is inside.
    thread = call.thread if rank.is_blocked_in(call, names) else -1
    return _Row(
        rank.rank, call.id, number, call.issue_ns, call.complete_ns, call.site, thread, call.step
    )


def _least_numbers(watch: Watch) -> dict[int, int]:
    """Return the least progress of the members of each group whose members' progress differs."""
    least: dict[int, int] = {}
    most: dict[int, int] = {}
    for slot in watch.progress.slots.values():
        least[slot.group] = min(least.get(slot.group, slot.last), slot.last)
        most[slot.group] = max(most.get(slot.group, slot.last), slot.last)
    return {group: least[group] for group in least if least[group] < most[group]}


def _recent(rank: WatchedRank, watch: Watch, behind: Mapping[int, int]) -> Iterable[_Row]:
    if not behind or not rank.recent.size:
        return
    columns = rank.recent[
        [_PLACE[name] for name in ("id", "seq", "issue_ns", "complete_ns", "site")]
    ]
    for number, seq, issue, complete, site in columns.T.tolist():
        group = watch.names.sites[site].group
        slot = watch.progress.slots.get((rank.rank, group))
        # In a group with transfers, the sequence is not the number.
        if seq > behind.get(group, seq) and slot is not None and not slot.is_mixed:
            yield _Row(rank.rank, number, seq, issue, complete, site)


def _lone_transfers(watch: Watch) -> Iterable[tuple[WatchedRank, InFlight]]:
    """Return the transfers in flight whose other end has not been issued."""
    sites, ends = watch.names.sites, watch.progress.num_transfers
    issued: dict[tuple[int, int, int, str], int] = {}
    for (rank, group, site), num in ends.items():
        key = (rank, group, sites[site].peer, sites[site].kind)
        issued[key] = issued.get(key, 0) + num
    for rank in watch.ranks.values():
        of_end: dict[tuple[int, int, int, str], list[InFlight]] = {}
        for call in rank.in_flight:
            site = sites[call.site]
            if site.kind in TRANSFERS:
                end = (rank.rank, site.group, site.peer, site.kind)
                of_end.setdefault(end, []).append(call)
        for (own, group, peer, kind), calls in of_end.items():
            other = (peer, group, own, "recv" if kind == "send" else "send")
            num_before = issued.get((own, group, peer, kind), 0) - len(calls)
            for place, call in enumerate(sorted(calls, key=lambda each: each.id)):
                # A transfer issued ahead, without a wait, stops no rank.
                may_wait = not rank.is_on_host or rank.is_blocked_in(call, watch.names)
                if may_wait and num_before + place >= issued.get(other, 0):
                    yield rank, call


def _consistency(
    watch: Watch, lives: Mapping[int, str], rows: Sequence[_Row]
) -> list[dict[str, Any]]:
    """Return the rows of the analysis `consistency` on some calls; none if they are invalid."""
    if not rows:
        return []
    from commtrace.analyze import load
    from commtrace.analyze.consistency import consistency
    from commtrace.tracefile.validate import validated

    names = watch.names
    groups = dict.fromkeys(names.sites[row.site].group for row in rows)
    name_of = _distinct_names(names, groups)
    first = min(watch.ranks)
    run_facts = watch.ranks[first].recording.facts.get("run")
    world_size = number_fact(run_facts if isinstance(run_facts, dict) else {}, "world_size", 1)
    run = {"world_size": max(world_size, max(watch.ranks) + 1)}
    trace = trace_of_rows(
        run,
        {
            "comm": [_event(row, names, name_of, _ahead_ns(watch, row.rank)) for row in rows],
            "groups": [
                GroupRow(
                    name=name_of[group],
                    ranks=",".join(map(str, names.groups[group].ranks)),
                    size=len(names.groups[group].ranks),
                    mesh_axis=names.axes.get(group, ""),
                )
                for group in groups
            ],
            "ranks": [
                _rank_row(rank, lives.get(rank.rank, "")) for _, rank in sorted(watch.ranks.items())
            ],
        },
    )
    try:
        table = consistency(load(validated(trace, _SUMMARY)))
    except TraceError:
        return []
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _distinct_names(names: RunNames, groups: Iterable[int]) -> dict[int, str]:
    """Return the names of groups; groups of equal name get their ranks added."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for group in groups:
        name, ranks = names.groups[group]
        if name in taken:
            name = f"{name} [{','.join(map(str, ranks))}]"
        taken.add(name)
        found[group] = name
    return found


def _ahead_ns(watch: Watch, rank: int) -> int:
    return round(watch.hosts.ahead_s(watch.ranks[rank].host) * 1e9)


def _event(row: _Row, names: RunNames, name_of: Mapping[int, str], ahead_ns: int) -> Any:
    site = names.sites[row.site]
    return CommEvent(
        rank=row.rank,
        id=row.id,
        group=name_of[site.group],
        seq=-1 if site.kind in TRANSFERS else row.number,
        issue_ns=max(row.issue_ns - ahead_ns, -1),
        complete_ns=max(row.complete_ns - ahead_ns, -1),
        thread=row.thread,
        step=row.step,
        **{name: getattr(site, name) for name in _OF_SITE},
    )


def _rank_row(rank: WatchedRank, life: str) -> Any:
    facts = rank.recording.facts
    return RankRow(
        rank=rank.rank,
        host=text_fact(facts, "host"),
        pid=number_fact(facts, "pid"),
        start_ns=max(number_fact(facts, "start_ns"), 0),
        num_dropped=max(number_fact(facts, "num_dropped"), 0),
        complete=life not in (DIED, SILENT, GONE),
        end_ns=number_fact(facts, "end_ns") if life == ENDED else -1,
        num_ops_dropped=0,
    )
