"""Recognition of Chakra's execution traces, whose messages are preceded by their lengths.

A file begins with the message `GlobalMetadata`: a version (field 1), attributes (field 2), and
nothing else. Beside the files of the ranks there may be a JSON file with the ranks of each group.
Used by `input_files`, without the `protobuf` library.
"""

from __future__ import annotations

from typing import Any

from commtrace.tracefile.reading import is_int

_VERSION, _ATTRIBUTE, _ID, _NAME = 0x0A, 0x12, 0x08, 0x12
"""First bytes of fields: numbers 1 and 2 of `GlobalMetadata`, and of a `Node`."""
_MOST_BYTES = 1 << 20
"""Longest `GlobalMetadata` that is looked at."""


def is_chakra_trace(data: bytes) -> bool:
    """Return whether a file begins as an execution trace does."""
    length, at = _varint(data, 0)
    end = at + length
    if length < 0 or length > _MOST_BYTES or end > len(data):
        return False
    while at < end:
        if data[at] not in (_VERSION, _ATTRIBUTE):
            return False
        length, at = _varint(data, at + 1)
        at += length
        if length < 0 or at > end:
            return False
    if end == len(data):
        return end > 1
    length, at = _varint(data, end)
    return length > 0 and at < len(data) and data[at] in (_ID, _NAME)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to five bytes, and the place behind it; -1 if there is none."""
    value = 0
    for place, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return -1, at


def is_group_file(values: Any) -> bool:
    """Return whether values of JSON are ranks by the numbers of groups."""
    return (
        isinstance(values, dict)
        and bool(values)
        and all(
            isinstance(name, str)
            and name.isdecimal()
            and isinstance(ranks, list)
            and all(is_int(rank) for rank in ranks)
            for name, ranks in values.items()
        )
    )
