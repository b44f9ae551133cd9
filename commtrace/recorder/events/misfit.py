"""Splits of an all-to-all that do not fit its tensors or its group, in words.

The backend's message names no numbers and, with gloo, comes from the wait. Splits that differ
between ranks are known once the recordings are joined (table `consistency`): a recording sends
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from commtrace.errors import CommtraceError
from commtrace.recorder.events.request import Request


def misfit(request: Request) -> str:
    """Return an error in four parts if the splits of a request do not fit; else an empty text."""
    sent, received, size = request.input_splits, request.output_splits, len(request.group.ranks)
    # Nearly all calls pass here, in less than a microsecond.
    if len(sent) == len(received) == size and sum(sent) == request.payload:
        shapes = request.received  # a functional collective's are not known yet
        if len(shapes) != 1 or sum(received) == shapes[0].numel() * request.dtype.itemsize:
            return ""
    found = "; ".join(_misfits(request))
    if not found:
        return ""
    error = CommtraceError(
        f"splits of {request.native_op} that do not fit, on rank {request.group.rank}",
        found=found,
        why="a rank has one split for each rank of the group, which add up to dim 0",
        attempt="as many splits as the group has ranks, and a tensor of their sum",
    )
    return str(error)


def _misfits(request: Request) -> Iterator[str]:
    size = len(request.group.ranks)
    for words, splits, shapes in (
        ("input", request.input_splits, request.sent),
        ("output", request.output_splits, request.received),
    ):
        if splits and len(splits) != size:
            yield f"{len(splits)} {words} splits in a group of {size} ranks"
        # Without elements, the size of a row is unknown.
        elif splits and len(shapes) == 1 and len(request.sent) == 1 and request.payload:
            itemsize = request.payload // request.sent[0].numel()
            expected = shapes[0].numel() * itemsize
            if sum(splits) != expected:
                row_bytes = max(expected // max(shapes[0][0], 1), 1)
                rows = [each // row_bytes for each in splits]
                yield f"{words} splits {rows}, {sum(rows)} in all, and {shapes[0][0]} rows"
