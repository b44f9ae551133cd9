"""Tensors of torch without data of their own, and the short names of dtypes."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._dtype_abbrs import dtype_abbrs

__all__ = ["FakeTensor", "address_of", "awaited_tensor", "dtype_abbrs"]

_UNKNOWN = -1


def awaited_tensor(tensor: Any) -> Any:
    """Return the tensor that a result of a functional collective stands for; else the tensor."""
    return getattr(tensor, "elem", tensor)


def address_of(tensor: Any) -> int:
    """Return the address of a tensor's storage; -1 if it has none, or if it is empty.

    A new tensor begins where its storage does, so that its own address, which is cheaper, is equal.
    A fake or meta tensor has no memory: its address is its storage object's, and negative.
    """
    try:
        if type(tensor) is not torch.Tensor and isinstance(tensor, FakeTensor):
            return -tensor.untyped_storage()._cdata  # asking for its memory would warn
        storage = tensor.untyped_storage()
        return storage.data_ptr() or (-storage._cdata if tensor.is_meta else _UNKNOWN)
    except (RuntimeError, NotImplementedError):
        return _UNKNOWN
