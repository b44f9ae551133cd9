"""Fields of an entry in a flight-recorder dump: types, bounds, and defaults.

The layouts of version 2 differ in the fields that they have, so a field that is not in all of them
has a default. `FIELDS` has all that are read; docs/exchange.md lists the others, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS
from commtrace.torch_names import NOT_KNOWN
from commtrace.tracefile.reading import is_int

Shape = tuple[int, ...]


class Frame(NamedTuple):
    """One frame of a Python stack."""

    filename: str
    line: int
    name: str


def _is_natural(value: Any) -> bool:
    return is_int(value) and 0 <= value <= MOST_INSTANT_NS


def natural(value: Any) -> int:
    """Return a value that is an integer from 0 to 2^62 - 1; raise ValueError for others."""
    if not _is_natural(value):
        raise ValueError
    return value


def known_natural(value: Any) -> int:
    """Return a count, which may be given as its text; -1 if it is none."""
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else NOT_KNOWN
    return value if _is_natural(value) else NOT_KNOWN


_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


def _known_instant(value: Any) -> int:
    """Return a time; in JSON, an unknown time is 0."""
    return natural(value) or NOT_KNOWN


def _milliseconds(value: Any) -> int:
    if type(value) not in (int, float) or not 0 <= value < MOST_INSTANT_NS / 1e6:
        raise ValueError
    return round(value * 1e6)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def text(value: Any) -> str:
    """Return a value that is a string of moderate length; raise ValueError for others.

    A pickle can hold the same long string in very many places, and each would be copied.
    """
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError
    return value


_MOST_CHARACTERS = 4096


def items(value: Any) -> Sequence[Any]:
    """Return a value that is a list or a tuple; raise ValueError for others."""
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text(each) for each in items(value))


def _pair(value: Any) -> tuple[str, str]:
    name, description = _texts(value)
    return name, description


def _shapes(value: Any) -> tuple[Shape, ...]:
    shapes = tuple(tuple(natural(size) for size in items(shape)) for shape in items(value))
    if any(len(shape) > _MOST_DIMS or max(shape, default=0) >= _MOST_SIZE for shape in shapes):
        raise ValueError
    return shapes


_MOST_DIMS, _MOST_SIZE = 64, 10**18


def _split_sizes(value: Any) -> tuple[int, ...]:
    splits = tuple(natural(size) for size in items(value))
    if len(splits) > MAX_RANKS or max(splits, default=0) >= _MOST_SIZE:
        raise ValueError
    return splits


def _frames(value: Any) -> tuple[Frame, ...]:
    return _stack(
        tuple(
            [
                _frame(text(each["filename"]), known_natural(each["line"]), text(each["name"]))
                for each in items(value)
            ]
        )
    )


_frame = lru_cache(maxsize=1 << 14)(Frame)


@lru_cache(maxsize=1 << 14)
def _stack(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the same object for equal stacks, which recur across ranks and steps."""
    return frames


class Field(NamedTuple):
    """A field of an entry; every layout has the fields without a default."""

    expected: str
    read: Callable[[Any], Any]
    default: Any = None


FIELDS: dict[str, Field] = {
    "record_id": Field("a count", natural),
    "process_group": Field("a name and a description", _pair),
    "profiling_name": Field("a name", text),
    "collective_seq_id": Field("a count", natural),
    "time_created_ns": Field("a time in nanoseconds", natural),
    "input_sizes": Field("a list of shapes", _shapes),
    "output_sizes": Field("a list of shapes", _shapes),
    "input_dtypes": Field("a list of element types", _texts, ()),
    "output_dtypes": Field("a list of element types", _texts, ()),
    "input_split_sizes": Field("a list of counts of elements", _split_sizes, ()),
    "output_split_sizes": Field("a list of counts of elements", _split_sizes, ()),
    "pg_id": Field("a count", natural, 0),
    "p2p_seq_id": Field("a count", natural, 0),
    "op_id": Field("a count", known_natural, NOT_KNOWN),
    "is_p2p": Field("true or false", _flag, False),
    "time_discovered_started_ns": Field("a time in nanoseconds", _known_instant, NOT_KNOWN),
    "time_discovered_completed_ns": Field("a time in nanoseconds", _known_instant, NOT_KNOWN),
    "duration_ms": Field("a duration in milliseconds", _milliseconds, NOT_KNOWN),
    "retired": Field("true or false", _flag, False),
    "thread_id": Field("a number", known_natural, NOT_KNOWN),
    "frames": Field("a list of frames", _frames, ()),
}
"""Fields of an entry by name."""
