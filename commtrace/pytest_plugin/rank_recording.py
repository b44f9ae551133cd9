"""Recording of the ranks that a test starts, be they threads or processes.

The test's process makes a `RankRecording`; each rank runs its target through it. A rank leaves a
spool in the recording's folder, and beside it a note if its recording cannot be trusted. In a rank,
`rank_recording()` is that rank's recording; elsewhere in the test's process it is the test's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commtrace.session import Recording

NOTE_SUFFIX = ".note"


class _ThreadLocal(threading.local):
    recording: Recording | None = None


_local = _ThreadLocal()


def rank_recording() -> Recording | None:
    """Return the recording of the rank that this thread runs; None if it runs none."""
    return _local.recording


@dataclass(frozen=True, slots=True)
class RankRecording:
    """Folder and options with which ranks are recorded."""

    folder: str
    detail: str
    stacks: bool
    test_pid: int = 0
    """The test's process, if a rank in another process is to be ended once it takes too long."""

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function` as a rank, and record it."""
        if self.test_pid not in (0, os.getpid()):
            from commtrace.launching.watchdog import register_rank

            register_rank(Path(self.folder), os.getpid())
        if "torch" not in sys.modules:  # a process that does not use torch
            return self._watch(function, args, kwargs)
        from commtrace.process_options import ProcessOptions
        from commtrace.pytest_plugin.meshes import naming_axes
        from commtrace.session import Recording
        from commtrace.tracefile.destinations import SpoolFolder

        store = SpoolFolder(Path(self.folder))
        store.wants_axes = False  # they may belong to meshes that an earlier test left behind
        recording = Recording(store, ProcessOptions(self.detail, self.stacks))
        before, _local.recording = _local.recording, recording
        why = ""
        try:
            with recording, naming_axes():
                try:
                    return function(*args, **kwargs)
                finally:
                    why = why_incomplete(recording)
        finally:
            _local.recording = before
            self._note(why)

    def _watch(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available():
                self._note("torch was loaded after its start, so it could not be recorded")

    def _note(self, why: str) -> None:
        if why:
            name = f"{os.getpid()}-{threading.get_native_id()}{NOTE_SUFFIX}"
            (Path(self.folder) / name).write_text(why, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Picklable target of a process: runs the original target, recorded."""

    recording: RankRecording
    target: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the target."""
        return self.recording(self.target, *args, **kwargs)


def why_incomplete(recording: Recording) -> str:
    """Return the reason why a recording cannot be trusted; empty if it can."""
    from commtrace.recorder import RECORDER

    if not recording.is_heard():
        return "the recorder no longer intercepts calls: a test call was not recorded"
    failures = RECORDER.failures
    if failures:
        first = failures.first
        return f"the recorder failed on {len(failures)} calls: {type(first).__name__}: {first}"
    return ""
