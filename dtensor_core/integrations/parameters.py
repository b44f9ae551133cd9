"""`parameter.data = dtensor` on a plain parameter: refused, as torch would crash later.

torch accepts it and ignores the layout; the next operator on the parameter then reads invalid
memory. An object can't change its class to a class with slots, so the error states the alternative.
Reading `.data` is unchanged. Installed by the package, once.
"""

from __future__ import annotations

import torch
from torch import nn

from dtensor_core.errors import MixedTensorError
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.tensors import data_attribute


def _set_data(parameter: torch.Tensor, value: torch.Tensor) -> None:
    if isinstance(value, DTensor) and not isinstance(parameter, DTensor):
        raise MixedTensorError(
            f"parameter.data = a DTensor {value._spec.text}",
            found=f"a plain parameter of shape {tuple(parameter.shape)}",
            why="a parameter can't become a DTensor in place",
            hint="module.weight = nn.Parameter(dtensor), or distribute_module",
        )
    data_attribute.__set__(parameter, value)


def install() -> None:
    """Make plain parameters refuse a DTensor as their data."""
    nn.Parameter.data = property(data_attribute.__get__, _set_data)  # pyright: ignore
