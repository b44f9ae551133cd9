"""Tensors of torch without data of their own, and the short names of dtypes."""

from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._dtype_abbrs import dtype_abbrs

__all__ = ["FakeTensor", "awaited_tensor", "dtype_abbrs"]


def awaited_tensor(tensor: Any) -> Any:
    """Return the tensor that a result of a functional collective stands for; else the tensor."""
    return getattr(tensor, "elem", tensor)
