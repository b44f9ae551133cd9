"""Support for torch's optimizers and gradient clipping.

Before an optimizer steps, every gradient is redistributed to the layout of its parameter. A pending
sum is thus reduced once, however often the update reads it, and state made like the gradient (fused
SGD's momentum) has the layout of the parameter.

The norm of gradients on several meshes, or of some plain gradients too, is combined from a norm per
mesh and layout; one number is reduced along each axis.

A list may hold torch's DTensors beside ours (see `dispatch.special.torch_dtensor`): norms, clipping
and the foreach and fused steps take both. Installed by the package, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtensor_core.dispatch.special.torch_dtensor import adopted, mixes
from dtensor_core.placement import Replicate
from dtensor_core.tensor import DTensor, _Redistribute
from dtensor_core.torch_internals.optimizers import (
    CLIPPING,
    FOREACH_FUNCTIONS,
    FOREACH_TYPES,
    GROUP_TENSORS,
    GROUPING,
    TOTAL_NORM,
)

_Axes = frozenset[int]


def lay_gradients_like_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Redistribute the gradients whose layout differs from their parameter's."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not isinstance(parameter, DTensor):
                continue
            gradient, spec = parameter.grad, parameter._spec
            if not isinstance(gradient, DTensor) or gradient._spec.mesh != spec.mesh:
                continue
            if gradient._spec.placements != spec.placements and not spec.sums:
                # Not the public method, under whose name a recorder would show the communication.
                parameter.grad = _Redistribute.apply(  # pyright: ignore
                    gradient, spec.placements, None, None, False, "optimizer.step"
                )


def _norm_by_layout(total_norm: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap torch's norm function to run once per set of mesh axes to reduce.

    The norms of a mesh are reduced axis by axis; norms that then have the same layout are merged.
    """

    @wraps(total_norm)
    def by_layout(
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        of_both = mixes(tensors, DTensor)
        if of_both:
            tensors = [adopted(each, DTensor) for each in tensors]
        meshes: dict[Any, dict[_Axes, list[torch.Tensor]]] = {}
        for tensor in tensors:
            mesh = tensor._spec.mesh if isinstance(tensor, DTensor) else None
            meshes.setdefault(mesh, {}).setdefault(_axes_of(tensor), []).append(tensor)
        if not any(meshes):
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)

        def joined(norms: list[Any]) -> Any:
            if len(norms) == 1:
                return norms[0]
            if norm_type == 0:  # counts the tensors that are not zero
                return torch.stack(norms).sum()
            return total_norm(norms, norm_type, False, foreach)

        alone: list[Any] = []
        for mesh, groups in meshes.items():
            norms = {axes: [total_norm(g, norm_type, False, foreach)] for axes, g in groups.items()}
            for axis in reversed(range(0 if mesh is None else mesh.ndim)):
                for axes in [axes for axes in norms if axis in axes]:
                    norm = _replicated_along(axis, joined(norms.pop(axes)))
                    norms.setdefault(axes - {axis}, []).append(norm)
            alone.append(joined(norms[frozenset()]))
        if len(alone) > 1 or of_both:  # a plain norm can multiply either class
            alone = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in alone]
        if error_if_nonfinite:
            total_norm(alone, norm_type, error_if_nonfinite, foreach)  # raises
        return joined(alone)

    return by_layout


def _axes_of(tensor: torch.Tensor) -> _Axes:
    """Return the axes along which the norm of a tensor has to be reduced."""
    placements = tensor._spec.placements if isinstance(tensor, DTensor) else ()
    return frozenset(axis for axis, each in enumerate(placements) if not each.is_replicate())


def _replicated_along(axis: int, norm: DTensor) -> DTensor:
    placements = list(norm._spec.placements)
    placements[axis] = Replicate()
    return norm.redistribute(placements=placements)


def _of_one_class(group: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's function that groups lists of tensors for foreach and fused operators.

    torch's DTensors among ours are replaced by ours on the same storage, since the operators write
    in place.
    """

    @wraps(group)
    def grouped(lists: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and mixes(lists[0], DTensor):
            lists = [[adopted(each, DTensor) for each in tensors] for tensors in lists]
        return group(lists, *args, **kwargs)

    return grouped


def _on_one_class(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a list operator of torch that is called without grouping the list first."""

    @wraps(operator)
    def call(tensors: Any, *args: Any) -> Any:
        if not torch.compiler.is_compiling() and mixes(tensors, DTensor):
            tensors = [adopted(each, DTensor) for each in tensors]
        return operator(tensors, *args)

    return call


def _with_reduced_sums(total_norm: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap the norm for clipping so that pending sums of gradients are reduced first.

    Otherwise they would be reduced once for the norm, and again for the optimizer.
    """

    @wraps(total_norm)
    def reduced_norm(tensors: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = list(tensors)
        for tensor in tensors:
            if isinstance(tensor, DTensor) and tensor._spec.sums:
                full = [Replicate() if p.is_partial() else p for p in tensor.placements]
                tensor.data = _Redistribute.apply(  # pyright: ignore
                    tensor.detach(), tuple(full), None, None, False, "clip_grad_norm_"
                )
        return total_norm(tensors, *args, **kwargs)

    return reduced_norm


def install() -> None:
    """Patch torch's optimizers, their foreach selection, and gradient clipping for DTensors."""
    register_optimizer_step_pre_hook(lay_gradients_like_parameters)
    for types in FOREACH_TYPES:
        types.append(DTensor)
    for module in GROUPING:
        setattr(module, GROUP_TENSORS, _of_one_class(getattr(module, GROUP_TENSORS)))
    for name in FOREACH_FUNCTIONS:
        setattr(torch, name, _on_one_class(getattr(torch, name)))
    nn.utils.get_total_norm = _norm_by_layout(getattr(CLIPPING, TOTAL_NORM))
    # Only clipping replaces the gradients that it is given; the public function leaves them alone.
    setattr(CLIPPING, TOTAL_NORM, _with_reduced_sums(nn.utils.get_total_norm))
