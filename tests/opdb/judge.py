"""What comes back from every rank against what torch makes of the whole tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride

# Their results are whatever was in memory.
UNINITIALISED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
}  # fmt: skip


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


def difference(info: Any, results: Sequence[Sequence[Any]], expected: Sequence[Any]) -> str:
    """What is wrong with the ranks' results, or nothing."""
    for rank, result in enumerate(results):
        for got, wanted in itertools.zip_longest(result, expected):
            problem = _difference(info, got, wanted)
            if problem:
                return f"rank {rank}: {problem}"
    return ""


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
