"""Equality of tensors and their containers: equal values, unequal values, and the messages."""

# ruff: noqa: PT009  (it is these methods that are tested)

from __future__ import annotations

import warnings

import pytest
import torch

from dtensor_core import Replicate, Shard, distribute_tensor
from dtensor_core.testing import TestCase, kept_mesh, on_threads
from dtensor_core.testing.compare import Tolerance, assert_equal

ONES = torch.ones(2)

EQUAL = [
    (ONES, torch.ones(2) + 1e-7),
    (ONES, 1),
    (1, ONES),
    (ONES, [1.0, 1.0]),
    (torch.tensor([True]), True),
    (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    (1, 1.0),
    (0.1 + 0.2, 0.3),
    ((1, 2), [1, 2]),
    (torch.Size([2, 3]), (2, 3)),
    ([ONES, {"a": (ONES, 3)}], [ONES, {"a": (ONES, 3)}]),
    ("text", "text"),
    (None, None),
    (torch.float32, torch.float32),
    ({1, 2}, {2, 1}),
]

DIFFERENT = [
    (ONES, ONES + 1e-3, "not close"),
    (ONES, torch.ones(3), "shape"),
    (ONES, ONES.double(), "dtype"),
    (ONES, 2, "not close"),
    (ONES, "text", "a tensor is compared with a str"),
    ([1, [2, ONES]], [1, [2, ONES + 1]], r"at \[1\]\[1\]: Tensor-likes are not close"),
    ({"a": 1}, {"b": 1}, r"at keys: \['a'\] != \['b'\]"),
    ({"a": [1]}, {"a": [1, 2]}, r"at length\['a'\]: 1 != 2"),
    (1, 2, "Scalars are not"),
    (True, False, "True != False"),
    (True, 1.5, "True != 1.5"),
    ("one", "other", "'one' != 'other'"),
    (ONES, None, "a tensor is compared with a NoneType"),
]


@pytest.mark.parametrize(("actual", "expected"), EQUAL)
def test_equal(actual, expected):
    assert_equal(actual, expected)
    TestCase().assertEqual(actual, expected)
    with pytest.raises(AssertionError):
        TestCase().assertNotEqual(actual, expected)


@pytest.mark.parametrize(("actual", "expected", "text"), DIFFERENT)
def test_different(actual, expected, text):
    with pytest.raises(AssertionError, match=text):
        assert_equal(actual, expected)
    with pytest.raises(AssertionError, match=text):
        TestCase().assertEqual(actual, expected)
    TestCase().assertNotEqual(actual, expected)


def test_tolerances():
    assert_equal(ONES, ONES + 0.1, Tolerance(atol=0.2, rtol=0))
    TestCase().assertEqual(ONES, ONES.double(), exact_dtype=False)
    with pytest.raises(AssertionError):
        TestCase().assertEqual(ONES, ONES + 1e-7, atol=0, rtol=0)


def test_a_message_is_added():
    with pytest.raises(AssertionError, match="of course"):
        TestCase().assertEqual(1, 2, "of course")
    with pytest.raises(AssertionError, match=r"^of course$"):
        TestCase().assertEqual(1, 2, lambda text: "of course")


@on_threads(2)
def test_dtensors_are_equal_whatever_their_layouts_if_what_they_make_up_is():
    mesh = kept_mesh((2,))
    full = torch.arange(4.0)
    sharded = distribute_tensor(full, mesh, [Shard(0)])
    assert_equal(sharded, distribute_tensor(full.clone(), mesh, [Shard(0)]))
    assert_equal(sharded, distribute_tensor(full, mesh, [Replicate()]))
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(sharded, distribute_tensor(full + 1, mesh, [Replicate()]))
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(sharded, sharded + 1)
    with pytest.raises(AssertionError, match=r"compare full_tensor\(\) or to_local\(\)"):
        assert_equal(sharded, full)


def test_a_warning_fails_where_none_may_be():
    TestCase().assertNotWarn(lambda: None)
    with pytest.raises(AssertionError, match="warned: beware"):
        TestCase().assertNotWarn(lambda: warnings.warn("beware", stacklevel=1))
