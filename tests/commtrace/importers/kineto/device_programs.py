"""Random programs that launch work into streams, record events and wait, and their truth.

    program = DeviceProgram(seed=1)
    program.profile(has_records=True)       the trace, with or without records of waits
    program.kernels, program.syncs          the truth, in the order of the tables

Two threads launch kernels and copies from nested operators into streams of two devices. A stream
runs its work in order, and begins none before the events that it waits for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.commtrace.importers.kineto.layouts import BASE_NS
from tests.commtrace.importers.kineto.profiles import US, Profile

PLACES = ((0, 7), (0, 20), (1, 7))
"""Device and stream of each queue."""
THREADS = (11, 12)
NUM_EVENTS = 4
CALL_US = 2


@dataclass(slots=True)
class Work:
    """Work of a stream; `op` is the operator that launched it."""

    device: int
    stream: int
    start: int
    end: int
    launch: int
    thread: int
    op: str
    category: str


@dataclass(slots=True)
class Sync:
    """An event or a wait; `work` is the last work that it covers."""

    kind: str
    at: int
    lasts: int
    thread: int
    device: int = -1
    stream: int = -1
    work: Work | None = None
    is_awaited: bool = False
    """An event that a record refers to, which states its stream."""


@dataclass(slots=True)
class _Queue:
    free: int = 0
    last: Work | None = None
    works: list[Work] = field(default_factory=list)


class DeviceProgram:
    """Truth of a program, and its trace.

    Attributes:
        works: Kernels and copies, in the order of their start.
        syncs: Events and waits, in the order of their begin.
    """

    def __init__(self, seed: int, num_actions: int = 120) -> None:
        self._chance = random.Random(seed)
        self._events: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._records: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._queues = {place: _Queue() for place in PLACES}
        self._recorded: dict[int, tuple[tuple[int, int], int, Sync]] = {}
        self._now, self._correlation, self._starts = 100, 1000, set[int]()
        self.syncs: list[Sync] = []
        actions = [
            *[self._launch] * 6, *[self._record] * 3, *[self._stream_wait] * 2, self._event_sync,
            self._stream_sync, self._device_sync, self._query, self._copy_to_host,
            self._copy_from_host, self._wait_for_earlier,
        ]  # fmt: skip
        for _ in range(num_actions):
            self._chance.choice(actions)()
            self._now += 12
        every = [work for queue in self._queues.values() for work in queue.works]
        self.works = sorted(every, key=lambda work: work.start)

    def profile(self, *, has_records: bool) -> Profile:
        """Return the trace, with its events in any order."""
        profile = Profile(0, groups={"0": [0]})
        spans = self._events + (self._records if has_records else [])
        for positional, args in self._chance.sample(spans, len(spans)):
            profile.span(*positional, **args)
        return profile

    def kernel_rows(self) -> list[tuple[Any, ...]]:
        """Device, stream, start, launch, thread, operator and category of each row of `kernels`."""
        return [
            (f"cuda:{work.device}", work.stream, _ns(work.start), _ns(work.launch), work.thread,
             work.op, work.category)
            for work in self.works
        ]  # fmt: skip

    def sync_rows(self, *, has_records: bool) -> list[tuple[Any, ...]]:
        """Kind, begin, duration, thread, device, stream and kernel of each row of `syncs`."""
        numbers = {id(work): number for number, work in enumerate(self.works)}
        rows = []
        for sync in self.syncs:
            known = has_records and (sync.kind != "event_record" or sync.is_awaited)
            known |= sync.kind == "copy"
            device = f"cuda:{sync.device}" if known and sync.device >= 0 else ""
            kernel = numbers[id(sync.work)] if known and sync.work is not None else -1
            kind = "stream_sync" if sync.kind == "copy" else sync.kind
            rows.append(
                (kind, _ns(sync.at), sync.lasts * US, sync.thread, device,
                 sync.stream if known else -1, kernel)
            )  # fmt: skip
        return rows

    # Actions

    def _launch(self) -> None:
        self._work(self._chance.choice(PLACES), "compute", "gemm", "cudaLaunchKernel")

    def _copy_from_host(self) -> None:
        """Copy from pinned memory, which the host does not wait for."""
        name = "Memcpy HtoD (Pinned -> Device)"
        self._work(self._chance.choice(PLACES), "memcpy", name, "cudaMemcpyAsync")

    def _copy_to_host(self) -> None:
        name = "Memcpy DtoH (Device -> Pageable)"
        place = self._chance.choice(PLACES)
        runtime = self._chance.choice(("cudaMemcpy", "cudaMemcpyAsync"))
        work = self._work(place, "memcpy", name, runtime, waits=True)
        lasts = work.end - work.launch + 1
        self.syncs.append(Sync("copy", work.launch, lasts, work.thread, *place, work))

    def _record(self) -> None:
        event, place = self._chance.randrange(NUM_EVENTS), self._chance.choice(PLACES)
        name = self._chance.choice(("cudaEventRecord", "cudaEventRecordWithFlags"))
        sync = Sync("event_record", self._now, CALL_US, self._thread(), *place)
        sync.work = self._queues[place].last
        self._recorded[event] = place, self._call(name, sync), sync
        self.syncs.append(sync)

    def _stream_wait(self) -> None:
        if not self._recorded:
            return
        place = self._chance.choice(PLACES)
        of_event, record, event = self._chance.choice([*self._recorded.values()])
        sync = Sync("stream_wait", self._now, CALL_US, self._thread(), *place)
        correlation = self._call("cudaStreamWaitEvent", sync)
        if of_event[0] == place[0]:
            sync.work, event.is_awaited = event.work, True
            self._enter("Stream Wait Event", sync, place, correlation, of_event[1], record)
        else:  # the profiler looks for the event in the context of the waiting stream
            self._enter("Stream Wait Event", sync, place, correlation)
        if event.work is not None:
            self._queues[place].free = max(self._queues[place].free, event.work.end)
        self.syncs.append(sync)

    def _event_sync(self) -> None:
        if not self._recorded:
            return
        of_event, record, event = self._chance.choice([*self._recorded.values()])
        event.is_awaited = True
        sync = Sync("event_sync", self._now, CALL_US, self._thread(), *of_event, event.work)
        self._host_waits(sync, [event.work])
        correlation = self._call("cudaEventSynchronize", sync)
        self._enter("Event Sync", sync, (of_event[0], -1), correlation, of_event[1], record)
        self.syncs.append(sync)

    def _stream_sync(self) -> None:
        place = self._chance.choice(PLACES)
        sync = Sync("stream_sync", self._now, CALL_US, self._thread(), *place)
        sync.work = self._queues[place].last
        self._host_waits(sync, [sync.work])
        self._enter("Stream Sync", sync, place, self._call("cudaStreamSynchronize", sync))
        self.syncs.append(sync)

    def _device_sync(self) -> None:
        device = self._chance.choice((0, 1))
        lasts = [self._queues[place].last for place in PLACES if place[0] == device]
        works = [work for work in lasts if work is not None]
        sync = Sync("device_sync", self._now, CALL_US, self._thread(), device)
        sync.work = max(works, key=lambda work: work.launch, default=None)
        self._host_waits(sync, works)
        correlation = self._call("cudaDeviceSynchronize", sync)
        self._enter("Context Sync", sync, (device, (1 << 32) - 1), correlation)
        self.syncs.append(sync)

    def _query(self) -> None:
        """Ask for the state of an event, which the profiler enters as a wait."""
        sync = Sync("", self._now, CALL_US, self._thread())
        self._enter("Event Sync", sync, (0, -1), self._call("cudaEventQuery", sync), 7, 5)

    def _wait_for_earlier(self) -> None:
        """Let a stream wait for an event that was recorded before the profiled period."""
        place = self._chance.choice(PLACES)
        sync = Sync("stream_wait", self._now, CALL_US, self._thread(), *place)
        correlation = self._call("cudaStreamWaitEvent", sync)
        self._enter("Stream Wait Event", sync, place, correlation, 20, 7)
        self.syncs.append(sync)

    # Parts of actions

    def _thread(self) -> int:
        return self._chance.choice(THREADS)

    def _host_waits(self, sync: Sync, works: list[Any]) -> None:
        end = max([work.end for work in works if work is not None], default=0)
        sync.lasts = max(end + 1 - self._now, CALL_US)

    def _call(self, function: str, sync: Sync) -> int:
        """Add a call of the runtime; the time passes until its end."""
        self._correlation += 1
        category = "cuda_driver" if function.startswith("cu") and function[2].isupper() else ""
        span = function, category or "cuda_runtime", sync.at, sync.lasts, sync.thread
        self._events.append((span, {"correlation": self._correlation, "cbid": 147}))
        self._now = sync.at + sync.lasts
        return self._correlation

    def _enter(
        self, name: str, sync: Sync, place: tuple[int, int], correlation: int, of_stream: int = -1,
        recorded: int = -1,
    ) -> None:  # fmt: skip
        """Add the profiler's record of a wait."""
        args: dict[str, Any] = {"device": place[0], "stream": place[1], "correlation": correlation}
        if "Event" in name:
            args |= {"wait_on_stream": of_stream, "wait_on_cuda_event_record_corr_id": recorded}
        lasts = max(sync.lasts - 1, 1)
        self._records.append(((name, "cuda_sync", sync.at + 1, lasts, place[1]), args))

    def _work(
        self, place: tuple[int, int], category: str, name: str, runtime: str, *, waits: bool = False
    ) -> Work:
        """Launch work, from an operator within others or from none."""
        thread, queue = self._thread(), self._queues[place]
        start = max(queue.free, self._now + self._chance.randrange(1, 90))
        while start in self._starts:
            start += 1
        self._starts.add(start)
        end = start + self._chance.randrange(1, 60)
        lasts = end + 1 - self._now if waits else CALL_US
        depth = self._chance.randrange(4)
        names = [f"aten::op{self._chance.randrange(9)}" for _ in range(depth)]
        for level, each in enumerate(names):
            span = each, "cpu_op", self._now - 4 + level, lasts + 8 - 2 * level, thread
            self._events.append((span, {"External id": self._chance.randrange(1, 999)}))
        if depth and self._chance.random() < 0.5:  # an operator that has ended launches nothing
            self._events.append((("aten::over", "cpu_op", self._now - 1, 1, thread), {}))
        op = names[-1].replace("::", ".") if names else ""
        work = Work(*place, start, end, self._now, thread, op, category)
        correlation = self._call(runtime, Sync("", self._now, lasts, thread))
        cat = "kernel" if category == "compute" else "gpu_memcpy"
        args = {"device": place[0], "stream": place[1], "correlation": correlation}
        self._events.append(((name, cat, start, end - start, place[1]), args))
        queue.works.append(work)
        queue.free, queue.last = end, work
        return work


def _ns(us: int) -> int:
    return BASE_NS + us * US
