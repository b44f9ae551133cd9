"""Information that flight-recorder dumps lack, as sentences.

Some is in no dump, some not in these: frames in JSON, operations that a backend does not enter, and
calls of dumps that were written without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from commtrace.importers.flight_recorder.entries import Dump, Entry
from commtrace.torch_names import is_library

LACKS = "roots (except of gathers and scatters), reductions, modules and operators"
"""Information that no dump contains, beside blocked times."""

_LATE = (
    "blocked times: waits are unknown, and the duration of a call is the time from its issue until "
    "torch noticed its completion, which may be much later"
)
_NO_ENDS = "blocked times, and times of completion: waits and durations are unknown"
_NO_FRAMES = "source lines, which only dumps in pickle format have, unless written without stacks"
_IN_FLIGHT = "calls that had completed: the dumps list only those in flight"
_OF_GLOO = "gloo enters no sends and recvs, and a reduce-scatter as the all-reduce that it runs"


def lacks_of(
    dumps: Sequence[Dump],
    inferred: Sequence[str],
    unnumbered: Sequence[str],
    *,
    in_flight_only: bool,
) -> list[str]:
    """Return the missing information.

    Args:
        dumps: The dumps.
        inferred: Groups whose ranks are inferred.
        unnumbered: Groups whose collectives have no number.
        in_flight_only: The dumps list only calls that had not completed.
    """
    entries = [entry for dump in dumps for entry in dump.entries]
    has_ends = any(entry.complete_ns >= 0 for entry in entries)
    lacks = [LACKS, _LATE if has_ends or not entries else _NO_ENDS]
    if entries and not any(entry.frames for entry in entries):
        lacks.append(_NO_FRAMES)
    if inferred:
        lacks.append(f"the ranks of group {', '.join(inferred)}: inferred from the calls on it")
    if unnumbered:
        lacks.append(
            f"the numbers of the collectives on group {', '.join(unnumbered)}: not comparable "
            "between ranks, because their dumps number other calls, too, or several groups have "
            "this name"
        )
    if in_flight_only:
        lacks.append(_IN_FLIGHT)
    return lacks + _of_unlisted(dumps, entries)


def _of_unlisted(dumps: Sequence[Dump], entries: Sequence[Entry]) -> list[str]:
    """Return sentences on calls without entries."""
    empty = [dump.path.name for dump in dumps if not dump.entries]
    of_gloo = [
        dump
        for dump in dumps
        if dump.entries and dump.entries[0].backend == "gloo" and not dump.is_of_torchcomms
    ]
    found = []
    if empty:
        more = f" and {len(empty) - 3} more files" if len(empty) > 3 else ""
        reason = "without entries, by choice or because the rank made no call that is entered"
        found.append(f"calls of {', '.join(empty[:3])}{more}, {reason}")
    if of_gloo:
        unlisted = sum(map(_num_unlisted, of_gloo))
        counted = f" ({unlisted} by the numbers of the operations)" if unlisted else ""
        scattered = sum(map(_is_of_reduce_scatter, entries))
        noted = f" ({scattered} of the all-reduces by their stacks)" if scattered else ""
        found.append(f"sends and recvs{counted} and reduce-scatters{noted}")
    if of_gloo or not entries:
        found[-1] += f". {_OF_GLOO}"
    return found


def _num_unlisted(dump: Dump) -> int:
    """Return how many operations of a rank have no entry, as far as the ring reaches back.

    Operations of each group are numbered from 1, with an entry or not.
    """
    numbers: dict[int, set[int]] = {}
    for entry in dump.entries:
        if entry.op_id > 0:
            numbers.setdefault(entry.pg_id, set()).add(entry.op_id)
    is_whole = dump.is_whole
    return sum(
        max(of_group) - (0 if is_whole else min(of_group) - 1) - len(of_group)
        for of_group in numbers.values()
    )


def _is_of_reduce_scatter(entry: Entry) -> bool:
    """Return whether the stack of an all-reduce shows the reduce-scatter that gloo runs by it."""
    return entry.kind == "all_reduce" and any(
        "reduce_scatter" in frame.name and is_library(frame.filename) for frame in entry.frames
    )
