"""Tensors of torch that are not plain: subclasses, fake tensors, aliases."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
]

_C: Any = torch._C
_Tensor: Any = torch.Tensor

new_dtensor = _Tensor._dtensor__new__
"""Make a tensor of a subclass: its class, its local tensor and its spec, which become attributes.
Shape, strides and dtype come from the spec's `tensor_meta`.
"""
make_wrapper = _Tensor._make_wrapper_subclass
"""Make a tensor of a subclass without memory of its own, from its class, size, dtype and device.

Strides and storage offset are those given, as well.
"""
no_torch_function = _C._disabled_torch_function_impl
"""The `__torch_function__` of a subclass that wants none, without a cost per call."""
data_attribute = _C.TensorBase.data
"""The descriptor of `tensor.data`."""
is_alias_of = _C._is_alias_of
"""Return whether two tensors use the same memory."""
is_functional = torch._is_functional_tensor
"""Return whether a tensor belongs to a functionalization."""
assert_on_device: Any = torch._assert_async
"""Raise on the device, without waiting for it, if a single-element tensor is false."""
