"""Texts of sizes, durations, counts and ranks for people, and the size that a text gives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from commtrace.escaping import visible

NANOSECONDS_PER_SECOND = 1_000_000_000


def text_of_bytes(num_bytes: float) -> str:
    """Format a size in powers of 1000: `1.5 MB`.

    >>> text_of_bytes(1_500_000)
    '1.5 MB'
    """
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        # From 999.5 on, three digits would be rounded to `1e+03`.
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


_SIZE = r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?"


def bytes_of_text(text: str) -> int | None:
    """Parse a size; None if it is invalid. `MB` is a million, `MiB` is 2**20.

    >>> bytes_of_text("1.5 kB"), bytes_of_text("64 KiB"), bytes_of_text("much")
    (1500, 65536, None)
    """
    match = re.fullmatch(_SIZE, text.strip().lower())
    if match is None or (match[3] and not match[2]):
        return None
    base = 1024 if match[3] else 1000
    # Exact, which a product of floats is not.
    return round(Fraction(match[1].replace("_", "")) * base ** " kmgt".index(match[2] or " "))


_SPEED = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kKmMgGtT]?)(i?)(?:(bit|b)|B)(?:/s|ps)")


def bytes_per_s_of_text(text: str) -> float | None:
    """Parse the speed of a link, in bits or bytes per second; None if it is invalid.

    `b` is a bit and `B` a byte; `G` is 10**9 and `Gi` is 2**30.

    >>> bytes_per_s_of_text("400 Gbit/s"), bytes_per_s_of_text("50 GB/s")
    (50000000000.0, 50000000000.0)
    """
    match = _SPEED.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return None
    base = 1024 if match[3] else 1000
    per_s = Fraction(match[1]) * base ** " kmgt".index(match[2].lower() or " ")
    return float(per_s / 8 if match[4] else per_s)


_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_DURATION = re.compile(rf"(\d{{1,18}}\.?\d{{0,18}}|\.\d{{1,18}})\s*({'|'.join(_NS)})")


def ns_of_text(text: str) -> float | None:
    """Parse a duration with its unit into nanoseconds; None if the text is not a duration.

    >>> ns_of_text("1.5ms"), ns_of_text("5 us"), ns_of_text("5")
    (1500000.0, 5000.0, None)
    """
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _NS[found[2]] if found else None


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


def text_of_measured(duration_ns: float, error_ns: float) -> str:
    """Format a duration with its standard error, to the digits that the error bears.

    An error of 0, an unknown error, and an error beyond five digits of the duration are left out.

    >>> text_of_measured(290_400_000, 14_600_000), text_of_measured(2_500_000, math.nan)
    ('290 ± 15 ms', '2.5 ms')
    """
    unit, scale = _unit_of(max(abs(duration_ns), error_ns) if error_ns > 0 else duration_ns)
    time, error = duration_ns / scale, error_ns / scale
    if not error > 0:
        return text_of_duration(duration_ns)
    first = math.floor(math.log10(error))
    decimals = (1 if error / 10.0**first < _LEAST_OF_ONE_DIGIT else 0) - first
    if time and decimals > 4 - math.floor(math.log10(abs(time))):
        return text_of_duration(duration_ns)
    shown = max(decimals, 0)
    return f"{round(time, decimals):,.{shown}f} ± {round(error, decimals):,.{shown}f} {unit}"


_LEAST_OF_ONE_DIGIT = 3
"""Errors that begin with 1 or 2 have two digits, since rounding would change them by much."""


def text_within(duration_ns: float, error_ns: float) -> str:
    """Format a duration, to three digits at most, and none after the first of its error.

    >>> text_within(52_400_000, 2_600_000), text_within(52_400_000, math.nan)
    ('52 ms', '52.4 ms')
    """
    if not (error_ns > 0 and duration_ns):
        return text_of_duration(duration_ns)
    places = math.floor(math.log10(abs(duration_ns))) - math.floor(math.log10(error_ns)) + 1
    return text_of_duration(float(f"{duration_ns:.{max(min(places, 3), 1)}g}"))


def _unit_of(duration_ns: float) -> tuple[str, float]:
    """Return the unit in which a duration is shown, and its length in ns."""
    scale = 1.0
    for unit in ("ns", "µs", "ms"):
        if abs(duration_ns) < 999.5 * scale:
            return unit, scale
        scale *= 1000
    return "s", scale


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 call`, `2,540 calls`.

    >>> counted(1, "call"), counted(2540, "call")
    ('1 call', '2,540 calls')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Format an ordinal number.

    >>> [ordinal(number) for number in (2, 11, 101, 1000)]
    ['2nd', '11th', '101st', '1,000th']
    """
    is_teen = number // 10 % 10 == 1
    return f"{number:,}{'th' if is_teen else _ORDINAL_ENDS.get(number % 10, 'th')}"


