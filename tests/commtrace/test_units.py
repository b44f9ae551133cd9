"""Texts of sizes, durations and counts."""

from __future__ import annotations

import doctest
import math

import pytest

from commtrace import units
from commtrace.units import (
    bytes_of_text,
    bytes_per_s_of_text,
    text_of_bytes,
    text_of_duration,
    text_of_value,
)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB")]
)
def test_a_size_for_people(size: int, text: str) -> None:
    assert text_of_bytes(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (5, "5 ns"),
        (12_340, "12.3 µs"),
        (999_999, "1 ms"),
        (2e9, "2 s"),
        (12_345e9, "12,345 s"),
    ],
)
def test_a_time_for_people(duration: float, text: str) -> None:
    assert text_of_duration(duration) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("64_000", 64_000), ("1_0.5 kB", 10_500), ("1_", None), ("1__0 kB", None), ("_1", None)],
)
def test_underscores_stand_between_digits(text: str, size: int | None) -> None:
    assert bytes_of_text(text) == size


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400 Gbit/s", 5e10),
        ("400Gbps", 5e10),
        ("400 Gb/s", 5e10),
        ("50 GB/s", 5e10),
        (" 50GBps ", 5e10),
        ("1.5 TB/s", 1.5e12),
        ("25 GiB/s", 25 * 2**30),
        ("8 kbit/s", 1e3),
        ("3 B/s", 3.0),
        ("50", None),
        ("50 G", None),
        ("50 GB", None),
        ("50 i B/s", None),
        ("-1 GB/s", None),
        ("nan GB/s", None),
        ("1e3 GB/s", None),
        ("GB/s", None),
        (f"{'9' * 5000} GB/s", None),
        ("", None),
    ],
)
def test_a_speed_has_a_unit_of_bits_or_bytes(text: str, bytes_per_s: float | None) -> None:
    assert bytes_per_s_of_text(text) == bytes_per_s


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500_000, "bytes", "1.5 MB"),
        (2_500_000, "ns", "2.5 ms"),
        (3.2e9, "bytes/s", "3.2 GB/s"),
        (0.4123, "1", "41.2%"),
        (1234.0, "", "1,234"),
        (0.25, "", "0.25"),
        (math.nan, "bytes", "–"),
        (math.nan, "", "–"),
        ("all_reduce", "", "all_reduce"),
        ("", "", "–"),
    ],
)
def test_a_cell_reads_as_its_unit_says(value: float | str, unit: str, text: str) -> None:
    assert text_of_value(value, unit) == text
