"""What optimizers of torch need to know of DTensors: their gradients' layouts, and foreach forms.

Before an optimizer steps, every gradient comes to lie as its parameter does. So a pending sum is
reduced once, however often the update reads it, and state that is made like the gradient (fused
SGD's momentum) lies like the parameter. Installed by the package, once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer  # pyright: ignore[reportMissingImports]
from torch.utils import _foreach_utils as torch_foreach

from dtensor_core.tensor import DTensor, _Redistribute


def lay_gradients_like_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Redistribute the gradients that lie otherwise than their parameters; the rest is left."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not isinstance(parameter, DTensor):
                continue
            gradient, spec = parameter.grad, parameter._spec
            if not isinstance(gradient, DTensor) or gradient._spec.mesh != spec.mesh:
                continue
            if gradient._spec.placements != spec.placements and not spec.sums:
                parameter.grad = _Redistribute.apply(  # pyright: ignore
                    gradient, spec.placements, None, None, "optimizer.step"
                )


def install() -> None:
    """Let torch's optimizers, and what chooses their foreach forms, know of DTensors."""
    torch_optimizer.register_optimizer_step_pre_hook(lay_gradients_like_parameters)
    for types in (torch_optimizer._foreach_supported_types, torch_foreach._foreach_supported_types):
        types.append(DTensor)
