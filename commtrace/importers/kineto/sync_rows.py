"""Rows of table `syncs`: events that the host recorded, and waits for streams and devices.

    call of the runtime        cudaStreamWaitEvent, correlation 1389
    record of the profiler     Stream Wait Event, correlation 1389: stream 24 waits for the event
                               that the call 1385 recorded in stream 20
    call of the runtime        cudaEventRecord, correlation 1385: behind the last kernel launched
                               into stream 20 before it

A call without a record is a row without stream and kernel. A record without a call, as of a driver
whose calls are not profiled, is a row without a thread, except of an event: the profiler enters
queries of events as waits. A synchronous copy is a wait for its stream if the call returned no
earlier than the copy was complete. Used by `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commtrace.importers.kineto.launch_order import LaunchedWork, LaunchOrder
from commtrace.importers.kineto.spans import Gathered, Work
from commtrace.importers.kineto.sync_calls import (
    ASYNC_COPY,
    COPY,
    QUERY,
    SyncCall,
    SyncRecord,
    waits_for_copy,
)
from commtrace.schema import DEVICE_SYNC, EVENT_RECORD, EVENT_SYNC, MEMCPY, STREAM_SYNC, STREAM_WAIT
from commtrace.torch_names import NOT_KNOWN


class Sync(NamedTuple):
    """A row of table `syncs`, in ns of the rank's clock."""

    kind: str
    start: int
    end: int
    thread: int
    device: int
    stream: int
    kernel: int


class Syncs:
    """Events and waits of a rank.

    Args:
        found: Events of the rank.
        works: All work of its devices, in order of start; the place of each is its id.
    """

    def __init__(self, found: Gathered, works: Sequence[Work]) -> None:
        self._found, self._works = found, works
        self._orders = _Orders(found.launches, works)
        self._records: dict[int, SyncRecord] = {}
        for record in found.sync_records:
            self._records.setdefault(record.correlation, record)
        self._records.pop(NOT_KNOWN, None)
        self._recorded: dict[int, tuple[SyncCall, int]] = {}
        """Call that recorded an event, and the last kernel before it, by correlation."""

    def rows(self) -> list[Sync]:
        """Return the events and waits in order of their begin."""
        calls = [call for call in self._found.sync_calls if call.kind == EVENT_RECORD]
        rows = [self._event(call) for call in calls]
        copies = self._copies()
        for call in self._found.sync_calls:
            if call.kind in (COPY, ASYNC_COPY):
                rows += self._copied(call, copies.get(call.correlation))
            elif call.kind not in (EVENT_RECORD, QUERY):
                record = self._records.get(call.correlation)
                fits = record is not None and record.kind == call.kind
                rows.append(self._wait(call, record if fits else None))
        rows += self._without_calls()
        rows.sort(key=_begin)
        return rows

    def _event(self, call: SyncCall) -> Sync:
        device, stream = self._found.event_streams.get(call.correlation, _NOWHERE)
        kernel = self._orders.last_before(device, stream, call)
        if call.correlation >= 0:
            self._recorded.setdefault(call.correlation, (call, kernel))
        return _row(call, call.kind, device, stream, kernel)

    def _wait(self, call: SyncCall, record: SyncRecord | None) -> Sync:
        if call.kind == DEVICE_SYNC:
            device = self._orders.only_device if record is None else record.device
            kernel = self._orders.last_of_device(device, call)
            return _row(call, call.kind, device, NOT_KNOWN, kernel)
        if record is None:
            return _row(call, call.kind, *_NOWHERE, NOT_KNOWN)
        if call.kind == STREAM_SYNC:
            kernel = self._orders.last_before(record.device, record.stream, call)
            return _row(call, call.kind, record.device, record.stream, kernel)
        stream = record.stream if call.kind == STREAM_WAIT else record.of_stream
        event, kernel = self._recorded.get(record.recorded, (None, NOT_KNOWN))
        # An event is recorded before it is waited for, so waits cannot be circular.
        kernel = kernel if event is not None and event.start <= call.start else NOT_KNOWN
        return _row(call, call.kind, record.device, stream, kernel)

    def _copies(self) -> Mapping[int, int]:
        """Return the ids of copies by correlation, if a call may have waited for one."""
        kinds = {call.kind for call in self._found.sync_calls}
        if kinds.isdisjoint((COPY, ASYNC_COPY)):
            return {}
        return {
            work.correlation: number
            for number, work in enumerate(self._works)
            if work.category == MEMCPY and work.correlation >= 0
        }

    def _copied(self, call: SyncCall, number: int | None) -> list[Sync]:
        """Return the wait for a copy, if the call waited for it."""
        if number is None:
            return []
        copy = self._works[number]
        record = self._records.get(call.correlation)
        waited = copy.end <= call.end and waits_for_copy(call.kind, copy.name)
        if not waited and (record is None or record.kind != STREAM_SYNC):
            return []
        return [_row(call, STREAM_SYNC, copy.device, copy.stream, number)]

    def _without_calls(self) -> list[Sync]:
        """Return the waits of records whose calls are unknown, or are of other functions."""
        known = {call.correlation for call in self._found.sync_calls} - {NOT_KNOWN}
        rows = []
        for record in self._found.sync_records:
            if record.kind == EVENT_SYNC or record.correlation in known:
                continue
            thread, _ = self._found.launches.get(record.correlation, (NOT_KNOWN, 0))
            call = SyncCall(record.kind, record.start, record.end, thread, record.correlation)
            rows.append(self._wait(call, record))
        return rows


class _Orders:
    """Orders of launches by stream and by device, determined when they are asked for."""

    def __init__(self, launches: Mapping[int, tuple[int, int]], works: Sequence[Work]) -> None:
        self._launches, self._works = launches, works
        self._streams: dict[tuple[int, int], list[LaunchedWork]] | None = None
        self._orders: dict[tuple[int, int], LaunchOrder] = {}

    @property
    def only_device(self) -> int:
        """The device, if all work ran on one; -1 otherwise."""
        devices = {device for device, _ in self._by_stream()}
        return devices.pop() if len(devices) == 1 else NOT_KNOWN

    def last_before(self, device: int, stream: int, call: SyncCall) -> int:
        """Return the last work that was launched into a stream before a call; -1 if unknown."""
        if device < 0 or stream < 0:
            return NOT_KNOWN
        key = device, stream
        if key not in self._orders:
            self._orders[key] = LaunchOrder([self._by_stream().get(key, ())])
        return self._orders[key].last_before(call.start, call.correlation)

    def last_of_device(self, device: int, call: SyncCall) -> int:
        """Return the last work that was launched on a device before a call; -1 if unknown."""
        if device < 0:
            return NOT_KNOWN
        key = device, NOT_KNOWN
        if key not in self._orders:
            streams = [works for place, works in self._by_stream().items() if place[0] == device]
            self._orders[key] = LaunchOrder(streams)
        return self._orders[key].last_before(call.start, call.correlation)

    def _by_stream(self) -> dict[tuple[int, int], list[LaunchedWork]]:
        if self._streams is None:
            self._streams = {}
            for number, work in enumerate(self._works):
                _, launch = self._launches.get(work.correlation, (NOT_KNOWN, None))
                launched = LaunchedWork(number, work.start, launch, work.correlation)
                self._streams.setdefault((work.device, work.stream), []).append(launched)
        return self._streams


_NOWHERE = NOT_KNOWN, NOT_KNOWN


def _begin(sync: Sync) -> int:
    return sync.start


def _row(call: SyncCall, kind: str, device: int, stream: int, kernel: int) -> Sync:
    return Sync(kind, call.start, call.end, call.thread, device, stream, kernel)
