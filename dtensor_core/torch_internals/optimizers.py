"""torch's optimizers: how they choose foreach kernels, group tensors and take norms."""

from __future__ import annotations

from typing import Any

import torch.optim.optimizer as torch_optimizer  # pyright: ignore[reportMissingImports]
from torch.nn.utils import clip_grad
from torch.optim import swa_utils
from torch.utils import _foreach_utils

FOREACH_TYPES: tuple[list[type], ...] = (
    torch_optimizer._foreach_supported_types,
    _foreach_utils._foreach_supported_types,
)
"""Lists of the classes of tensors that foreach kernels take."""
GROUPING: tuple[Any, ...] = (torch_optimizer, clip_grad, swa_utils)
"""Modules that group tensors by device and dtype."""
GROUP_TENSORS = "_group_tensors_by_device_and_dtype"
"""The function of these modules that does."""
CLIPPING: Any = clip_grad
"""Module of gradient clipping."""
TOTAL_NORM = "_get_total_norm"
"""Its function that returns the norm of all gradients."""
FOREACH_FUNCTIONS = ("_foreach_zero_", "_amp_foreach_non_finite_check_and_unscale_")
"""Foreach functions of `torch` that take a single class of tensors at a time."""
