"""Reshapes become notation: the common factors of two shapes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dtensor_core.operators.views.rule import reshape_factors


def test_a_split_dimension_has_its_factors_in_order() -> None:
    before, after, sizes, blocked = reshape_factors((2, 12), (2, 3, 4))
    assert before == (("f0",), ("f1", "f2"))
    assert after == (("f0",), ("f1",), ("f2",))
    assert sizes == {"f0": 2, "f1": 3, "f2": 4}
    assert blocked == []


def test_dims_of_size_one_have_no_factor() -> None:
    before, after, _, _ = reshape_factors((3, 1, 6), (18,))
    assert before == (("f0",), (), ("f1",))
    assert after == (("f0", "f1"),)


def test_a_dim_of_size_one_that_stays_keeps_its_factor() -> None:
    before, after, sizes, _ = reshape_factors((1, 2, 3), (1, 6))
    assert before == (("f0",), ("f1",), ("f2",))
    assert after == (("f0",), ("f1", "f2"))
    assert sizes["f0"] == 1


def test_dims_without_common_factorisation_are_blocked_together() -> None:
    before, after, _, blocked = reshape_factors((5, 2, 3), (5, 3, 2))
    assert before == (("f0",), ("f1",), ("f1",))
    assert after == (("f0",), ("f1",), ("f1",))
    assert blocked == ["f1"]


def test_a_shape_without_elements_is_blocked_throughout() -> None:
    _, _, sizes, blocked = reshape_factors((0, 6), (6, 0))
    assert set(blocked) == set(sizes)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_factors_multiply_to_the_dims_they_make_up(sizes: list[int], data: st.DataObject) -> None:
    """Merging neighbours of a list at random gives two shapes with known common factors."""
    before, after = (_merged(sizes, data) for _ in range(2))
    left, right, factors, blocked = reshape_factors(before, after)
    assert blocked == [] or any(len(dims) for dims in left)
    for shape, operand in ((before, left), (after, right)):
        for size, dim in zip(shape, operand, strict=True):
            if not set(dim) & set(blocked):
                assert math.prod(factors[name] for name in dim) == size


def _merged(sizes: list[int], data: st.DataObject) -> list[int]:
    merged: list[int] = []
    for size in sizes:
        if merged and data.draw(st.booleans()):
            merged[-1] *= size
        else:
            merged.append(size)
    return merged
