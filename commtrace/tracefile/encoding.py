"""Encoding of a column as a small description and a run of bytes, and its decoding.

Both files of commtrace, the spool and run.json, encode their columns this way; they differ only in
the placement of the bytes. Encoding uses the standard library only, since it runs inside the
recorded program; decoding uses numpy. The description of n integers is one of

    {"const": 7}                               n times the same value, no bytes
    {"width": 2}                               n little-endian signed integers of 2 bytes
    {"width": 1, "delta": true, "first": 900}  n differences to the value before, beginning at 900
    {"planes": [-1, -1, 0, 0, 0, 0, 0, 0]}     n integers of 8 bytes: the lowest byte of each, then
                                               the next, ...; a byte that is always 7 is 7 here

with width 1, 2, 4 or 8. The description of n floats is {"width": "float"}: 8 bytes each, IEEE 754.
Strings are encoded as indices into a list that the file holds once, where index 0 is the empty
string. A column without any known value is omitted.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from struct import pack
from typing import TYPE_CHECKING, Any

from commtrace.schema import Column
from commtrace.tracefile.reading import Allowance, DamageError, is_int

if TYPE_CHECKING:
    import numpy as np

Description = dict[str, Any]
Data = bytes | memoryview

NOT_ALIKE = -1
"""Marks a byte plane whose bytes differ."""

_TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_CODES_OF_MISSING: dict[type, int] = {int: -1, bool: 0, str: 0}
_SWAP = sys.byteorder == "big"
# The lowest byte comes first in a file, on machines of either byte order.
_PLANES = tuple(reversed(range(8))) if _SWAP else tuple(range(8))
_SIGNS = bytes(128) + b"\xff" * 128
"""By the highest byte of a signed integer, each byte that widens it."""


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


ALL_UNKNOWN: Description = {"planes": [0xFF] * 8}
"""Description of integers that are all -1."""


def encode_planes(values: array[int]) -> tuple[Description, bytes]:
    """Encode an array of 64-bit integers byte plane by byte plane, as description and bytes.

    Cheaper than `encode_ints`, which inspects each number, and as compact, since most bytes are
    equal.

    >>> encode_planes(array("q", [0x4241, 0x4443]))
    ({'planes': [-1, -1, 0, 0, 0, 0, 0, 0]}, b'ACBD')
    """
    if not values:
        return {"const": 0}, b""
    packed = values.tobytes()
    planes = [packed[place::8] for place in _PLANES]
    # Bytes are compared in C, where `count` takes several times as long.
    alike = [plane[0] if plane == plane[:1] * len(plane) else NOT_ALIKE for plane in planes]
    if alike[-1] == NOT_ALIKE:  # some integers are negative, most often -1
        for width in (1, 2, 4):
            sign = planes[width - 1].translate(_SIGNS)
            if all(plane == sign for plane in planes[width:]):
                return {"width": width}, _side_by_side(planes[:width])
    differing = [plane for plane, byte in zip(planes, alike, strict=True) if byte == NOT_ALIKE]
    return {"planes": alike}, b"".join(differing)


def _side_by_side(planes: Sequence[bytes]) -> bytes:
    """Return integers of as many bytes as there are planes, the lowest byte of each first."""
    packed = bytearray(len(planes) * len(planes[0]))
    for place, plane in enumerate(planes):
        packed[place :: len(planes)] = plane
    return bytes(packed)


def packed_ints(values: Iterable[int]) -> array[int]:
    """Return integers as an array of 64-bit integers; an array is returned unchanged."""
    if isinstance(values, array):
        return values
    # The constructor of an array takes several times as long, as it parses each integer alone.
    packed, numbers = array("q"), list(values)
    packed.frombytes(pack(f"{len(numbers)}q", *numbers))
    return packed


def encode_floats(values: Sequence[float]) -> tuple[Description, bytes]:
    """Encode floats as description and bytes; nan is preserved."""
    return {"width": "float"}, _pack("d", values)


def is_not_known(column: Column, description: Description) -> bool:
    """Return whether a column holds no known value, so that it can be omitted."""
    return description == {"const": _CODES_OF_MISSING.get(column.type)}


def value_of_missing(column: Column) -> int | float:
    """Return the number that stands for an unknown value of a column in a file."""
    return float("nan") if column.type is float else _CODES_OF_MISSING[column.type]


def not_known(column: Column, rows: int) -> array[Any]:
    """Return the values of an omitted column, as `decode` would."""
    return array("d" if column.type is float else "q", [value_of_missing(column)]) * rows


def decode(
    description: Description, data: Data, rows: int, of_type: type | None = None
) -> array[Any]:
    """Decode a column into an array of 64-bit integers or of floats.

    Raises:
        DamageError: the bytes do not fill the rows, or are not of a column `of_type`.
    """
    import numpy as np  # only readers decode

    is_float = isinstance(description, dict) and description.get("width") == "float"
    values = array("d" if is_float else "q", [0]) * rows
    decode_into(np.frombuffer(values, dtype=values.typecode), description, data, of_type)
    return values


def decode_into(
    values: np.ndarray, description: Description, data: Data, of_type: type | None = None
) -> None:
    """Decode a column into an array, which has an element of 8 bytes for each row.

    Raises:
        DamageError: the bytes do not fill the rows, or are not of a column `of_type`.
    """
    if not isinstance(description, dict):
        raise DamageError(f"an invalid description of a column: {_shortened(description)}")
    if (description.get("width") == "float") is not (of_type is float) and of_type is not None:
        raise DamageError("integers" if of_type is float else "floats", "its width")
    try:
        if "const" in description:
            values[:] = _integer(description, "const", of_type)
        elif "planes" in description:
            _join_planes(values, _planes(description["planes"]), data)
        else:
            _unpack(values, description, data)
    except OverflowError as error:
        raise DamageError("integers of more than 64 bits") from error


def require_rows(rows: Any, num_columns: int, allowance: Allowance, place: str) -> int:
    """Return the number of rows that a file claims; charge their memory to the allowance."""
    if not is_int(rows) or rows < 0:
        raise DamageError(f"rows: {_shortened(rows)}, which is not a number of rows", place)
    allowance.take(8 * rows * num_columns, f"{rows:,} rows", place)
    return rows


def require_codes(codes: array[int] | np.ndarray, num_strings: int, place: str) -> None:
    """Raise DamageError unless each code is the index of a string."""
    import numpy as np  # only readers need it

    values = np.asarray(codes)
    if len(values) and not (values.min() >= 0 and values.max() < num_strings):
        raise DamageError(f"a string number outside of 0..{num_strings - 1}", place)


def size_of(description: Description, rows: int) -> int:
    """Return the bytes of a described column with that many rows; 0 for an invalid description."""
    if not isinstance(description, dict) or "const" in description:
        return 0
    if "planes" in description:
        return rows * _planes(description["planes"]).count(NOT_ALIKE)
    return rows * array(_typecode(description)).itemsize


def _unpack(values: np.ndarray, description: Description, data: Data) -> None:
    import numpy as np

    packed_type = np.dtype(_typecode(description)).newbyteorder("<")
    if len(data) != len(values) * packed_type.itemsize:
        raise DamageError(f"{len(data)} bytes for {len(values)} rows of {packed_type.itemsize}")
    packed = np.frombuffer(data, dtype=packed_type)
    if description.get("delta") and len(values):
        _add_up(values, packed, _integer(description, "first"))
    else:
        values[:] = packed


def _add_up(values: np.ndarray, differences: np.ndarray, first: int) -> None:
    """Fill `values` with the sums of the differences after the first, beginning at `first`.

    Raises:
        OverflowError: a sum does not fit into 64 bits.
    """
    if differences.itemsize == 8:  # written by no encoder; the sums may overflow
        values[:] = list(accumulate(differences[1:].tolist(), initial=first))
        return
    values[0] = 0
    differences[1:].cumsum(out=values[1:])
    for extreme in (int(values.min()), int(values.max())):
        if not -(1 << 63) <= extreme + first < 1 << 63:
            raise OverflowError
    values += first


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
    if not is_one or {*map(type, alike)} != {int} or min(alike) < -1 or max(alike) > 255:
        raise DamageError(f"planes: {_shortened(alike)}, which are not 8 bytes")
    return alike


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _join_planes(values: np.ndarray, alike: Sequence[int], data: Data) -> None:
    import numpy as np

    rows = len(values)
    num_differing = alike.count(NOT_ALIKE)
    if len(data) != num_differing * rows:
        raise DamageError(f"{len(data)} bytes for {rows} rows of {num_differing}")
    common = bytes([0 if byte == NOT_ALIKE else byte for byte in alike])
    values[:] = int.from_bytes(common, "little", signed=True)
    bytes_of = values.view(np.uint8).reshape(rows, 8)
    planes = np.frombuffer(data, dtype=np.uint8).reshape(num_differing, rows)
    differing = [place for place, byte in zip(_PLANES, alike, strict=True) if byte == NOT_ALIKE]
    for place, plane in zip(differing, planes, strict=True):
        bytes_of[:, place] = plane
