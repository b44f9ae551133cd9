"""What optimizers of torch, and the clipping of gradients, need to know of DTensors.

Before an optimizer steps, every gradient comes to lie as its parameter does. So a pending sum is
reduced once, however often the update reads it, and state that is made like the gradient (fused
SGD's momentum) lies like the parameter.

The norm of gradients on several meshes, or of plain ones too, is put together from one norm per
mesh: each is one reduction of one number. Installed by the package, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.nn.utils import clip_grad
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
                    gradient, spec.placements, None, None, False, "optimizer.step"
                )


def _norm_by_mesh(total_norm: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function of torch, called for every mesh, and for plain tensors, alone."""

    @wraps(total_norm)
    def by_mesh(
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        groups: dict[Any, list[torch.Tensor]] = {}
        for tensor in tensors:
            mesh = tensor._spec.mesh if isinstance(tensor, DTensor) else None
            groups.setdefault(mesh, []).append(tensor)
        if len(groups) <= 1:
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        norms: list[torch.Tensor] = []
        for group in groups.values():
            norm = total_norm(group, norm_type, False, foreach)
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if norm_type == 0:  # the number of tensors that are not zero
            return torch.stack(norms).sum()
        return total_norm(norms, norm_type, error_if_nonfinite, foreach)

    return by_mesh


def install() -> None:
    """Let torch's optimizers, what chooses their foreach forms, and clipping know of DTensors."""
    torch_optimizer.register_optimizer_step_pre_hook(lay_gradients_like_parameters)
    for types in (torch_optimizer._foreach_supported_types, torch_foreach._foreach_supported_types):
        types.append(DTensor)
    clip_grad._get_total_norm = nn.utils.get_total_norm = _norm_by_mesh(clip_grad._get_total_norm)
