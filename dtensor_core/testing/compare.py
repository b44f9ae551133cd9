"""Equality of tensors and of containers of tensors, with the tolerances of `torch.testing`.

`TestCase` extends unittest's with this as its `assertEqual`. Tensors, numbers (an int may equal a
float), and sequences and mappings of them are compared item by item; everything else by `==`.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch

from dtensor_core.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerated difference of two numbers; None selects torch's default for the dtype."""

    rtol: float | None = None
    atol: float | None = None
    equal_nan: bool = True
    exact_dtype: bool = True
    exact_device: bool = False
    exact_layout: bool = False
    exact_stride: bool = False


def assert_equal(actual: Any, expected: Any, tolerance: Tolerance | None = None) -> None:
    """Raise AssertionError, naming the item and the difference, unless the two are equal.

    Two DTensors on the same mesh are equal if their full tensors are. If their layouts are equal,
    the local tensors of this rank are compared; otherwise the DTensors are gathered, and every rank
    must call this.
    """
    _compare(actual, expected, tolerance or Tolerance(), "")


def _compare(actual: Any, expected: Any, tolerance: Tolerance, path: str) -> None:
    if isinstance(actual, DTensor) or isinstance(expected, DTensor):
        _compare_dtensors(actual, expected, tolerance, path)
    elif isinstance(actual, torch.Tensor) or isinstance(expected, torch.Tensor):
        _compare_tensors(actual, expected, tolerance, path)
    elif _is_number(actual) and _is_number(expected):
        _close(actual, expected, tolerance, path)
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        _require(actual.keys() == expected.keys(), list(actual), list(expected), f"keys{path}")
        for key, value in expected.items():
            _compare(actual[key], value, tolerance, f"{path}[{key!r}]")
    elif _is_sequence(actual) and _is_sequence(expected):
        _require(len(actual) == len(expected), len(actual), len(expected), f"length{path}")
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _compare(one, other, tolerance, f"{path}[{index}]")
    else:
        _require(actual == expected, actual, expected, path)


def _compare_dtensors(actual: Any, expected: Any, tolerance: Tolerance, path: str) -> None:
    if not (isinstance(actual, DTensor) and isinstance(expected, DTensor)):
        raise AssertionError(
            f"{_at(path)}a DTensor is compared with a {type(expected).__name__} where the other "
            f"is a {type(actual).__name__}; compare full_tensor() or to_local()"
        )
    _require(actual.device_mesh == expected.device_mesh, actual.device_mesh, expected.device_mesh)
    _require(actual.shape == expected.shape, actual.shape, expected.shape, f"{path}.shape")
    if actual.placements == expected.placements:
        _compare_tensors(actual.to_local(), expected.to_local(), tolerance, path)
    else:
        _compare_tensors(actual.full_tensor(), expected.full_tensor(), tolerance, path)


def _compare_tensors(actual: Any, expected: Any, tolerance: Tolerance, path: str) -> None:
    """Compare two values, at least one a tensor; the other takes its dtype."""
    if not isinstance(expected, torch.Tensor):
        expected = _like(expected, actual, path)
    elif not isinstance(actual, torch.Tensor):
        actual = _like(actual, expected, path)
    _close(actual, expected, tolerance, path)


def _like(value: Any, tensor: torch.Tensor, path: str) -> torch.Tensor:
    if _is_number(value) or isinstance(value, bool):
        return torch.full_like(tensor, value, requires_grad=False)
    if _is_sequence(value):
        return torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
    raise AssertionError(f"{_at(path)}a tensor is compared with a {type(value).__name__}")


def _close(actual: Any, expected: Any, tolerance: Tolerance, path: str) -> None:
    tensors = isinstance(expected, torch.Tensor)
    torch.testing.assert_close(
        actual,
        expected,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        equal_nan=tolerance.equal_nan,
        check_dtype=tolerance.exact_dtype and tensors,
        check_device=tolerance.exact_device,
        check_layout=tolerance.exact_layout,
        check_stride=tolerance.exact_stride,
        msg=lambda text: f"{_at(path)}{text}",
    )


def _require(equal: bool, actual: Any, expected: Any, path: str = "") -> None:
    if not equal:
        raise AssertionError(f"{_at(path)}{actual!r} != {expected!r}")


def _at(path: str) -> str:
    return f"at {path}: " if path else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


class TestCase(unittest.TestCase):
    """unittest's TestCase, with an `assertEqual` that compares tensors."""

    __test__ = False  # for pytest: not a test itself

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__test__ = True

    def assertEqual(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        first: Any,
        second: Any,
        msg: Any = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        equal_nan: bool = True,
        exact_dtype: bool = True,
        exact_device: bool = False,
        exact_layout: bool = False,
        exact_stride: bool = False,
    ) -> None:
        """Fail unless the two are equal, tensors within the tolerance of their dtype.

        Args:
            first: The actual value.
            second: The expected value.
            msg: A message for the failure, or a function that makes it from the default message.
            rtol: The relative tolerance; the dtype's default if None.
            atol: The absolute tolerance; the dtype's default if None.
            equal_nan: True if a nan equals a nan.
            exact_dtype: True if the dtypes must be equal.
            exact_device: True if the devices must be equal.
            exact_layout: True if the memory layouts must be equal.
            exact_stride: True if the strides must be equal.

        Raises:
            AssertionError: The two differ.
        """
        tolerance = Tolerance(
            rtol, atol, equal_nan, exact_dtype, exact_device, exact_layout, exact_stride
        )
        try:
            assert_equal(first, second, tolerance)
        except AssertionError as error:
            text = msg(str(error)) if callable(msg) else self._formatMessage(msg, str(error))
            raise self.failureException(text) from None

    def assertNotWarn(self, callable: Callable[[], Any], msg: str = "") -> None:
        """Fail, with `msg`, if calling `callable` emits a warning.

        Raises:
            AssertionError: It emits a warning.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callable()
        if caught:
            texts = "; ".join(str(each.message) for each in caught)
            raise self.failureException(self._formatMessage(msg, f"warned: {texts}"))

    def assertNotEqual(self, first: Any, second: Any, msg: Any = None, **tolerances: Any) -> None:
        """Fail if the two are equal.

        Args:
            first: The actual value.
            second: The value that it must differ from.
            msg: A message for the failure.
            **tolerances: The tolerances and conditions of `assertEqual`.

        Raises:
            AssertionError: The two are equal.
        """
        try:
            assert_equal(first, second, Tolerance(**tolerances))
        except AssertionError:
            return
        raise self.failureException(self._formatMessage(msg, f"{first!r} == {second!r}"))
