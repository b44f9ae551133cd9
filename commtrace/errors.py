"""Every error that commtrace raises for something a user can cause.

Each class carries the exit code that the command line ends with. A text has four parts: what was
asked, what was found, why that does not work, what to try; a part with nothing to say is left out.
Names in it are made visible (`escaping`), and none of them can look like a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from commtrace.escaping import visible


class CommtraceError(Exception):
    """The family: `except CommtraceError` catches whatever this package refuses to do."""

    exit_code = 1

    def __init__(
        self, asked: str, *, found: str = "", why: str = "", attempt: str = "", place: str = ""
    ) -> None:
        self.asked = asked
        self.place = place
        self.found = found
        self.why = why
        self.attempt = attempt
        parts = (("at", place), ("found", found), ("why", why), ("try", attempt))
        told = [f"  {name}: {_indented(text, len(name) + 4)}" for name, text in parts if text]
        super().__init__("\n".join([visible(asked), *told]))


def _indented(text: str, width: int) -> str:
    return visible(text, keep="\n").replace("\n", "\n" + " " * width)


class UsageError(CommtraceError):
    """An argument that cannot be met: no such script, no ranks, a detail that does not exist."""

    exit_code = 2


class SettingsError(UsageError):
    """A setting in pyproject.toml that there is not, or that has no sense."""


class OutputError(UsageError, OSError):
    """A file that cannot be written: no folder, no permission, no space (also an OSError)."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is none of `known`, with the one that was meant perhaps."""
    names = list(known)
    return UsageError(
        f"no {kind} {name!r}",
        found=f"the {kind}s {', '.join(names)}",
        attempt=closest(name, names),
    )


class MissingTorchError(CommtraceError, ImportError):
    """Recording was asked for where torch is not installed; reading and reporting do without."""

    exit_code = 2


def require_torch(purpose: str) -> None:
    """Raise MissingTorchError if torch is not installed, in which case `purpose` cannot be met."""
    if find_spec("torch") is None:
        raise MissingTorchError(
            f"{purpose} needs torch, which is not installed",
            attempt="pip install 'commtrace[torch]'",
        )


def closest(name: str, known: Iterable[str]) -> str:
    """The one of the known names that was meant perhaps."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return close[0] if close else "one of them"


class TraceError(CommtraceError):
    """A trace that cannot be read; the subclasses say in which way."""

    exit_code = 3


class NotATraceError(TraceError):
    """The file is something else."""


class TruncatedTraceError(TraceError):
    """The file begins as a trace and ends too early, or was changed since it was written."""


class UnbegunSpoolError(TruncatedTraceError):
    """A spool whose process ended before its first batch was whole: it says nothing."""


class OversizedTraceError(TraceError):
    """The file claims to hold more than it can, or more than may be read."""


class InvalidTraceError(TraceError):
    """The file is whole, but values in it cannot be: a negative duration, a rank told twice."""


class NewerTraceError(TraceError):
    """The file was written by a later commtrace, in a format that this one does not know."""


class EmptyTraceError(TraceError):
    """There is nothing in it: an empty file, or a folder without spools."""


class RecordingError(CommtraceError):
    """Recording cannot start or go on."""


class LaunchError(CommtraceError):
    """The ranks could not be started or did not come to an end."""


class RankError(LaunchError):
    """A rank failed: `rank`, its `traceback`, and `run`, what was recorded until then, or None."""

    def __init__(
        self, asked: str, *, rank: int, traceback: str, found: str, run: Any = None
    ) -> None:
        super().__init__(asked, found=found)
        self.rank = rank
        self.traceback = traceback
        self.run = run

    def __str__(self) -> str:
        lines = (visible(line, keep="\t") for line in self.traceback.splitlines())
        return "\n".join([super().__str__(), *lines])

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: where the rank was, and not how it was started."""
        return str(self).splitlines()