_ORDINAL_ENDS = {1: "st", 2: "nd", 3: "rd"}


def known_note(num_known: int, num: int, noun: str = "call") -> str:
    """Return in words how many calls have a known value; empty if all have.

    >>> known_note(40, 64), known_note(0, 1), known_note(64, 64)
    ('known for 40 of 64 calls', 'not known for 1 of 1 call', '')
    """
    if num_known >= num:
        return ""
    if not num_known:
        return f"not known for {num:,} of {counted(num, noun)}"
    return f"known for {num_known:,} of {counted(num, noun)}"


def text_of_mean(mean: float, num_ranks: int) -> str:
    """Format the mean over ranks of a count; the total over ranks unless it is a whole number.

    >>> text_of_mean(12.0, 64), text_of_mean(3 / 64, 64)
    ('12', '3 in all')
    """
    number, is_total = _whole(mean, num_ranks)
    return f"{number:,}{' in all' * is_total}" if number is not None else text_of_value(mean, "")


def counted_mean(mean: float, num_ranks: int, noun: str, each: str = "") -> str:
    """Format the mean over ranks of a count with its noun, as `text_of_mean` does.

    Args:
        mean: The mean over ranks.
        num_ranks: Number of ranks that it is taken over.
        noun: Noun in the singular.
        each: Text behind a mean, such as ` per rank`; a total is always marked as such.

    >>> counted_mean(1.0, 64, "call", " per rank"), counted_mean(3 / 64, 64, "call", " per rank")
    ('1 call per rank', '3 calls in all')
    """
    number, is_total = _whole(mean, num_ranks)
    if number is None:
        return f"{text_of_value(mean, '')} {noun}s{each}"
    return f"{counted(number, noun)}{' in all' if is_total else each}"


def _whole(mean: float, num_ranks: int) -> tuple[int | None, bool]:
    """Return the mean if it is whole, else the total and True; no number if neither is whole."""
    if not math.isfinite(mean):
        return None, False
    total = round(mean * num_ranks)
    # The mean was a quotient of whole numbers, which its product misses by a rounding error.
    if not math.isclose(mean * num_ranks, total, rel_tol=1e-12):
        return None, False
    is_total = total % num_ranks != 0
    return (total if is_total else total // num_ranks), is_total


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, each as its first and its last.

    >>> runs_of([7, 0, 1, 2])
    [(0, 2), (7, 7)]
    """
    runs: list[tuple[int, int]] = []
    for number in sorted({int(number) for number in numbers}):
        first = runs.pop()[0] if runs and number == runs[-1][1] + 1 else number
        runs.append((first, number))
    return runs


def text_of_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Format ranks, with runs of three or more contracted.

    >>> text_of_ranks([7, 0, 1, 2, 3]), text_of_ranks([5])
    ('ranks 0-3, 7', 'rank 5')
    """
    runs = runs_of(ranks)
    texts = [
        text
        for first, last in runs
        for text in ([f"{first}-{last}"] if last > first + 1 else map(str, range(first, last + 1)))
    ]
    is_one = len(runs) == 1 and runs[0][0] == runs[0][1]
    listed = ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
    return f"rank{'' if is_one else 's'} {listed}"


def contracted(numbers: str) -> str:
    """Format ranks of a cell, `0,1,2,7`, for people; if some are contracted, with their count.

    >>> contracted("0,1,2,7"), contracted("1,3"), contracted("5"), contracted("")
    ('0-2, 7 (4 ranks)', '1, 3', '5', '')

    Ranks that do not ascend are an order, and left as they are.
    """
    ranks = [int(number) for number in numbers.split(",")] if numbers else []
    if ranks != sorted(set(ranks)) or not ranks:
        return numbers
    listed = text_of_ranks(ranks).partition(" ")[2]
    is_complete = listed == ", ".join(map(str, ranks))
    return listed if is_complete else f"{listed} ({len(ranks):,} ranks)"


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
