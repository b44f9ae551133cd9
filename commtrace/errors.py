"""Exceptions for every error that a user can cause.

Each class has the exit code of the command line. A message has up to four parts: a summary, the
finding, the reason, and a suggestion. Names in it are made visible (`escaping`), so that none can
imitate a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from commtrace.escaping import visible


class CommtraceError(Exception):
    """Base class of commtrace's errors."""

    exit_code = 1

    def __init__(
        self, summary: str, *, found: str = "", why: str = "", attempt: str = "", place: str = ""
    ) -> None:
        self.summary = summary
        self.place = place
        self.found = found
        self.why = why
        self.attempt = attempt
        parts = (("at", place), ("found", found), ("why", why), ("try", attempt))
        lines = [f"  {name}: {_indented(text, len(name) + 4)}" for name, text in parts if text]
        super().__init__("\n".join([visible(summary), *lines]))

    @property
    def asked(self) -> str:
        """The summary; the former name of `summary`."""
        return self.summary


def _indented(text: str, width: int) -> str:
    return visible(text, keep="\n").replace("\n", "\n" + " " * width)


class UsageError(CommtraceError):
    """An argument that cannot be used: a missing script, no ranks, an unknown detail."""

    exit_code = 2


class SettingsError(UsageError):
    """An unknown or invalid setting in pyproject.toml."""


class OutputError(UsageError, OSError):
    """A file that cannot be written: no folder, no permission, no space (also an OSError)."""


class NotKeptError(OutputError):
    """A file of results that an analysis of a large run keeps for later cannot be written."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the closest known name as suggestion."""
    names = list(known)
    return UsageError(
        f"no {kind} {name!r}",
        found=f"the {kind}s {', '.join(names)}",
        attempt=closest(name, names),
    )


class MissingLibraryError(CommtraceError, ImportError):
    """A library that is needed for this is not installed (also an ImportError)."""

    exit_code = 2


class MissingTorchError(MissingLibraryError):
    """Recording was requested without torch; reading and reporting do not need it."""


def require_torch(purpose: str) -> None:
    """Raise MissingTorchError if torch is not installed, which `purpose` needs."""
    if find_spec("torch") is None:
        raise MissingTorchError(
            f"{purpose} needs torch, which is not installed",
            attempt="pip install 'commtrace[torch]'",
        )


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name closest to `name`, or "one of them"."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return close[0] if close else "one of them"


class TraceError(CommtraceError):
    """A trace that cannot be read; the subclasses say why."""

    exit_code = 3


class NotATraceError(TraceError):
    """The file is not a trace."""


class TruncatedTraceError(TraceError):
    """The file begins as a trace but is incomplete, or was changed since it was written."""


class UnbegunSpoolError(TruncatedTraceError):
    """A spool whose process ended before its first batch was complete; it has no content."""


class OversizedTraceError(TraceError):
    """The file claims to hold more than it can, or more than may be read."""


class InvalidTraceError(TraceError):
    """The file is complete but has impossible values: a negative duration, a duplicate rank."""


class NewerTraceError(TraceError):
    """The file was written by a later commtrace, in an unknown format version."""


class EmptyTraceError(TraceError):
    """The trace is empty: an empty file, or a folder without spools."""


class RecordingError(CommtraceError):
    """Recording cannot start or continue."""


class LaunchError(CommtraceError):
    """The ranks could not be started or did not finish."""


class RankError(LaunchError):
    """A rank failed.

    Attributes:
        rank: the rank.
        traceback: its traceback.
        run: the run recorded until then, or None.
    """

    def __init__(
        self,
        summary: str,
        *,
        rank: int,
        traceback: str,
        found: str,
        attempt: str = "",
        run: Any = None,
    ) -> None:
        super().__init__(summary, found=found, attempt=attempt)
        self.rank = rank
        self.traceback = traceback
        self.run = run

    def __str__(self) -> str:
        lines = (visible(line, keep="\t") for line in self.traceback.splitlines())
        return "\n".join([super().__str__(), *lines])

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the rank's traceback, not the launcher's."""
        return str(self).splitlines()
