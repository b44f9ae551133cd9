"""The thread that writes what a recording has collected, several times a second."""

from __future__ import annotations

import threading
from collections.abc import Callable

from commtrace.recorder.failures import Failures

# Shorter than `_PEER_GRACE_S` of `launching.processes`, in which peers of a failed rank can write.
FLUSH_INTERVAL_S = 0.25


class Flusher(threading.Thread):
    """Calls `flush` at regular intervals until stopped; a failed flush is retried next time."""

    def __init__(self, flush: Callable[[], None]) -> None:
        # A daemon: Python joins all other threads before the exit handler that stops this one.
        super().__init__(name="commtrace-flusher", daemon=True)
        self._flush = flush
        self._stopping = threading.Event()
        self._failures = Failures()
        self.start()

    def run(self) -> None:
        """Flush several times a second."""
        while not self._stopping.wait(FLUSH_INTERVAL_S):
            try:
                self._flush()
            except Exception as error:
                self._failures.append(error)

    def stop(self) -> Failures:
        """Stop the thread and return its failures."""
        self._stopping.set()
        self.join()
        return self._failures
