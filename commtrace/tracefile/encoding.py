"""Encoding of a column as a small description and a run of bytes, and its decoding.

Both files of commtrace, the spool and run.json, encode their columns this way; they differ only in
the placement of the bytes. Only the standard library is used, since this runs inside the recorded
program. The description of n integers is one of

    {"const": 7}                               n times the same value, no bytes
    {"width": 2}                               n little-endian signed integers of 2 bytes
    {"width": 1, "delta": true, "first": 900}  n differences to the value before, beginning at 900
    {"planes": [-1, -1, 0, 0, 0, 0, 0, 0]}     n integers of 8 bytes: the lowest byte of each, then
                                               the next one, ...; one that is always 7 is 7 here

with width 1, 2, 4 or 8. The description of n floats is {"width": "float"}: 8 bytes each, IEEE 754.
Strings are encoded as indices into a list that the file holds once, where index 0 is the empty
string. A column without any known value is omitted.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Any

from commtrace.schema import Column
from commtrace.tracefile.reading import Allowance, DamageError, is_int

Description = dict[str, Any]

NOT_ALIKE = -1
"""Marks a byte plane whose bytes differ."""

_TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_CODES_OF_MISSING: dict[type, int] = {int: -1, bool: 0, str: 0}
_SWAP = sys.byteorder == "big"
# The lowest byte comes first in a file, on machines of either byte order.
_PLANES = tuple(reversed(range(8))) if _SWAP else tuple(range(8))


def _width(lowest: int, highest: int) -> int:
    for width in (1, 2, 4):
        limit = 1 << (8 * width - 1)
        if -limit <= lowest and highest < limit:
            return width
    return 8


def _pack(typecode: str, values: Sequence[int] | Sequence[float]) -> bytes:
    packed = array(typecode, values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def encode_ints(values: Sequence[int]) -> tuple[Description, bytes]:
    """Encode signed 64-bit integers as description and bytes.

    >>> encode_ints([5, 5, 5])
    ({'const': 5}, b'')
    """
    if not values:
        return {"const": 0}, b""
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return {"const": lowest}, b""
    width = _width(lowest, highest)
    if width > 1:
        deltas = [0, *map(sub, values[1:], values)]
        narrow = _width(min(deltas), max(deltas))
        # Differences beyond 64 bits have width 8, so they are never narrower.
        if narrow < width:
            description = {"width": narrow, "delta": True, "first": values[0]}
            return description, _pack(_TYPECODES[narrow], deltas)
    return {"width": width}, _pack(_TYPECODES[width], values)


def encode_planes(values: array[int]) -> tuple[Description, bytes]:
    """Encode an array of 64-bit integers byte plane by byte plane, as description and bytes.

    Cheaper than `encode_ints`, which inspects each number, and as compact, since most bytes are
    equal.

    >>> encode_planes(array("q", [0x4241, 0x4443]))
    ({'planes': [-1, -1, 0, 0, 0, 0, 0, 0]}, b'ACBD')
    """
    packed = values.tobytes()
    planes = [packed[place::8] for place in _PLANES]
    # `count` compares the bytes in C.
    alike = [plane[0] if plane.count(plane[:1]) == len(plane) else NOT_ALIKE for plane in planes]
    differing = [plane for plane, byte in zip(planes, alike, strict=True) if byte == NOT_ALIKE]
    return {"planes": alike}, b"".join(differing)


def encode_floats(values: Sequence[float]) -> tuple[Description, bytes]:
    """Encode floats as description and bytes; nan is preserved."""
    return {"width": "float"}, _pack("d", values)


def is_not_known(column: Column, description: Description) -> bool:
    """Return whether a column holds no known value, so that it can be omitted."""
    return description == {"const": _CODES_OF_MISSING.get(column.type)}


def not_known(column: Column, rows: int) -> array[Any]:
    """Return the values of an omitted column, as `decode` would."""
    if column.type is float:
        return array("d", [float("nan")]) * rows
    return array("q", [_CODES_OF_MISSING[column.type]]) * rows


def decode(
    description: Description, data: bytes, rows: int, of_type: type | None = None
) -> array[Any]:
    """Decode a column into an array of 64-bit integers or of floats.

    Raises:
        DamageError: the bytes do not fill the rows, or are not of a column `of_type`.
    """
    if not isinstance(description, dict):
        raise DamageError(f"an invalid description of a column: {_shortened(description)}")
    if (description.get("width") == "float") is not (of_type is float) and of_type is not None:
        raise DamageError("integers" if of_type is float else "floats", "its width")
    try:
        if "const" in description:
            return array("q", [_integer(description, "const", of_type)]) * rows
        if "planes" in description:
            return _join_planes(_planes(description["planes"]), data, rows)
        return _unpack(description, data, rows)
    except OverflowError as error:
        raise DamageError("integers of more than 64 bits") from error


def require_rows(rows: Any, num_columns: int, allowance: Allowance, place: str) -> int:
    """Return the number of rows that a file claims; charge their memory to the allowance."""
    if not is_int(rows) or rows < 0:
        raise DamageError(f"rows: {_shortened(rows)}, which is not a number of rows", place)
    allowance.take(8 * rows * num_columns, f"{rows:,} rows", place)
    return rows


def require_codes(codes: array[int], num_strings: int, place: str) -> None:
    """Raise DamageError unless each code is the index of a string."""
    import numpy as np  # only readers need it

    values = np.frombuffer(codes, dtype="int64")
    if len(values) and not (values.min() >= 0 and values.max() < num_strings):
        raise DamageError(f"a string number outside of 0..{num_strings - 1}", place)


def size_of(description: Description, rows: int) -> int:
    """Return the bytes of a described column with that many rows; 0 for an invalid description."""
    if not isinstance(description, dict) or "const" in description:
        return 0
    if "planes" in description:
        return rows * sum(byte == NOT_ALIKE for byte in _planes(description["planes"]))
    return rows * array(_typecode(description)).itemsize


def _unpack(description: Description, data: bytes, rows: int) -> array[Any]:
    typecode = _typecode(description)
    packed = array(typecode)
    if len(data) != rows * packed.itemsize:
        raise DamageError(f"{len(data)} bytes for {rows} rows of {packed.itemsize}")
    packed.frombytes(data)
    if _SWAP:
        packed.byteswap()
    if description.get("delta") and rows:
        packed[0] = 0
        return array("q", accumulate(packed, initial=_integer(description, "first")))[1:]
    return packed if typecode in "dq" else array("q", packed)


def _typecode(description: Description) -> str:
    width = description.get("width")
    if width == "float":
        return "d"
    if type(width) is not int or width not in _TYPECODES:
        raise DamageError(f"an unknown width {_shortened(width)}")
    return _TYPECODES[width]


def _integer(description: Description, name: str, of_type: type | None = None) -> int:
    value = description.get(name)
    is_flag = type(value) is bool and of_type in (bool, None)
    if not is_flag and type(value) is not int:
        raise DamageError(f"{name}: {_shortened(value)}, which is not an integer")
    return int(value)  # type: ignore[arg-type] - it is one by now


def _planes(alike: Any) -> Sequence[int]:
    is_one = isinstance(alike, list) and len(alike) == 8
    if not is_one or not all(type(byte) is int and -1 <= byte <= 255 for byte in alike):
        raise DamageError(f"planes: {_shortened(alike)}, which are not 8 bytes")
    return alike


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _join_planes(alike: Sequence[int], data: bytes, rows: int) -> array[Any]:
    num_differing = sum(byte == NOT_ALIKE for byte in alike)
    if len(data) != num_differing * rows:
        raise DamageError(f"{len(data)} bytes for {rows} rows of {num_differing}")
    packed = bytearray(8 * rows)
    position = 0
    for place, byte in zip(_PLANES, alike, strict=True):
        if byte == NOT_ALIKE:
            packed[place::8] = data[position : position + rows]
            position += rows
        else:
            packed[place::8] = bytes([byte]) * rows
    values = array("q")
    values.frombytes(packed)
    return values
