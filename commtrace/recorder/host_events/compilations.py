"""Compilations by Dynamo, and the guards whose failures made them necessary."""

from __future__ import annotations

import threading
from types import CodeType

from commtrace.recorder.host_events.note import note_here
from commtrace.recorder.host_events.ongoing import Ongoing
from commtrace.schema import COMPILE, RECOMPILE
from commtrace.torch_internals.compilation import Observation, observe_compilations


class Compilations:
    """Source of compilations, once the program has loaded Dynamo."""

    def __init__(self, ongoing: Ongoing) -> None:
        self._ongoing = ongoing
        self._observation: Observation | None = None
        self._current = threading.local()

    def install(self) -> None:
        """Start to observe, if Dynamo is loaded, also again after `torch._dynamo.reset`."""
        if self._observation is None:
            self._observation = observe_compilations(self._begins, self._again, self._ends)
        else:
            self._observation.renew()

    def uninstall(self) -> None:
        """Stop to observe."""
        if self._observation is not None:
            self._observation.end()
            self._observation = None

    def _again(self, code: CodeType, reasons: list[str]) -> None:
        # Dynamo looks for the reasons before it reports that it begins.
        reason = " ".join(reasons[0].split()) if reasons else "its guards failed"
        self._current.reason = f"{code.co_name}: {reason}"

    def _begins(self, is_again: bool) -> None:
        reason = getattr(self._current, "reason", "") if is_again else ""
        self._current.reason = ""
        self._current.event = event = note_here(RECOMPILE if is_again else COMPILE, reason)
        self._ongoing.begin(event)

    def _ends(self) -> None:
        event = getattr(self._current, "event", None)
        if event is not None:
            self._current.event = None
            self._ongoing.end(event)
