"""What comes back from every rank against what torch makes of the whole tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride

from tests.opdb.cases import Case

# Their results are whatever was in memory.
UNINITIALISED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
}  # fmt: skip

# How much farther from the truth a sum in another order may be than torch's.
_ROUNDING = 4


def tolerances(info: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol) of torch for a dtype, or the widest that the OpInfo asks for on this device."""
    rtol, atol = default_tolerances(dtype)
    for decorator in info.decorators:
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        for each in getattr(decorator, "decorators", [decorator]):
            if isinstance(each, toleranceOverride) and dtype in each.d:
                wanted = each.d[dtype]
                rtol, atol = max(rtol, wanted.rtol), max(atol, wanted.atol)
    return rtol, atol


def difference(case: Case, results: Sequence[Sequence[Any]]) -> str:
    """What is wrong with the ranks' results, or nothing."""
    for rank, result in enumerate(results):
        for number, (got, wanted) in enumerate(itertools.zip_longest(result, case.expected)):
            problem = _difference(case.info, got, wanted)
            if problem and not _is_rounding(case, number, got, wanted):
                return f"rank {rank}: {problem}"
    return ""


def _is_rounding(case: Case, number: int, got: Any, expected: Any) -> bool:
    """Whether a result is as near as torch's own, times `_ROUNDING`, to that of wider numbers.

    Sums in another order are rounded otherwise: where large terms cancel, by more than tolerances
    that know of results alone. Torch's own has to be near for the wider one to be the same thing.
    """
    same = isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)
    if not same or (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return False
    exact = case.exact[number] if number < len(case.exact) else None
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape or not exact.numel():
        return False
    if exact.dtype == expected.dtype or not exact.isfinite().all():
        return False
    rtol, atol = tolerances(case.info, expected.dtype)
    errors = [(each.to(exact.dtype) - exact).abs().max() for each in (got, expected)]
    near = 100 * (atol + rtol * exact.abs().max())
    return bool(errors[0] <= _ROUNDING * errors[1]) and bool(errors[1] <= near)


def _difference(info: Any, got: Any, expected: Any) -> str:
    if not isinstance(expected, torch.Tensor):
        if isinstance(got, torch.Tensor):
            # An absent gradient and one of zeros mean the same.
            return "" if expected is None and not got.any() else f"{got} for {expected}"
        return "" if got == expected or got != got else f"{got} for {expected}"
    if got is None:
        return "" if not expected.any() else "no gradient"
    if not isinstance(got, torch.Tensor):
        return f"{got!r} for a tensor"
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype} {tuple(got.shape)} for {expected.dtype} {tuple(expected.shape)}"
    if info.name in UNINITIALISED:
        return ""
    if got.layout != expected.layout:
        return f"{got.layout} for {expected.layout}"
    got, expected = _comparable(got), _comparable(expected)
    if torch.equal(got, expected):
        return ""
    rtol, atol = tolerances(info, expected.dtype)
    try:
        torch.testing.assert_close(got, expected, atol=atol, rtol=rtol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one whose kind torch can compare."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.to(torch.complex64) if dense.dtype is torch.complex32 else dense
