"""Reader of pickles that hold only plain values; refuses all others.

A pickle is a program: it may import and call any function while it is read, request memory by memo
index, and hold lists that contain themselves. A flight recorder's dump needs none of that.
`load_plain` first walks the opcodes and checks that no length or number exceeds the data. It then
loads them, refusing every name before anything is imported or called. Finally it counts the
result's values, each as often as it is contained.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from commtrace.tracefile.reading import MAX_DEPTH, DamageError, MoreThanError

_UP_TO_NEWLINE = -1
_NUM_LINES = {"c": 2, "i": 2}
_SIZED_BY = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
# Opcodes that store at a memo index, up to which the unpickler allocates a table.
_MEMO = {"r": 4, "q": 1}
_PUT = ord("p")
_STOP = ord(".")


class ForbiddenNameError(Exception):
    """A pickle requested an import; `name` is the requested name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class BrokenPickleError(DamageError):
    """The bytes are not a pickle, or it ends too early."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ForbiddenNameError(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> Any:
        raise ForbiddenNameError(f"persistent object {pid!r}")


def load_plain(data: bytes, most_values: int = 1 << 24) -> Any:
    """Load a pickle of plain values.

    Raises:
        ForbiddenNameError: it contains anything beyond plain values.
        BrokenPickleError: it cannot be read.
        MoreThanError: it holds more than `most_values`.
        RecursionError: values are nested too deep, or contain themselves.
    """
    _require_bounded(data)
    try:
        value = _PlainUnpickler(io.BytesIO(data)).load()
    except (ForbiddenNameError, MemoryError):
        # These are not damage, and have messages of their own.
        raise
    except Exception as error:  # damaged bytes can make the unpickler raise anything
        raise BrokenPickleError(f"{type(error).__name__}: {error}") from error
    _require_finite(value, most_values)
    return value


def _arguments() -> list[tuple[int, int]]:
    """Return by opcode the number of argument bytes, and the width of a length prefix."""
    found = [(_UNKNOWN, 0)] * 256
    for opcode in pickletools.opcodes:
        size = opcode.arg.n if opcode.arg is not None else 0
        if size == pickletools.UP_TO_NEWLINE:
            found[ord(opcode.code)] = (_UP_TO_NEWLINE, _NUM_LINES.get(opcode.code, 1))
        elif size < 0:
            found[ord(opcode.code)] = (0, _SIZED_BY[size])
        else:
            found[ord(opcode.code)] = (size, 0)
    return found


_UNKNOWN = -2
_ARGUMENTS = _arguments()
_MEMO_BYTES = {ord(code): size for code, size in _MEMO.items()}


def _require_bounded(data: bytes) -> None:
    """Walk the opcodes; refuse lengths beyond the data and memo indices larger than it."""
    place, end = 0, len(data)
    while place < end:
        code = data[place]
        place += 1
        size, width = _ARGUMENTS[code]
        if code in _MEMO_BYTES and int.from_bytes(data[place : place + size], "little") > end:
            raise BrokenPickleError(f"a memo beyond the bytes, at byte {place}")
        if size >= 0:
            if width:
                size = int.from_bytes(data[place : place + width], "little") + width
            place += size
        elif size == _UNKNOWN:
            raise BrokenPickleError(f"an unknown opcode {code:#x} at byte {place - 1}")
        else:
            begin = place
            for _ in range(width):
                place = data.find(b"\n", place) + 1 or end + 1
            number = data[begin : place - 1]
            if code == _PUT and not (number.isdigit() and len(number) < 19 and int(number) <= end):
                raise BrokenPickleError(f"a memo beyond the bytes, at byte {begin}")
        if code == _STOP:
            return
    raise BrokenPickleError("it ends before its last opcode")


_CONTAINERS = (dict, list, tuple, set, frozenset)


def _require_finite(value: Any, most: int) -> None:
    """Count values, each as often as it is contained, since few bytes can stand for very many."""
    sizes: dict[int, int] = {}
    inside: dict[int, list[Any]] = {}
    stack = _containers_in((value,))
    while stack:
        each = stack[-1]
        key = id(each)
        if key in sizes:
            stack.pop()
        elif key in inside:
            stack.pop()
            size = sizes[key] = 1 + len(each) + sum([sizes[id(part)] for part in inside.pop(key)])
            if size > most:
                raise MoreThanError(f"values within values, {size:,} of them")
        elif parts := _containers_in(each.values() if isinstance(each, dict) else each):
            inside[key] = parts
            if any(id(part) in inside for part in parts):
                raise RecursionError("a value that contains itself")
            if len(inside) > MAX_DEPTH:
                raise RecursionError(f"values nested deeper than {MAX_DEPTH}")
            stack += parts
        else:
            sizes[key] = 1 + len(each)


def _containers_in(values: Any) -> list[Any]:
    return [each for each in values if isinstance(each, _CONTAINERS)]
