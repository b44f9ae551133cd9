"""Observer of events on the host, which passes them to the sinks that listen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.events.sink import HostSink
from commtrace.recorder.failures import Failures
from commtrace.recorder.host_events.compilations import Compilations
from commtrace.recorder.host_events.data_loading import DataLoading
from commtrace.recorder.host_events.endings import Endings
from commtrace.recorder.host_events.exceptions import Exceptions
from commtrace.recorder.host_events.ongoing import Ongoing
from commtrace.recorder.host_events.pauses import Pauses
from commtrace.recorder.host_events.store_calls import StoreCalls
from commtrace.recorder.host_events.stuck import ThreadWait
from commtrace.schema import WAITING_KINDS


class EventSource(Protocol):
    """Source of events of a certain kind."""

    def install(self) -> None:
        """Observe from now on, as far as the program has loaded what there is to observe."""
        ...

    def uninstall(self) -> None:
        """Restore everything."""
        ...


class HostEvents:
    """Observes the host while sinks listen."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._sinks: tuple[HostSink, ...] = ()
        self._lock = threading.Lock()
        self._ongoing = Ongoing(self._keep)
        self._pauses = Pauses(self._keep)
        self.exceptions = Exceptions(self._keep)
        self.endings = Endings(self._keep)
        self._sources: tuple[EventSource, ...] = (
            Compilations(self._ongoing),
            DataLoading(self._ongoing, self._keep, self.exceptions),
            StoreCalls(self._ongoing),
            self.exceptions,
            self.endings,
            self._pauses,
        )

    def report_to(self, sinks: Sequence[HostSink]) -> None:
        """Pass events to these sinks from now on."""
        was_on, self._sinks = bool(self._sinks), tuple(sinks)
        if sinks and not was_on:
            self._install()
        elif was_on and not sinks:
            with self._lock:
                for source in self._sources:
                    source.uninstall()

    def poll(self) -> None:
        """Note events that take long and have not ended, and observe modules loaded since."""
        self._pauses.poll()
        self._install()
        self._ongoing.poll()

    def waits(self) -> list[ThreadWait]:
        """Return the calls of the program that wait for other ranks without communicating."""
        return [ThreadWait(each.at, each.thread) for each in self._ongoing.of_kinds(WAITING_KINDS)]

    def rest(self) -> None:
        """Note that the thread that polls waits from now on."""
        self._pauses.rest()

    def _install(self) -> None:
        with self._lock:
            if self._sinks:
                for source in self._sources:
                    source.install()

    def _keep(self, event: HostEvent) -> None:
        try:
            for sink in self._sinks:
                if sink.rank in (None, event.rank) or event.rank is None:
                    sink.add_host_event(event)
        except Exception as error:
            self._failures.append(error)
