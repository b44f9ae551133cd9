"""Convolutions of local shards: with a rank's own groups, and of empty tensors.

Kernels refuse empty tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.local_operator import Local, argument_names
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending


def local_groups(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the operator with this rank's number of groups and size of the bias."""
    schema = argument_names(op)  # pyright: ignore[reportArgumentType]
    group_at = schema["groups"]
    backward = "bias_sizes" in schema
    x, weight = inputs[1:3] if backward else inputs[:2]
    channels = x.ndim - (weight.ndim - 1)
    held, size = x.local_shape[channels], x.shape[channels]
    has_none = any(0 in spec.shape for spec in (x, weight))

    def local(*args: Any, **kwargs: Any) -> Any:
        tensors = args[:3] if backward else args[:2]
        changed = list(args)
        if args[group_at] > 1 and held != size:
            changed[group_at] = args[group_at] * held // size
        empty = not has_none and any(0 in tensor.shape for tensor in tensors)
        if not backward:
            out = outputs[0]
            assert out is not None
            if empty or (0 in out.local_shape and not has_none):
                return _result_of_nothing(out.local_shape, channels, *args[:3])
            return op(*changed, **kwargs)
        if args[3]:
            changed[3] = [tensors[0].shape[channels]]
        result = _gradients_of_nothing(channels, *tensors) if empty else op(*changed, **kwargs)
        return tuple(r if wanted else None for r, wanted in zip(result, args[-1], strict=True))

    return local


def _result_of_nothing(
    shape: Sequence[int], channels: int, x: torch.Tensor, weight: torch.Tensor, bias: Any
) -> torch.Tensor:
    """Return the result of an empty shard, which kernels refuse: only the bias."""
    made = depending(x.new_zeros(shape), x, weight)
    behind = [1] * (made.ndim - channels - 1)
    return made if bias is None else made + bias.reshape(-1, *behind)


def _gradients_of_nothing(
    channels: int, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> list[torch.Tensor]:
    nothing = [depending(grad.new_zeros(each.shape), grad, x, weight) for each in (x, weight)]
    # A rank without input channels has the full gradient of the bias.
    return [*nothing, grad.sum([dim for dim in range(grad.ndim) if dim != channels])]
