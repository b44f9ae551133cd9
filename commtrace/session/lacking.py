"""Sentences on what a recording lacks, since something failed while it was made or written."""

from __future__ import annotations

from commtrace.errors import OutputError
from commtrace.escaping import visible
from commtrace.recorder.failures import Failures
from commtrace.units import counted


def lacking(failures: Failures, num_dropped: int) -> str:
    """Return the sentence on a recording during which something failed."""
    first = failures.first
    if isinstance(first, OutputError):
        return f"the recording was not written: {visible(first.summary)}: {first.found}"
    if isinstance(first, FileNotFoundError):
        return f"the recording is lost: {visible(str(first.filename))} was removed meanwhile"
    if isinstance(first, OSError):
        lost = counted(num_dropped, "call") if num_dropped else "its end"
        return f"the recording lacks {lost}, which could not be written: {reason(first)}"
    return (
        f"{len(failures)} failures while recording; the trace is incomplete. First failure: "
        f"{type(first).__name__}: {visible(str(first))}"
    )


def reason(error: OSError) -> str:
    """Return why a file could not be written."""
    return (error.found if isinstance(error, OutputError) else error.strerror or str(error)).lower()
