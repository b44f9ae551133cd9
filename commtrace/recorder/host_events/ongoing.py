"""Events that take time: kept when they end, and before that once they have taken long.

A rank that hangs in such an event writes no end; the row without a duration shows the event.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from commtrace.recorder.clock import now
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events.note import Keep

LONG_NS = 500_000_000
"""Duration from which on an event that goes on is kept, and a wait counts as long."""


class Ongoing:
    """Events of all threads that have begun and not ended."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._events: dict[int, HostEvent] = {}
        self._kept: set[int] = set()

    def begin(self, event: HostEvent) -> None:
        """Note that an event begins."""
        self._events[id(event)] = event

    def end(self, event: HostEvent, least_ns: int = 0) -> None:
        """Keep an event that ends, unless it was shorter than `least_ns`."""
        self._events.pop(id(event), None)
        event.duration = now() - event.at
        was_kept = id(event) in self._kept
        self._kept.discard(id(event))
        if was_kept or event.duration >= least_ns:
            self._keep(event)

    def of_kinds(self, kinds: Collection[str]) -> list[HostEvent]:
        """Return the events of some kinds that have begun and not ended."""
        return [event for event in list(self._events.values()) if event.kind in kinds]

    def poll(self) -> None:
        """Keep, once, each event that has gone on for long."""
        at = now()
        # A copy, since threads begin and end events meanwhile.
        for key, event in list(self._events.items()):
            if at - event.at >= LONG_NS and key not in self._kept:
                self._kept.add(key)
                self._keep(replace(event))
