"""Bytes and bandwidth by kind, compared with the formulas written out by hand."""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace import units
from commtrace.units import (
    KINDS,
    busbw_factor,
    text_of_bytes,
    text_of_duration,
    text_of_value,
    wire_bytes,
)


@pytest.mark.parametrize(
    ("kind", "distance", "sent"),
    [
        ("all_reduce", 0, 1500),  # 3 chunks of 250 twice
        ("all_gather", 0, 750),
        ("reduce_scatter", 0, 750),
        ("all_to_all", 0, 750),
        ("broadcast", 0, 1000),  # the root sends, then each forwards, and the last does not
        ("broadcast", 2, 1000),
        ("broadcast", 3, 0),
        ("reduce", 0, 0),
        ("reduce", 1, 1000),
        ("gather", 0, 0),
        ("gather", 3, 250),
        ("scatter", 0, 750),
        ("scatter", 1, 0),
        ("send", 0, 1000),
        ("recv", 0, 0),
        ("barrier", 0, 0),
    ],
)
def test_a_rank_of_four_sends_these_bytes_of_a_thousand(
    kind: str, distance: int, sent: int
) -> None:
    assert wire_bytes(kind, 1000, 4, distance=distance) == sent


def test_bytes_that_do_not_divide_are_rounded_up() -> None:
    assert wire_bytes("all_gather", 10, 3) == 7  # 6.67


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0), ("barrier", 0.0)],
)
def test_the_busbw_factor_is_that_of_nccl_tests(kind: str, factor: float) -> None:
    assert busbw_factor(kind, 4) == factor


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1 << 50))
def test_a_rank_on_its_own_sends_nothing_unless_told_whom_to_send_to(kind: str, size: int) -> None:
    assert wire_bytes(kind, size, 1) == (size if kind == "send" else 0)


@given(st.integers(0, 1 << 50), st.integers(1, 64))
def test_a_broadcast_arrives_once_at_every_rank_but_the_root(size: int, ranks: int) -> None:
    sent = sum(wire_bytes("broadcast", size, ranks, distance=place) for place in range(ranks))
    assert sent == size * (ranks - 1)


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
