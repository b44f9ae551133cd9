"""Conversion of plain zero gradients, which autograd formulas make from sizes alone, to DTensors.

The gradient of `le_`, of `copysign` by the sign, or of `repeat` with zero repetitions is such a
tensor. It would become the `grad` of a DTensor, or meet a DTensor in the next formula. Affected
operators get a kernel ahead of autograd's, which puts a hook on the node that autograd makes; the
hook replaces plain gradients by replicated DTensors. Derivatives by `torch.func`, which no hook
sees, are replaced when torch returns them. Installed by `tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dtensor_core.dispatch.special.mixed_tensors import refuse_plain_derivative
from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.autograd import (
    check_gradients,
    check_tangents,
    convert_derivatives,
    innermost,
    is_batched,
)
from dtensor_core.torch_internals.dispatcher import AHEAD_OF_AUTOGRAD
from dtensor_core.tracing import outside_transforms

# Kept for the life of the process: torch removes the kernels of a library that is freed.
_library = torch.library.Library("aten", "IMPL")
_zeros = outside_transforms(torch.zeros)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_POOLS = (
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d "
    "avg_pool3d fractional_max_pool2d fractional_max_pool3d max_pool2d_with_indices "
    "max_pool3d_with_indices"
)
# Some or all of their gradients are plain zeros for some arguments.
# Source: torch's derivatives.yaml, wherever it says `zeros_like` of an argument.
_OPERATORS = (
    "copysign.Tensor copysign_.Tensor nextafter nextafter_ repeat sgn sgn_ normal_ "
    "normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor bernoulli_.Tensor poisson "
    "triangular_solve",
    *(f"{name}_.{other}" for name in _COMPARISONS for other in ("Scalar", "Tensor")),
    *(f"{name}_backward" for name in _POOLS.split()),
    *(f"{way}_pad{n}d_backward" for way in ("reflection", "replication") for n in (1, 2, 3)),
)


def install(cls: type[torch.Tensor]) -> None:
    """Register the kernels for DTensors of class `cls`."""
    for name in " ".join(_OPERATORS).split():
        _library.impl(name, _kernel(cls, name), AHEAD_OF_AUTOGRAD.name, with_keyset=True)
    check_gradients(refuse_plain_derivative)
    check_tangents(refuse_plain_derivative)
    convert_derivatives(partial(_like, cls))


def _like(cls: type[Any], derivative: torch.Tensor, tensor: torch.Tensor) -> Any:
    """Return the derivative as a DTensor if it is of or by a DTensor."""
    of, made = innermost(tensor), innermost(derivative)
    if not isinstance(of, cls) or type(made) is not torch.Tensor or is_batched(made):
        return derivative
    return _full(cls, of._spec, made)  # pyright: ignore[reportAttributeAccessIssue]


def _kernel(cls: type[torch.Tensor], name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        made = op.redispatch(keys.remove(AHEAD_OF_AUTOGRAD), *args, **kwargs)
        first: Any = made[0] if isinstance(made, tuple) else made
        # Writing to a view makes a node of its base.
        written = first._base if packet.endswith("_") and isinstance(first, cls) else None
        changed = first if written is None else written
        node = changed.grad_fn if isinstance(changed, cls) else None
        if node is not None:
            spec = first._spec  # pyright: ignore[reportAttributeAccessIssue]

            def as_dtensors(grads: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
                return tuple(_full(cls, spec, grad) for grad in grads)

            node.register_hook(as_dtensors)
        return made

    return kernel


def _full(cls: type[Any], like: Spec, value: Any) -> Any:
    """Wrap a plain tensor, equal on all ranks, as a DTensor on the mesh of a spec.

    Other values are returned unchanged.
    """
    if not isinstance(value, torch.Tensor) or isinstance(value, cls):
        return value
    if value._is_zerotensor():
        value = _zeros(value.shape, dtype=value.dtype, device=value.device)
    meta = TensorMeta(value.shape, value.stride(), value.dtype)
    return cls(value, Spec(like.mesh, (Replicate(),) * like.mesh.ndim, meta))
