"""A column decodes from its description and bytes as it was encoded, and is small."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.tracefile.encoding import (
    decode,
    encode_floats,
    encode_ints,
    encode_planes,
    packed_ints,
)
from commtrace.tracefile.reading import DamageError

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.one_of(st.lists(INT64), st.lists(st.integers(-300, 300)), st.lists(st.just(7))))
def test_integers_come_back(values: list[int]) -> None:
    assert list(decode(*encode_ints(values), len(values))) == values


@given(st.one_of(st.lists(INT64), st.lists(st.integers(-300, 300)), st.lists(st.just(-1))))
def test_integers_come_back_from_planes(values: list[int]) -> None:
    assert list(decode(*encode_planes(array("q", values)), len(values))) == values


@pytest.mark.parametrize(("most", "width"), [(127, 1), (128, 2), (1 << 15, 4)])
def test_negative_integers_take_no_planes_for_their_sign(most: int, width: int) -> None:
    values = [-1, 0, most]
    description, data = encode_planes(array("q", values))
    assert description == {"width": width}
    assert list(decode(description, data, 3)) == values


@pytest.mark.parametrize("values", [[], [3, -(1 << 63)], range(5)])
def test_integers_are_packed_whatever_holds_them(values: list[int]) -> None:
    assert packed_ints(values) == packed_ints(iter(values)) == array("q", values)


@given(st.lists(st.floats()))
def test_floats_come_back_bit_by_bit(values: list[float]) -> None:
    back = decode(*encode_floats(values), len(values))
    assert back.tobytes() == array("d", values).tobytes()
    assert all(math.isnan(b) for a, b in zip(values, back, strict=True) if math.isnan(a))


def test_a_column_of_one_value_takes_no_bytes() -> None:
    assert encode_ints([5] * 1000) == ({"const": 5}, b"")


def test_times_take_the_room_of_their_differences() -> None:
    start = 1_700_000_000_000_000_000
    times = [start + 100 * step for step in range(50)]
    description, data = encode_ints(times)
    assert description == {"width": 1, "delta": True, "first": start}
    assert len(data) == 50


def test_differences_that_do_not_fit_are_not_taken() -> None:
    extremes = [-(1 << 63), (1 << 63) - 1]
    description, data = encode_ints(extremes)
    assert description == {"width": 8}
    assert list(decode(description, data, 2)) == extremes


@pytest.mark.parametrize(
    ("description", "data", "rows", "message"),
    [
        ({"width": 2}, b"123", 2, "3 bytes for 2 rows of 2"),
        ({"planes": [-1, -1, 0, 0, 0, 0, 0, 0]}, b"123", 1, "3 bytes for 1 rows of 2"),
        ({"width": 3}, b"123", 1, "an unknown width 3"),
        ({}, b"", 0, "an unknown width None"),
    ],
)
def test_bytes_that_do_not_fit_the_description_are_refused(
    description: dict, data: bytes, rows: int, message: str
) -> None:
    with pytest.raises(DamageError, match=message):
        decode(description, data, rows)
