"""Derivatives of an operator by `torch.func`: forward mode, and both modes over reverse.

Levels of forward-mode differentiation are one per process, and ranks that are threads would leave
each other's. `one_level` enters a level around all of them, which they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from dtensor_core import DTensor
from dtensor_core.placement import Replicate
from dtensor_core.torch_internals.autograd import innermost
from dtensor_core.torch_internals.compilation import current_transform, without_transforms

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]


@contextmanager
def one_level() -> Iterator[None]:
    """Let all threads differentiate in forward mode at one level, which outlives their calls."""
    with forward_ad.dual_level(), patch.object(eager_transforms, "JVP_NESTING", 1):
        yield


def of_operator(op: Function, args: Any, kwargs: Any, derive: Function, turn: int) -> list[Any]:
    """Return an operator's derivatives with respect to the arguments that require gradients."""
    leaves, structure = tree_flatten((args, kwargs))
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    assert places, "no argument requires a gradient"

    def function(*inputs: torch.Tensor) -> Tensors:
        given = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            given[place] = tensor
        made = tree_flatten(op(*tree_unflatten(given, structure)))[0]
        return tuple(leaf for leaf in made if isinstance(leaf, torch.Tensor) and _is_real(leaf))

    inputs = tuple(leaves[place].detach() for place in places)
    tangents = tuple(_tangent(each, turn) for each in inputs)
    return list(derive(function, inputs, tangents))


def forward(function: Function, inputs: Tensors, tangents: Tensors) -> Iterator[Any]:
    """Yield results and their tangents."""
    results, derived = torch.func.jvp(function, inputs, tangents)
    yield from (*results, *derived)


def forward_over_reverse(function: Function, inputs: Tensors, tangents: Tensors) -> Iterator[Any]:
    """Yield products of the Hessian and the tangents, by the derivative of a gradient."""
    for loss in LOSSES:
        yield from torch.func.jvp(_gradient(function, loss, len(inputs)), inputs, tangents)[1]


def reverse_over_reverse(function: Function, inputs: Tensors, tangents: Tensors) -> Iterator[Any]:
    """Yield products of the Hessian and the tangents, by the gradient of a gradient."""
    for loss in LOSSES:
        pull_back = torch.func.vjp(_gradient(function, loss, len(inputs)), *inputs)[1]
        yield from pull_back(tangents)


def _gradient(function: Function, loss: Function, count: int) -> Function:
    return torch.func.grad(lambda *inputs: loss(function(*inputs)), tuple(range(count)))


def _linear(results: Tensors) -> torch.Tensor:
    """Loss whose gradients by the results are constants."""
    return sum(_real((each * weight(each)).sum()) for each in results)  # pyright: ignore


def _quadratic(results: Tensors) -> torch.Tensor:
    """Loss whose gradients by the results depend on them."""
    return sum(_real((each * each).sum()) for each in results)  # pyright: ignore


LOSSES = (_linear, _quadratic)
BY_NAME: dict[str, Function] = {
    "jvp": forward,
    "jvp of grad": forward_over_reverse,
    "grad of grad": reverse_over_reverse,
}


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).sum() if tensor.is_complex() else tensor


def weight(tensor: torch.Tensor, seed: int = 9) -> torch.Tensor:
    """Return numbers of both signs by which to multiply a tensor, replicated if it is a DTensor.

    They are the same for every layout and dtype width.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = torch.complex64 if tensor.is_complex() else torch.float32
    within: Any = innermost(tensor)
    # The numbers are constants, which a transform would wrap.
    with nullcontext() if current_transform() is None else without_transforms():
        made = torch.randn(tensor.shape, generator=generator, dtype=kind).to(tensor.dtype)
        return DTensor.from_local(made, within.device_mesh) if isinstance(within, DTensor) else made


def _tangent(primal: torch.Tensor, turn: int) -> torch.Tensor:
    """Return a tangent, at odd turns in the layout of the primal."""
    made = weight(primal, 1)
    if turn % 2 == 0 or not isinstance(made, DTensor) or not isinstance(primal, DTensor):
        return made
    layout = [Replicate() if each.is_partial() else each for each in primal.placements]
    return made.redistribute(placements=layout)
