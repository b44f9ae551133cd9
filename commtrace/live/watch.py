"""State of a growing run: `Watch(folder).refresh()` returns a `Snapshot`.

Each refresh reads the new contents of the spools, adds them to a bounded state, and derives the
snapshot from it: the calls in flight and the progress of each rank, sums over the last seconds, and
the durations of the last steps. Times of a rank are by its own clock; `hosts` has the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from commtrace.live.arrivals import Array, CallArrays, Disagreements, GroupProgress, Stragglers
from commtrace.live.clock import Clock
from commtrace.live.folder import FollowedRecording, RunTail
from commtrace.live.hosts import Hosts
from commtrace.live.life import RUNNING, System, life_of
from commtrace.live.names import RunNames
from commtrace.live.rates import Rates
from commtrace.live.step_times import Steps
from commtrace.live.tail import CALL_COLUMNS, InFlight, News, text_fact
from commtrace.live.totals import Totals

MOST_READING_S = 0.6
"""Time after which a refresh stops reading and derives the snapshot."""
MOST_RECENT = 64
"""Number of ended calls kept for each rank."""

_PLACE = {name: place for place, name in enumerate(CALL_COLUMNS)}
_OF_FLYING = (
    "id", "seq", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "site",
)  # fmt: skip
"""Known numbers of a call in flight."""
_NO_CALLS = np.empty((len(CALL_COLUMNS), 0), dtype=np.int64)


@dataclass(slots=True, eq=False)
class WatchedRank:
    """State of a rank.

    Attributes:
        index: number of the rank, in the order of appearance.
        recording: its latest recording.
        in_flight: calls in flight in its last batch, the oldest first.
        numbers: numbers of these calls in their groups.
        waits: start of the program's wait for asynchronous calls in flight, by their ids.
        recent: its last ended calls, as rows of `CALL_COLUMNS`.
        last_ns: the last instant in its recording, by its own clock; -1 if there is none.
        earlier: names of the earlier recordings of the rank.
    """

    rank: int
    index: int
    recording: FollowedRecording
    in_flight: list[InFlight] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    waits: dict[int, int] = field(default_factory=dict)
    recent: Array = field(default_factory=lambda: _NO_CALLS)
    last_ns: int = -1
    earlier: set[str] = field(default_factory=set)

    @property
    def host(self) -> str:
        """Host name."""
        return text_fact(self.recording.facts, "host")

    def is_blocked_in(self, call: InFlight, names: RunNames) -> bool:
        """Return whether a thread of the rank is inside a call or waits for it.

        On a device, only the stream waits for a synchronous call that has returned.
        """
        if call.call_ns < 0:
            return True
        is_waited_for = call.id in self.waits or not names.sites[call.site].is_async
        return self.is_on_host and call.complete_ns < 0 and is_waited_for

    def blocked_since_ns(self, call: InFlight) -> int:
        """Return when a thread of the rank began to be inside a call, or to wait for it."""
        return self.waits.get(call.id, call.issue_ns)

    @property
    def is_on_host(self) -> bool:
        """True if the program, rather than a stream of a device, waits for calls."""
        return text_fact(self.recording.facts, "device") == "cpu"

    def set_in_flight(self, calls: Sequence[InFlight], names: RunNames, now_ns: int) -> None:
        """Replace the calls in flight by the calls of a new batch."""
        self.in_flight = sorted(calls, key=_issue_of)
        self.waits = {
            call.id: self.waits.get(call.id, now_ns - call.blocked_ns)
            for call in calls
            if call.blocked_ns >= 0 and self.is_on_host and names.sites[call.site].is_async
        }


class Watch:
    """Follows the recording of a run in a folder; it writes nothing there.

    Attributes:
        ranks: the ranks of the latest run.
        num_seen: number of ranks seen, without ranks of an earlier run.
        earlier: names of the recordings of earlier runs that were left out.

    Args:
        folder: the folder RUN.comm, or a folder of spools.
        clock: the watcher's clocks.
        system: the system on which the watcher runs.
    """

    def __init__(
        self, folder: Path, *, clock: Clock | None = None, system: System | None = None
    ) -> None:
        self.folder = folder
        self.clock = clock or Clock()
        self.system = system or System()
        self.names = RunNames()
        self.tail = RunTail(folder, self.names, self.clock)
        self.hosts = Hosts()
        self.ranks: dict[int, WatchedRank] = {}
        self.num_seen = 0
        self.earlier: set[str] = set()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.progress = GroupProgress()
        self.disagreements = Disagreements()
        self.stragglers = Stragglers()
        self.rates = Rates()
        self.totals = Totals()
        self.steps = Steps()

    def read(self, most_s: float = MOST_READING_S) -> None:
        """Read new contents, for about `most_s` seconds."""
        ended: list[tuple[WatchedRank, Array]] = []
        changed: dict[int, WatchedRank] = {}
        wall_ns, at_s = self.clock.wall_ns(), self.clock.monotonic_s()
        for recording, news in self.tail.read(most_s):
            rank = self._rank_of(recording)
            if rank is None:
                continue
            new = news.calls[0] if len(news.calls) == 1 else _joined(news.calls)
            if new.shape[1]:
                ended.append((rank, new))
            if news.in_flight is not None:
                now_ns = wall_ns + round(self.hosts.ahead_s(rank.host) * 1e9)
                rank.set_in_flight(news.in_flight, self.names, now_ns)
                changed[rank.rank] = rank
            self.steps.add(rank.rank, news.steps)
            self._note_instants(rank, new, news, wall_ns, at_s)
        self._leave_out_ended_before_restarts(at_s)
        # A rank may have been restarted after some of its calls were read.
        ended = [(rank, new) for rank, new in ended if self.ranks.get(rank.rank) is rank]
        self._add(ended, [each for each in changed.values() if self.ranks.get(each.rank) is each])

    def _rank_of(self, recording: FollowedRecording) -> WatchedRank | None:
        """Return the rank whose latest recording this is; None for an earlier recording."""
        number = recording.rank
        if number is None:
            return None
        rank = self.ranks.get(number)
        if rank is not None and rank.recording is recording:
            return rank
        if self._is_of_earlier_run(recording):
            return None
        if rank is not None and recording.start_ns < rank.recording.start_ns:
            rank.earlier.add(recording.name)
            return None
        new = WatchedRank(number, self.num_seen, recording)
        if rank is None:
            self.num_seen += 1
        else:
            new.index, new.earlier = rank.index, rank.earlier | {rank.recording.name}
            self._forget(number)
        self.ranks[number] = new
        return new

    def _is_of_earlier_run(self, recording: FollowedRecording) -> bool:
        """Return whether a recording is of an earlier run; forget the known ranks if of a later."""
        for rank in self.ranks.values():
            other = rank.recording
            if "" in (recording.attempt[0], other.attempt[0]) or recording.attempt == other.attempt:
                continue
            if recording.start_ns < other.start_ns:
                self.earlier.add(recording.name)
                return True
            self.earlier |= {each.recording.name for each in self.ranks.values()}
            self.ranks, self.num_seen = {}, 0
            self._begin_anew()
            return False
        return False

    def _leave_out_ended_before_restarts(self, at_s: float) -> None:
        """Leave out ranks of an earlier run that were not restarted, as `latest_run` does."""
        begins = [each.recording.start_ns for each in self.ranks.values() if each.earlier]
        for number, rank in list(self.ranks.items()) if begins else ():
            recording = rank.recording
            is_running = life_of(recording, at_s, self.system) == RUNNING
            if not rank.earlier and not is_running and recording.last_ns < min(begins):
                self.earlier.add(recording.name)
                del self.ranks[number]
                self._forget(number)

    def _forget(self, rank: int) -> None:
        """Forget the calls and steps of a rank; its next recording numbers them anew."""
        self.progress.forget(rank)
        self.steps.forget(rank)
        # Its calls must not be matched with calls before the restart.
        self.disagreements, self.stragglers = Disagreements(), Stragglers()

    def _note_instants(
        self, rank: WatchedRank, new: Array, news: News, wall_ns: int, at_s: float
    ) -> None:
        instants = [news.last_op_ns, *(each.issue_ns for each in rank.in_flight[-1:])]
        if new.shape[1]:
            last = new[:, -1]
            instants += [int(last[_PLACE["issue_ns"]]), int(last[_PLACE["complete_ns"]])]
        instants += [end for *_, end in news.steps[-1:]]
        newest = max(instants)
        if newest > rank.last_ns:
            is_first = rank.last_ns < 0 or self.tail.is_behind
            rank.last_ns = newest
            if text_fact(rank.recording.facts, "boot") == self.system.boot:
                return  # the same clock: a late instant is no offset
            self.hosts.note(rank.host, newest, wall_ns, at_s, is_first=is_first)

    def _add(self, ended: Sequence[tuple[WatchedRank, Array]], changed: list[WatchedRank]) -> None:
        flying = [(each.rank, call) for each in changed for call in each.in_flight]
        rows = np.concatenate([new for _, new in ended] or [_NO_CALLS], axis=1)
        counts = [new.shape[1] for _, new in ended]
        owners = np.array([(each.rank, each.index) for each, _ in ended], dtype=np.int64)
        owners = np.repeat(owners.reshape(-1, 2), counts, axis=0)
        added = np.full((len(CALL_COLUMNS), len(flying)), -1, dtype=np.int64)
        for name in _OF_FLYING:
            added[_PLACE[name]] = [getattr(call, name) for _, call in flying]
        rows = np.concatenate([rows, added], axis=1)
        rank = np.r_[owners[:, 0], np.array([rank for rank, _ in flying], dtype=np.int64)]
        num_ended = len(owners)
        numbers = self._add_calls(rank, rows, owners[:, 1]) if len(rank) else []
        place = num_ended
        for each in changed:
            each.numbers = list(map(int, numbers[place : place + len(each.in_flight)]))
            place += len(each.in_flight)
        for each, new in ended:
            joined = np.concatenate([each.recent, new], axis=1) if each.recent.size else new
            each.recent = joined[:, -MOST_RECENT:].copy()

    def _add_calls(self, rank: Array, rows: Array, index: Array) -> Array:
        """Add calls of ranks, and return their numbers.

        The first `len(index)` calls have ended; `index` has the indices of their ranks.
        """
        of_site = self.names.table()[rows[_PLACE["site"]]]
        group, kind, wire_bytes, signature, is_transfer, is_joining = of_site.T
        calls = CallArrays(
            rank=rank,
            id=rows[_PLACE["id"]],
            seq=rows[_PLACE["seq"]],
            issue_ns=rows[_PLACE["issue_ns"]],
            call_ns=rows[_PLACE["call_ns"]],
            blocked_ns=rows[_PLACE["blocked_ns"]],
            complete_ns=rows[_PLACE["complete_ns"]],
            site=rows[_PLACE["site"]],
            group=group,
            is_transfer=is_transfer.astype(bool),
        )
        number = self.progress.add(calls)
        is_known = number >= 0
        self.disagreements.add(
            group[is_known], number[is_known], signature[is_known], rank[is_known],
            calls.site[is_known],
        )  # fmt: skip
        has_ended = np.arange(len(rank)) < len(index)
        joins = is_known & has_ended & is_joining.astype(bool)
        self.stragglers.add(
            group[joins], number[joins], rank[joins], calls.issue_ns[joins], calls.blocked_ns[joins]
        )
        self.stragglers.complete(
            np.array([len(each.ranks) or 1 << 30 for each in self.names.groups], dtype=np.int64)
        )
        self.rates.add(
            rank=index,
            kind=kind[has_ended],
            wire_bytes=wire_bytes[has_ended].clip(0).astype(float),
            end_ns=calls.end_ns[has_ended],
            blocked_ns=calls.blocked_ns[has_ended],
            num_ranks=self.num_seen,
            num_kinds=len(self.names.kinds),
            now_ns=self.clock.wall_ns(),
        )
        self.totals.add(rank=index, site=calls.site[has_ended], wire_bytes=wire_bytes[has_ended])
        return number


def _issue_of(call: InFlight) -> int:
    return call.issue_ns


def _joined(arrays: list[Array]) -> Array:
    return np.concatenate(arrays, axis=1) if arrays else _NO_CALLS
