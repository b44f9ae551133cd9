"""Compare the results of every rank with torch's results on the full tensors.

A result is right if it is within the tolerance of the OpInfo or of the dtype. Ranks round
their sums in another order, however. Where large terms cancel, or a system is ill-conditioned, the
error can exceed such a tolerance. A result outside of it is right as well in two cases:

- It is within the tolerance of the result in wider numbers, so that torch's own result is off.
- It is no farther from that result than the sum of torch's own error and the effect of rounding
  on torch's result (`nudges`), in both the largest element and the Euclidean norm, and half of
  the digits are beyond doubt. Where all may be in doubt, as for a derivative that is 0, the
  ranks' results in wider numbers must be torch's.

A wrong rule omits a rank's part or counts it twice, which is off by orders of magnitude. The
combinations that need this relaxation are counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride

from tests.opdb.cases import Case

# Operators whose results are uninitialized memory.
UNINITIALISED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
}  # fmt: skip


def tolerances(info: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Return (rtol, atol) of torch for a dtype, or the largest that the OpInfo sets for CPU."""
    rtol, atol = default_tolerances(dtype)
    for decorator in info.decorators:
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        for each in getattr(decorator, "decorators", [decorator]):
            if isinstance(each, toleranceOverride) and dtype in each.d:
                wanted = each.d[dtype]
                rtol, atol = max(rtol, wanted.rtol), max(atol, wanted.atol)
    return rtol, atol


def _tolerances(case: Case, dtype: torch.dtype) -> tuple[float, float]:
    """Return (rtol, atol) of a result, which an argument of narrower numbers widens."""
    found = [tolerances(case.info, dtype)]
    if dtype.is_floating_point or dtype.is_complex:
        given = {tensor.dtype for tensor in case.tensors}
        found += [tolerances(case.info, each) for each in given if each.is_floating_point]
    return max(rtol for rtol, _ in found), max(atol for _, atol in found)


def difference(
    case: Case,
    results: Sequence[Sequence[Any]],
    agrees_in_wide: Callable[[], bool] = lambda: False,
) -> tuple[str, bool]:
    """Compare the ranks' results with the expected results.

    Args:
        case: The call.
        results: The leaves of each rank's result.
        agrees_in_wide: True if the ranks' results in wider numbers are torch's.

    Returns:
        The first problem, empty if there is none, and True if rounding has to explain a difference.
    """
    rounded = False
    for rank, result in enumerate(results):
        for number, (got, wanted) in enumerate(itertools.zip_longest(result, case.expected)):
            problem = _difference(case, got, wanted)
            if (
                problem
                and not _is_rounding(case, number, got, wanted)
                and not (
                    _is_rounding(case, number, got, wanted, half_is_sure=False) and agrees_in_wide()
                )
            ):
                return f"rank {rank}: {problem}", False
            rounded |= bool(problem)
    return "", rounded


def _is_rounding(
    case: Case, number: int, got: Any, expected: Any, *, half_is_sure: bool = True
) -> bool:
    """True if the difference is no larger than rounding explains.

    With `half_is_sure`, rounding explains no difference in the first half of the digits.
    """
    off, torchs = _distance(got, expected), (0.0, 0.0)
    if off is None:
        return False
    largest = float(expected.abs().nan_to_num(0, 0, 0).max()) if half_is_sure else math.inf
    most = largest * torch.finfo(expected.dtype).eps ** 0.5
    exact = case.exact[number] if number < len(case.exact) else None
    if isinstance(exact, torch.Tensor):
        if not _difference(case, got, exact.to(got.dtype)):
            return True
        mine, own = (_distance(each.to(exact.dtype), exact) for each in (got, expected))
        if mine is not None and own is not None and own[0] <= most:
            off, torchs = mine, own
    moves = (0.0, 0.0)
    for nudged in itertools.chain([case.expected], case.nudged()):
        moved = _distance(nudged[number], expected) if number < len(nudged) else None
        if moved is not None and moved[0] <= most:
            moves = max(moves[0], moved[0]), max(moves[1], moved[1])
        if all(off[norm] <= torchs[norm] + moves[norm] for norm in (0, 1)):
            return True
    return False


def _distance(got: Any, expected: Any) -> tuple[float, float] | None:
    """Return the maximum and the Euclidean norm of the difference, or None if undefined."""
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return None
    if (got.dtype, got.shape) != (expected.dtype, expected.shape) or not expected.numel():
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        return None
    wide = torch.complex128 if expected.is_complex() else torch.float64
    got, expected = (_comparable(each).to(wide) for each in (got, expected))
    finite = expected.isfinite()
    if not torch.allclose(got[~finite], expected[~finite], equal_nan=True):
        return None
    off = (got - expected)[finite].abs()
    largest = float(off.max()) if off.numel() else 0.0
    return (largest, float(off.norm())) if math.isfinite(largest) else None


def _difference(case: Case, got: Any, expected: Any) -> str:
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
    if case.info.name in UNINITIALISED:
        return ""
    if got.layout != expected.layout:
        return f"{got.layout} for {expected.layout}"
    got, expected = _comparable(got), _comparable(expected)
    if torch.equal(got, expected):
        return ""
    rtol, atol = _tolerances(case, expected.dtype)
    try:
        torch.testing.assert_close(got, expected, atol=atol, rtol=rtol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Convert the tensor to a layout and dtype that torch can compare."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.to(torch.complex64) if dense.dtype is torch.complex32 else dense
