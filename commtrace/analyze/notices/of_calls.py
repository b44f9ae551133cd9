"""Values that calls lack, and calls that a run does not have."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.analyze.measures.census import WAIT, census
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import TRANSFERS
from commtrace.analyze.traffic.matrix import matrix
from commtrace.schema import COMM
from commtrace.units import known_note

_TYPES = {column.name: column.type for column in COMM}


def no_modules(frames: Frames) -> str:
    """State that no call was made in a module."""
    if not frames.num_calls or census(frames).in_module:
        return ""
    return "No call was made in a module, or modules were not tracked while recording."


def no_operators(frames: Frames) -> str:
    """State that there are no operators."""
    if not frames.num_calls or census(frames).num_ops or census(frames).known["op"]:
        return ""
    return (
        "Operators were not recorded, so calls are not attributed to them, and the timeline has no "
        "phases."
    ) + ("" if "imported_from" in frames.run else ' Record with detail="op" to include them.')


def no_waits(frames: Frames) -> str:
    """State that no wait is known."""
    if frames.num_ranks < 2 or not frames.num_calls or census(frames).known[WAIT]:
        return ""
    return (
        "No collective could be matched across its ranks, so waiting for late ranks cannot be "
        "separated from transfer."
    )


def untimed(frames: Frames) -> str:
    """Return the number of calls of unknown blocked time, and the reasons."""
    counts = census(frames)
    num_untimed, num_ended = counts.num_calls - counts.known["blocked_ns"], counts.num_ended
    if not num_untimed:
        return ""
    reasons = [
        f"{num:,} without {reason}"
        for num, reason in (
            (num_untimed - num_ended, "a known end"),
            (num_ended, "a recorded wait"),
        )
        if num
    ]
    note, kinds = _note_of_calls(frames, "blocked_ns")
    if num_untimed == counts.num_calls:
        return (
            f"The blocked time is {note} ({kinds}): {', '.join(reasons)}. It is unknown how much "
            "communication is exposed."
        )
    return (
        f"The blocked time is {note}, and sums of blocked time lack the others ({kinds}): "
        f"{', '.join(reasons)}."
    )


def unsized(frames: Frames) -> str:
    """Return the number of calls of unknown size."""
    counts = census(frames)
    if counts.known["wire_bytes"] == counts.num_calls:
        return ""
    note, kinds = _note_of_calls(frames, "wire_bytes")
    if not counts.known["wire_bytes"]:
        return f"The number of bytes sent is {note} ({kinds})."
    return f"The number of bytes sent is {note}, and sums lack the others ({kinds})."


def unmatched(frames: Frames) -> str:
    """Return the number of calls of unknown wait."""
    counts = census(frames)
    if counts.known[WAIT] in (0, counts.num_calls):
        return ""  # without any, `no_waits` says so
    note, kinds = _note_of_calls(frames, WAIT)
    return (
        f"The wait for a peer is {note}. The others ({kinds}) were not timed, or the calls of "
        "their peers are not in the trace, or differ."
    )


def _note_of_calls(frames: Frames, column: str) -> tuple[str, str]:
    """Return the number of calls with a known value, and the kinds of calls without."""
    counts = census(frames)
    kinds = sorted(kind or "kind not known" for kind in counts.unknown_kinds(column))
    return known_note(counts.known[column], counts.num_calls), ", ".join(kinds)


def lacking(column: str, noun: str) -> Callable[[Frames], str]:
    """Return a rule that fires if calls lack a value in a column of table `comm`.

    A column of text is empty for calls to which it does not apply, and counts only if it always is.
    """
    is_text = _TYPES[column] is str

    def rule(frames: Frames) -> str:
        num_known, num_calls = census(frames).known[column], frames.num_calls
        if num_known == num_calls or (is_text and num_known):
            return ""
        if not num_known:
            return f"{noun} is unknown for all calls."
        return f"{noun} is {known_note(num_known, num_calls)}."

    return rule


def none_of(column: str, text: str) -> Callable[[Frames], str]:
    """Return a rule that fires if no call has a value in a column of text of table `comm`."""
    return lambda frames: text if frames.num_calls and not census(frames).known[column] else ""


def no_routes(frames: Frames) -> str:
    """State that no call is known to send data to another rank."""
    if frames.num_ranks < 2 or not frames.num_calls or len(matrix(frames)):
        return ""
    return (
        "No call is known to send data to another rank: the trace lacks its size, its group's "
        "members or its peer."
    )


def no_axes(frames: Frames) -> str:
    """State that no group belongs to an axis."""
    if not frames.num_calls or (frames.groups["mesh_axis"] != "").any():
        return ""
    return "No process group is known to belong to an axis of a DeviceMesh."


def only_transfers(frames: Frames) -> str:
    """State that there are no collectives."""
    if not frames.num_calls or census(frames).kinds.keys() - TRANSFERS:
        return ""
    return "All calls are point-to-point: there are no collectives."


def nothing_to_compare(frames: Frames) -> str:
    """State that there is a single rank."""
    if not frames.num_calls or frames.num_ranks > 1:
        return ""
    return "There is a single rank, so there are no calls to compare with."
