"""Tensors of torch that have no data, and the short names of dtypes."""

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._dtype_abbrs import dtype_abbrs

__all__ = ["FakeTensor", "dtype_abbrs"]
