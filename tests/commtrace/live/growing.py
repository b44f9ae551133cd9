"""A run that grows as tests say: ranks with real spool writers, and clocks that stand still."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from commtrace.event import CommEvent, GroupRow, StepRow
from commtrace.live import Observer, Watch
from commtrace.live.clock import Clock
from commtrace.live.life import System
from commtrace.tracefile import FOUND_STEPS, OUTSTANDING, SpoolWriter, sites_of, spool_name
from commtrace.tracefile.spool import NUMBERS, SITES

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
_NUMBERS = [column.name for column in NUMBERS["comm"][:-1]]
_SITES = [column.name for column in SITES["comm"]]


@dataclass
class Time:
    """Clocks of the watcher, which advance only by `pass_`."""

    seconds: float = 0.0

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def ns(self) -> int:
        """Unix ns."""
        return START_NS + round(self.seconds * SECOND)

    def clock(self) -> Clock:
        return Clock(monotonic_s=lambda: 1000 + self.seconds, wall_ns=lambda: self.ns)


@dataclass
class Rank:
    """The process of a rank, which writes what a test wants it to."""

    number: int
    time: Time
    stream: BinaryIO
    writer: SpoolWriter
    groups: Sequence[Any] = ()
    num_calls: int = 0
    seqs: dict[str, int] = field(default_factory=dict)
    flying: list[Any] = field(default_factory=list)
    _sites: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _new_sites: list[tuple[Any, ...]] = field(default_factory=list)
    _ended: list[int] = field(default_factory=list)
    _steps: list[Any] = field(default_factory=list)
    _found: list[Any] = field(default_factory=list)

    def issue(self, kind: str = "all_reduce", group: str = "0", **more: Any) -> Any:
        """Issue a call now; it is in flight until it is ended."""
        seq = self.seqs.get(group, 0)
        self.seqs[group] = seq + 1
        event = CommEvent(
            **{
                "rank": self.number, "id": self.num_calls, "kind": kind, "group": group,
                "seq": seq, "reduce_op": "sum" if kind == "all_reduce" else "",
                "dtype": "float32", "payload_bytes": 4000, "wire_bytes": 6000,
                "issue_ns": self.time.ns, "thread": 1, "source_file": "train.py",
                "source_line": 7, **more,
            }
        )  # fmt: skip
        self.num_calls += 1
        self.flying.append(event)
        return event

    def end(self, event: Any, blocked_s: float | None = None) -> None:
        """End a call now, after it has blocked the rank from its issue on, or for `blocked_s`."""
        self.flying.remove(event)
        took = self.time.ns - event.issue_ns
        blocked = took if blocked_s is None else round(blocked_s * SECOND)
        event = event._replace(call_ns=took, blocked_ns=blocked, complete_ns=self.time.ns)
        self._ended += [getattr(event, name) for name in _NUMBERS]
        site = tuple(getattr(event, name) for name in _SITES)
        if site not in self._sites:
            self._sites[site] = len(self._sites)
            self._new_sites.append(site)
        self._ended.append(self._sites[site])

    def step(self, number: int, begin_s: float, end_s: float, source: str = "") -> None:
        """End a step."""
        begin, end = (START_NS + round(each * SECOND) for each in (begin_s, end_s))
        row = StepRow(self.number, number, begin, end)
        (self._found.append((source, *row)) if source else self._steps.append(row))

    def flush(self, facts: dict[str, Any] | None = None) -> None:
        """Write everything since the last time."""
        tables = {
            "groups": self.groups,
            sites_of("comm"): self._new_sites,
            OUTSTANDING: self.flying,
            "steps": self._steps,
            FOUND_STEPS: self._found,
        }
        self.writer.write(tables, facts, {"comm": self._ended})
        self.groups, self._new_sites, self._ended, self._steps, self._found = (), [], [], [], []
        self.beat()

    def beat(self) -> None:
        """Give a sign of life at the present time."""
        os.utime(self.stream.fileno(), ns=(self.time.ns, self.time.ns))

    def close(self) -> None:
        """Close the recording properly."""
        self.flush({"complete": True, "end_ns": self.time.ns})
        self.stream.close()


@dataclass
class Run:
    """A run in a folder, and a watcher of it."""

    folder: Path
    time: Time = field(default_factory=Time)
    processes: set[int] = field(default_factory=set)
    ranks: dict[int, Rank] = field(default_factory=dict)
    streams: list[BinaryIO] = field(default_factory=list)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.close()

    def start(
        self,
        number: int,
        world_size: int,
        *,
        name: str = "",
        groups: Sequence[Any] = (),
        **facts: Any,
    ) -> Rank:
        """Start a rank, which writes its first batch."""
        self.folder.mkdir(exist_ok=True)
        stream = open(self.folder / (name or spool_name(number)), "w+b", buffering=0)  # noqa: SIM115
        run = {"world_size": world_size, "command": "train.py", **facts.pop("run", {})}
        first = {
            "rank": number, "host": "node0", "pid": 1000 + number, "boot": "one", "epoch_ns": 0,
            "device": "cpu", "start_ns": self.time.ns, "beat_s": 1, "run": run, **facts,
        }  # fmt: skip
        everyone = ",".join(map(str, range(world_size)))
        world = GroupRow("0", "", everyone, world_size, "", "gloo")
        rank = Rank(number, self.time, stream, SpoolWriter(stream, first), [world, *groups])
        self.ranks[number] = rank
        self.streams.append(stream)
        self.processes.add(first["pid"])
        rank.beat()
        return rank

    def start_all(self, world_size: int, **facts: Any) -> list[Rank]:
        """Start all ranks."""
        return [self.start(number, world_size, **facts) for number in range(world_size)]

    def kill(self, number: int) -> None:
        """Kill a rank: it writes nothing more, and its process is gone."""
        self.processes.discard(1000 + number)
        self.ranks.pop(number).stream.close()

    def flush(self) -> None:
        """Let all ranks write."""
        for rank in self.ranks.values():
            rank.flush()

    def pass_(self, seconds: float) -> None:
        """Let time pass, in which every rank gives signs of life."""
        self.time.pass_(seconds)
        self.beat()

    def beat(self) -> None:
        """Let all ranks give a sign of life."""
        for rank in self.ranks.values():
            rank.beat()

    def observer(self, **options: Any) -> Observer:
        """Return a watcher on host node0."""
        system = System(
            host="node0",
            boot="one",
            has_process=self.processes.__contains__,
            process_age_s=lambda pid: float("inf"),
        )
        return Observer(Watch(self.folder, clock=self.time.clock(), system=system), **options)
