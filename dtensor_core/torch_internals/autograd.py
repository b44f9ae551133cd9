"""torch's autograd: the backward pass in progress, versions of tensors, levels of dual numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._functorch import eager_transforms, predispatch
from torch.autograd import forward_ad

from dtensor_core.torch_internals.compilation import skip_frames

_C: Any = torch._C
_functorch: Any = _C._functorch

current_graph_task_id = _C._current_graph_task_id
"""Return the number of the backward pass that runs on this thread; -1 outside of any."""
current_node = _C._current_autograd_node
"""Return the autograd node whose gradient is computed on this thread; None if there is none."""
increment_version = _C._increment_version
"""Note a write to each tensor of a tuple, so that autograd refuses to use its saved value."""

python_node: type = _C._FunctionBase
"""Base class of the nodes of autograd functions that are written in Python."""


def has_dual_level() -> bool:
    """Return whether a level of forward-mode differentiation is entered."""
    return forward_ad._current_level >= 0


is_batched = _functorch.is_batchedtensor
"""Return whether `torch.func.vmap` has wrapped a tensor."""


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor within the wrappers of `torch.func`; batched tensors are returned as is."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def check_gradients(check: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Call `check(output, gradient)` for every gradient with which a program begins a backward."""
    make_grads = torch.autograd._make_grads

    @wraps(make_grads)
    def checked(outputs: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            for output, grad in zip(outputs, grads, strict=False):
                check(output, grad)
        return make_grads(outputs, grads, *args, **kwargs)

    hook: Any = checked
    skip_frames(hook.__code__)
    torch.autograd._make_grads = hook


def check_tangents(check: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Call `check(tensor, tangent)` for every dual number that a program makes."""
    make = predispatch._make_dual

    @wraps(make)
    def checked(tensor: torch.Tensor, tangent: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            check(tensor, tangent)
        return make(tensor, tangent, *args, **kwargs)

    hook: Any = checked
    skip_frames(hook.__code__)
    predispatch._make_dual = hook


def convert_derivatives(convert: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Replace every derivative that `torch.func` returns by `convert(derivative, tensor)`."""
    unpack, gradients = eager_transforms.safe_unpack_dual, eager_transforms._autograd_grad

    @wraps(unpack)
    def unpacked(dual: torch.Tensor, strict: bool) -> Any:
        primal, tangent = unpack(dual, strict)
        if torch.compiler.is_dynamo_compiling():
            return primal, tangent
        return primal, convert(tangent, primal)

    @wraps(gradients)
    def converted(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found = gradients(outputs, inputs, *args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            return found
        return tuple(convert(each, to) for each, to in zip(found, inputs, strict=True))

    eager_transforms.safe_unpack_dual = unpacked
    eager_transforms._autograd_grad = converted
