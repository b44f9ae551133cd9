"""The snapshot of a run, derived from the state that `Watch` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from commtrace.analyze.consistency.problem import call_text
from commtrace.analyze.run.program_folder import folder_of, relative_to
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.live.dumps import Dumps
from commtrace.live.group_states import group_states
from commtrace.live.life import ASLEEP, DIED, ENDED, GONE, OVER, SILENT, life_of
from commtrace.live.names import TRANSFERS
from commtrace.live.notes import notes_of, run_fact
from commtrace.live.problems import (
    HANG,
    STRAGGLER,
    WAITING,
    hangs,
    mismatches,
    of_lives,
    unexplained,
)
from commtrace.live.rates import HORIZON_S
from commtrace.live.snapshot import (
    KindRate,
    LiveProblem,
    RankState,
    Snapshot,
    Straggler,
)
from commtrace.live.tail import InFlight, number_fact
from commtrace.live.watch import MOST_READING_S, Watch, WatchedRank
from commtrace.schema import FAKE, MAX_RANKS
from commtrace.units import counted

WINDOW_S = 10
"""Time that rates, blocked shares and stragglers refer to."""
NOTABLE_S = 5.0
"""Least time in a call for the snapshot to name the missing ranks."""
HANG_S = 30.0
"""Least time in a call that counts as a hang."""
MAJORITY_S = 2.0
"""Time for which a mismatch waits for the other members, which show who differs."""
STRAGGLER_SHARE = 0.1
STRAGGLER_RATIO = 3.0
STRAGGLER_CALLS = 4
"""Least share, ratio and spread over calls of a straggler."""
_SECOND = 1_000_000_000
_OUT_OF_SIGHT = (DIED, GONE, SILENT)
"""States of ranks that may have left the call in flight since their last batch."""
_AT_AN_END = frozenset((*ASLEEP, *OVER))
_MOST_UNRECORDED = 4096


class Observer:
    """Derives snapshots; keeps the problems found until the run makes progress.

    Args:
        watch: the state of the run.
        hang_s: least time in a call that counts as a hang; shorter waits are `waiting`.
        straggler_share: least part of the time for which others wait for a straggler.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        hang_s: float = HANG_S,
        straggler_share: float = STRAGGLER_SHARE,
    ) -> None:
        self.watch = watch
        self.hang_s = hang_s
        self.straggler_share = straggler_share
        self._checked: tuple[Any, ...] = ()
        self._found: list[LiveProblem] = []
        self._disagreement, self._compared_ns = (0, 0), 0
        self._mismatches: list[LiveProblem] = []
        self._dumps = Dumps(watch.folder, watch.clock.wall_ns())

    def refresh(self, most_s: float = MOST_READING_S) -> Snapshot:
        """Read new data for about `most_s` seconds, and return the state of the run."""
        clock = self.watch.clock
        begin_s = clock.monotonic_s()
        self.watch.read(most_s)
        return self._snapshot(begin_s)

    def _snapshot(self, begin_s: float) -> Snapshot:
        watch = self.watch
        at_s, wall_ns = watch.clock.monotonic_s(), watch.clock.wall_ns()
        lives = {
            rank: life_of(each.recording, at_s, watch.system) for rank, each in watch.ranks.items()
        }
        nows = {rank: self._now(each, lives[rank], at_s) for rank, each in watch.ranks.items()}
        seconds = range(wall_ns // _SECOND - WINDOW_S, wall_ns // _SECOND)
        blocked = self._blocked_shares(seconds, nows, lives)
        ranks = tuple(
            self._rank(each, lives[number], nows[number], at_s, blocked.get(number, float("nan")))
            for number, each in sorted(watch.ranks.items())
        )
        world_size = self._world_size()
        stragglers = self._stragglers(wall_ns)
        problems = self._problems(ranks, lives, stragglers, nows)
        folder = folder_of(self._command(), {each.source_file for each in watch.names.sites})
        running = list(blocked.values())
        is_over = bool(ranks) and all(life in OVER for life in lives.values())
        return Snapshot(
            folder=str(watch.folder),
            command=self._command(),
            at_ns=wall_ns,
            window_s=WINDOW_S,
            world_size=world_size,
            ranks=tuple([_beside(folder, each) for each in ranks]),
            unrecorded=self._unrecorded(world_size),
            groups=tuple(group_states(watch, nows)),
            steps=watch.steps.times(),
            kinds=tuple(self._kinds(seconds)),
            traffic=watch.totals.traffic(watch.names),
            stragglers=stragglers,
            problems=tuple([_beside(folder, each) for each in problems]),
            notes=tuple(notes_of(watch)),
            dumps=self._dumps.new(),
            bytes_left=sum(each.num_bytes_left for each in watch.tail.recordings.values()),
            is_over=is_over,
            is_gone=watch.tail.is_gone,
            refresh_s=watch.clock.monotonic_s() - begin_s,
            blocked_share=sum(running) / len(running) if running else float("nan"),
        )

    def _now(self, rank: WatchedRank, life: str, at_s: float) -> int:
        """Return the present by the clock of a rank.

        For a rank out of sight, it is the last sign of life; for a rank that has ended, its end.
        """
        if life == ENDED:
            end = number_fact(rank.recording.facts, "end_ns")
            return end if end > 0 else rank.last_ns
        now_ns = self.watch.clock.wall_ns()
        if life in _OUT_OF_SIGHT:
            now_ns -= round(max(at_s - rank.recording.changed_at_s, 0.0) * _SECOND)
        return now_ns + round(self.watch.hosts.ahead_s(rank.host) * _SECOND)

    def _blocked_shares(
        self, seconds: range, nows: Mapping[int, int], lives: Mapping[int, str]
    ) -> dict[int, float]:
        """Return the part of the window in which each rank was blocked."""
        watch = self.watch
        sums = watch.rates.blocked_ns(seconds, watch.num_seen)
        begin, end = seconds.start * _SECOND, seconds.stop * _SECOND
        found = {}
        for number, rank in watch.ranks.items():
            if lives[number] in (ENDED, *ASLEEP):
                continue
            offset = nows[number] - watch.clock.wall_ns()
            started = max(begin, rank.recording.start_ns - max(offset, 0))
            if end - started < _SECOND:
                continue
            calls = (each for each in rank.in_flight if rank.is_blocked_in(each, watch.names))
            in_call = min(map(rank.blocked_since_ns, calls), default=None)
            blocked = float(sums[rank.index])
            if in_call is not None:
                blocked += max(end - max(in_call, begin), 0)
            found[number] = min(blocked / (end - started), 1.0)
        return found

    def _rank(
        self, rank: WatchedRank, life: str, now_ns: int, at_s: float, blocked: float
    ) -> RankState:
        watch, recording = self.watch, rank.recording
        common: dict[str, Any] = {
            "rank": rank.rank,
            "host": rank.host,
            "pid": number_fact(recording.facts, "pid"),
            "life": life,
            "sign_age_s": max(at_s - recording.changed_at_s, 0.0),
            "step": watch.steps.last_of(rank.rank),
            "step_s": watch.steps.duration_of_last(rank.rank),
            "blocked_share": blocked,
            "sent_bytes": watch.totals.sent_bytes(rank.index),
            "num_restarts": len(rank.earlier),
        }
        open_calls = [each for each in rank.in_flight if each.complete_ns < 0]
        if life == ENDED or not open_calls:
            since = (now_ns - rank.last_ns) / _SECOND if rank.last_ns >= 0 else float("nan")
            site = self._last_site(rank)
            return RankState(
                **common,
                for_s=max(since, 0.0),
                source=_source(site) if site else "",
                module=site.module if site else "",
            )
        in_calls = [each for each in open_calls if rank.is_blocked_in(each, watch.names)]
        call = (in_calls or open_calls)[0]
        site = watch.names.sites[call.site]
        for_s = max((now_ns - call.issue_ns) / _SECOND, 0.0)
        # For an asynchronous call: since its rank waits for it, or made no other call.
        since_ns = rank.blocked_since_ns(call) if in_calls else rank.last_ns
        quiet_s = max((now_ns - since_ns) / _SECOND, 0.0)
        stuck_s = min(for_s, quiet_s)
        may_wait = bool(in_calls) or not (rank.is_on_host and site.kind in TRANSFERS)
        return RankState(
            **common,
            call=self._call_text(rank, call),
            is_blocked=bool(in_calls),
            group=watch.names.groups[site.group].name,
            number=self._number(rank, call),
            for_s=for_s,
            num_in_flight=len(open_calls),
            source=_source(site),
            module=site.module,
            stuck_s=stuck_s,
            is_hanging=stuck_s >= min(self.hang_s, NOTABLE_S)
            and may_wait
            and life not in (ENDED, *_OUT_OF_SIGHT),
        )

    def _last_site(self, rank: WatchedRank) -> Any:
        return self.watch.names.sites[int(rank.recent[-1, -1])] if rank.recent.size else None

    def _number(self, rank: WatchedRank, call: InFlight) -> int:
        for each, number in zip(rank.in_flight, rank.numbers, strict=False):
            if each is call:
                return number
        return -1

    def _call_text(self, rank: WatchedRank, call: InFlight) -> str:
        names = self.watch.names
        site = names.sites[call.site]
        if site.kind in TRANSFERS:
            towards = "from" if site.kind == "recv" else "to"
            return f"{site.kind} {towards} {f'rank {site.peer}' if site.peer >= 0 else 'any rank'}"
        group = names.groups[site.group].name
        return _named_call(
            site.kind, self._number(rank, call), group, names.axes.get(site.group, "")
        )

    def _kinds(self, seconds: range) -> list[KindRate]:
        names = self.watch.names
        sums = self.watch.rates.by_kind(seconds, len(names.kinds)) / len(seconds)
        rates = [
            KindRate(kind=kind, bytes_per_s=float(row[0]), calls_per_s=float(row[1]))
            for kind, row in zip(names.kinds, sums, strict=True)
            if row[1]
        ]
        return sorted(rates, key=lambda each: (-each.bytes_per_s, each.kind))

    def _stragglers(self, wall_ns: int) -> tuple[Straggler, ...]:
        stragglers = self.watch.stragglers
        stragglers.forget_before(wall_ns - HORIZON_S * _SECOND)
        late = sorted(
            ((delay, num, spread, rank) for rank, (delay, num, spread) in
             stragglers.since(wall_ns - WINDOW_S * _SECOND).items()),
            reverse=True,
        )  # fmt: skip
        total = sum(delay for delay, *_ in late)
        next_delay = [delay for delay, *_ in late[1:]] + [0]
        return tuple(
            Straggler(
                rank=rank,
                share=min(delay / (WINDOW_S * _SECOND), 1.0),
                num_late=num,
                spread=spread,
                ratio=delay / after if after else float("inf"),
            )
            for (delay, num, spread, rank), after in zip(late[:8], next_delay, strict=False)
            if stands_out(delay / total, len(self.watch.ranks))
        )

    def _problems(
        self,
        ranks: Iterable[RankState],
        lives: Mapping[int, str],
        stragglers: tuple[Straggler, ...],
        nows: Mapping[int, int],
    ) -> list[LiveProblem]:
        hanging = [each for each in ranks if each.is_hanging]
        return [
            *self._of_mismatches(lives),
            *self._of_hangs(hanging, lives),
            *of_lives(self.watch, lives, self.watch.folder, self._mismatches),
            *(
                LiveProblem(
                    problem=STRAGGLER,
                    ranks=(each.rank,),
                    text=f"All others waited for rank {each.rank} in {each.share:.0%} of the last "
                    f"{WINDOW_S} s, at {counted(each.num_late, 'collective')}.",
                )
                for each in stragglers[:1]
                if self._has_run_for(WINDOW_S)
                and each.share >= self.straggler_share
                and each.ratio >= STRAGGLER_RATIO
                and each.spread >= STRAGGLER_CALLS
            ),
        ]

    def _has_run_for(self, seconds: float) -> bool:
        """Return whether all ranks have run for some time; start-up delays them before."""
        begins = [each.recording.start_ns for each in self.watch.ranks.values()]
        return self.watch.clock.wall_ns() - max(begins, default=0) >= seconds * _SECOND

    def _of_mismatches(self, lives: Mapping[int, str]) -> list[LiveProblem]:
        """Return the calls in which members disagree, as soon as others can show who differs."""
        found = self.watch.disagreements.found
        num_to_come = self._num_to_come(found, lives)
        state = sum(map(len, found.values())), num_to_come
        now_ns = self.watch.clock.wall_ns()
        if state != self._disagreement:
            self._disagreement, self._compared_ns = state, now_ns
            self._mismatches = mismatches(self.watch, lives)
        since_s = (now_ns - self._compared_ns) / _SECOND
        problems = [replace(each, for_s=each.for_s + since_s) for each in self._mismatches]
        return [each for each in problems if not num_to_come or not each.for_s < MAJORITY_S]

    def _num_to_come(self, calls: Iterable[tuple[int, int]], lives: Mapping[int, str]) -> int:
        """Return how many living members have not issued a call of a group and number yet."""
        slots, groups = self.watch.progress.slots, self.watch.names.groups
        return sum(
            (slot := slots.get((rank, group))) is None or slot.last < number
            for group, number in calls
            for rank in groups[group].ranks
            if lives.get(rank) not in _AT_AN_END
        )

    def _of_hangs(self, hanging: list[RankState], lives: Mapping[int, str]) -> list[LiveProblem]:
        """Return the causes of hanging ranks; the check is repeated only after progress."""
        if not hanging:
            self._checked = ()
            return []
        longest = max(each.stuck_s for each in hanging)
        problem = HANG if longest >= self.hang_s else WAITING
        state = (
            problem,
            [(each.rank, each.group, each.number) for each in hanging],
            {rank: lives[rank] for rank in lives},
            [(key, slot.last) for key, slot in self.watch.progress.slots.items()],
        )
        if state != self._checked:
            # Differences between calls that began later than half of that time are usual.
            since = self.watch.clock.wall_ns() - round(longest / 2 * _SECOND)
            self._found, is_read = hangs(self.watch, lives, since, reads_all=problem == HANG)
            self._checked = state if is_read else ()
        found = self._found or [unexplained(hanging)]
        return [replace(each, problem=problem, for_s=longest) for each in found]

    def _command(self) -> str:
        return run_fact(self.watch, "command") or ""

    def _unrecorded(self, world_size: int) -> tuple[int, ...]:
        """Return ranks without a recording; a fake world has only one rank."""
        ranks = self.watch.ranks
        if run_fact(self.watch, "process_group") == FAKE:
            return ()
        missing = [rank for rank in range(min(world_size, MAX_RANKS)) if rank not in ranks]
        return tuple(missing[:_MOST_UNRECORDED])

    def _world_size(self) -> int:
        ranks = self.watch.ranks
        size = max(run_fact(self.watch, "world_size") or 0, max(ranks, default=-1) + 1)
        return size if size <= MAX_RANKS else max(ranks, default=-1) + 1


def _named_call(kind: str, number: int, group: str, axis: str) -> str:
    if number < 0:
        return f"{kind} of {axis or f'group {group}'}"
    return call_text(kind, number, group, axis)


def _source(site: Any) -> str:
    return f"{site.source_file}:{site.source_line}" if site.source_file else ""


def _beside(folder: str, state: Any) -> Any:
    """Return the state of a rank, or a problem, with paths relative to the program's folder."""
    texts = {name: getattr(state, name, "") for name in ("source", "text")}
    return replace(
        state, **{name: relative_to(folder, text) for name, text in texts.items() if text}
    )
