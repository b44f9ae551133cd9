"""Bytes and bandwidth by kind of communication.

A call's *payload* is the size that nccl-tests divides by time. Its *wire bytes* are the bytes that
one rank must send if ranks form a ring. *busbw* is payload / time times a factor that makes it
comparable to the speed of a link, whatever the number of ranks. `KINDS` is the table; with S the
payload and n the number of ranks of the group:

    kind            payload S                   a rank sends                    busbw factor
    all_reduce      the tensor                  2(n-1)/n S                      2(n-1)/n
    all_gather      the output of one rank      (n-1)/n S                       (n-1)/n
    reduce_scatter  the input of one rank       (n-1)/n S                       (n-1)/n
    all_to_all      the input of one rank       (n-1)/n S, or what it sends     (n-1)/n
    gather          all inputs together         S/n, the root 0                 (n-1)/n
    scatter         all outputs together        the root (n-1)/n S, others 0    (n-1)/n
    broadcast       the tensor                  S, the last in the ring 0       1
    reduce          the tensor                  S, the root 0                   1
    send            the tensor                  S                               1
    recv            the tensor                  0                               1
    barrier         0                           0                               0

A size that does not divide is rounded up to a whole byte. Source: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from commtrace.escaping import visible

NANOSECONDS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """Cost of a kind of communication.

    Attributes:
        busbw_factor: factor of payload / time, by group size.
        share: part of the payload that a rank sends, by group size n and the rank's distance behind
            the root in the ring (0 is the root itself).
    """

    busbw_factor: Callable[[int], Fraction]
    share: Callable[[int, int], Fraction]


def _none(size: int, distance: int = 0) -> Fraction:
    return Fraction(0)


def _whole(size: int, distance: int = 0) -> Fraction:
    return Fraction(1)


def _all_but_one(size: int, distance: int = 0) -> Fraction:
    return Fraction(size - 1, size)


def _all_but_one_twice(size: int, distance: int = 0) -> Fraction:
    return Fraction(2 * (size - 1), size)


def _all_but_the_last(size: int, distance: int) -> Fraction:
    return Fraction(distance < size - 1)


def _all_but_the_root(size: int, distance: int) -> Fraction:
    return Fraction(distance > 0)


def _own_part_but_the_root(size: int, distance: int) -> Fraction:
    return Fraction(distance > 0, size)


def _only_the_root(size: int, distance: int) -> Fraction:
    return _all_but_one(size) if distance == 0 else Fraction(0)


KINDS: dict[str, Kind] = {
    "all_reduce": Kind(_all_but_one_twice, _all_but_one_twice),
    "all_gather": Kind(_all_but_one, _all_but_one),
    "reduce_scatter": Kind(_all_but_one, _all_but_one),
    "all_to_all": Kind(_all_but_one, _all_but_one),
    "gather": Kind(_all_but_one, _own_part_but_the_root),
    "scatter": Kind(_all_but_one, _only_the_root),
    "broadcast": Kind(_whole, _all_but_the_last),
    "reduce": Kind(_whole, _all_but_the_root),
    "send": Kind(_whole, _whole),
    "recv": Kind(_whole, _none),
    "barrier": Kind(_none, _none),
}


def wire_bytes(kind: str, payload_bytes: int, size: int, *, distance: int = 0) -> int:
    """Return the bytes that one rank of a ring must send, rounded up.

    Args:
        kind: a key of `KINDS`.
        payload_bytes: payload of the call.
        size: number of ranks in the group.
        distance: position of the rank behind the root in the ring, for rooted kinds.

    >>> wire_bytes("all_reduce", 1000, 4)
    1500
    """
    numerator, denominator = _share(kind, size, distance)
    return -(-payload_bytes * numerator // denominator)


@lru_cache(maxsize=4096)
def _share(kind: str, size: int, distance: int) -> tuple[int, int]:
    return KINDS[kind].share(size, distance).as_integer_ratio()


def busbw_factor(kind: str, size: int) -> float:
    """Return the factor that makes payload / time comparable to a link's speed.

    >>> busbw_factor("all_reduce", 4)
    1.5
    """
    return float(KINDS[kind].busbw_factor(size))


def text_of_bytes(num_bytes: float) -> str:
    """Format a size in powers of 1000: `1.5 MB`.

    >>> text_of_bytes(1_500_000)
    '1.5 MB'
    """
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def bytes_of_text(text: str) -> int | None:
    """Parse a size; None if it is not one. `MB` is a million, `MiB` is 2**20.

    >>> bytes_of_text("1.5 kB"), bytes_of_text("64 KiB"), bytes_of_text("much")
    (1500, 65536, None)
    """
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None or (match[3] and not match[2]):
        return None
    base = 1024 if match[3] else 1000
    return round(Fraction(match[1]) * base ** " kmgt".index(match[2] or " "))


def text_of_duration(duration_ns: float) -> str:
    """Format a duration: `2.5 ms`.

    >>> text_of_duration(2_500_000)
    '2.5 ms'
    """
    time = float(duration_ns)
    for unit in ("ns", "µs", "ms"):
        if abs(time) < 999.5:
            return f"{time:.3g} {unit}"
        time /= 1000
    return f"{time:.3g} s" if abs(time) < 999.5 else f"{time:,.0f} s"


def counted(number: int, what: str) -> str:
    """Format a count with its noun: `1 call`, `2,540 calls`.

    >>> counted(1, "call"), counted(2540, "call")
    ('1 call', '2,540 calls')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def text_of_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Format ranks, with runs of three or more contracted.

    >>> text_of_ranks([7, 0, 1, 2, 3]), text_of_ranks([5])
    ('ranks 0-3, 7', 'rank 5')
    """
    spans: list[list[int]] = []
    for rank in sorted({int(rank) for rank in ranks}):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [
        text
        for first, last in spans
        for text in ([f"{first}-{last}"] if last > first + 1 else map(str, range(first, last + 1)))
    ]
    is_one = len(spans) == 1 and spans[0][0] == spans[0][1]
    listed = ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
    return f"rank{'' if is_one else 's'} {listed}"


def text_of_value(value: Any, unit: str) -> str:
    """Format a value according to its unit; an unknown value is a dash.

            bytes    1.5 MB        ns     2.5 ms      1    41.2%
            bytes/s  3.2 GB/s      none   1,234 or 0.25

    Control characters in text are made visible.

    >>> text_of_value(0.4123, "1")
    '41.2%'
    """
    if isinstance(value, str):
        return visible(value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if math.isnan(value):
        return "–"
    if unit == "bytes":
        return text_of_bytes(value)
    if unit == "ns":
        return text_of_duration(value)
    if unit == "bytes/s":
        return f"{text_of_bytes(value)}/s"
    if unit == "1":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
