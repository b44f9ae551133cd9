"""Times at which no thread of Python ran: long garbage collections, and pauses of other causes."""

from __future__ import annotations

import gc
import time
from typing import Any

from commtrace.recorder.clock import now
from commtrace.recorder.host_events.note import Keep, note_here
from commtrace.schema import GC_PAUSE, NOT_RUNNING
from commtrace.units import text_of_duration

_LONG_COLLECTION_NS = 50_000_000
_LONG_GAP_NS = 2_000_000_000
_SECOND = 1_000_000_000


class Pauses:
    """Source of pauses of the whole interpreter."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._collecting_since = -1
        self._is_on = False
        self._rested: tuple[int, int] | None = None

    def install(self) -> None:
        """Start to observe garbage collections."""
        if not self._is_on:
            self._is_on = True
            self._rested = None
            gc.callbacks.append(self._collected)

    def uninstall(self) -> None:
        """Stop to observe them."""
        if self._is_on:
            self._is_on = False
            gc.callbacks.remove(self._collected)

    def poll(self) -> None:
        """Note a pause since `rest`, after which the calling thread should soon have run again."""
        if self._rested is None:
            return
        since, used_before = self._rested
        gap = now() - since
        if gap >= _LONG_GAP_NS:
            used = (time.process_time_ns() - used_before) / _SECOND
            text = (
                f"no thread of Python ran for {text_of_duration(gap)}, in which the process used "
                f"{used:.1f} s of processor time"
            )
            self._keep(note_here(NOT_RUNNING, text, at=since, duration=gap))

    def rest(self) -> None:
        """Note that the calling thread waits for the next poll from now on."""
        self._rested = now(), time.process_time_ns()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = now()
            return
        since, self._collecting_since = self._collecting_since, -1
        duration = now() - since
        if since >= 0 and duration >= _LONG_COLLECTION_NS:
            text = f"a collection of generation {info.get('generation')}"
            self._keep(note_here(GC_PAUSE, text, at=since, duration=duration))
