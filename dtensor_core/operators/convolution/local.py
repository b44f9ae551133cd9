"""Convolutions of local shards: with a rank's own groups, of empty tensors, with fetched rows.

Kernels refuse empty tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, local_extent
from dtensor_core.operators.kernels.local_operator import Local, argument_names
from dtensor_core.operators.kernels.windows import WindowPart, Windows, fitted, per_dim
from dtensor_core.redistribute.halo_exchange import Rows
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending


def local_groups(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the operator with this rank's number of groups and size of the bias."""
    schema = argument_names(op)  # pyright: ignore[reportArgumentType]
    group_at = schema["groups"]
    backward = "bias_sizes" in schema
    x, weight = inputs[1:3] if backward else inputs[:2]
    channels = x.ndim - (weight.ndim - 1)
    local_size, size = x.local_shape[channels], x.shape[channels]
    has_none = any(0 in spec.shape for spec in (x, weight))

    def local(*args: Any, **kwargs: Any) -> Any:
        tensors = args[:3] if backward else args[:2]
        changed = list(args)
        if args[group_at] > 1 and local_size != size:
            # Groups are sharded evenly, so the division is exact.
            changed[group_at] = args[group_at] * local_size // size
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


@dataclass(frozen=True)
class Spatial:
    """Spatial dims of a convolution: windows are on x, or on the result if transposed."""

    windows: Mapping[int, Windows]
    first: int
    transposed: bool

    def part(self, dim: int, shard: AxisSharding, *, of_x: bool) -> WindowPart:
        """Return a rank's work for its part of the result, or for its part of the gradient of x."""
        windows = self.windows[dim]
        of_windows = of_x is self.transposed
        size = windows.count if of_windows else windows.size
        own = local_extent(size, shard.num_shards, shard.coord)
        return (
            WindowPart.of_windows(windows, own) if of_windows else WindowPart.of_rows(windows, own)
        )

    def unpadded(self, args: Sequence[Any], at: int, dims: Iterable[int]) -> list[Any]:
        """Return the arguments (strides at `at`) without padding in `dims`, whose blocks
        have it.
        """
        changed = list(args)
        for position in (at + 1, at + 4):
            values = per_dim(args[position], len(self.windows))
            changed[position] = [
                0 if self.first + n in dims else value for n, value in enumerate(values)
            ]
        return changed


def on_rows(spatial: Spatial, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
    """Make the convolution of the rows that a rank's windows read."""
    parts = {dim: spatial.part(dim, shard, of_x=False) for dim, shard in shards.items()}

    def local(x: torch.Tensor, weight: torch.Tensor, *args: Any) -> torch.Tensor:
        (x,) = rows([x])
        for dim, part in parts.items():
            x = fitted(x, dim, part.needs, part.block)
        out = op(*spatial.unpadded([x, weight, *args], 3, parts))
        if 0 not in x.shape and 0 not in weight.shape:  # otherwise its size is right
            for dim, part in parts.items():
                out = fitted(out, dim, part.made, part.own)
        return out

    return local


def gradients_on_rows(
    spatial: Spatial,
    mask: Sequence[bool],
    op: Local,
    rows: Rows,
    shards: Mapping[int, AxisSharding],
) -> Local:
    """Make the requested gradients from the rows that a rank's windows read and are read by."""
    of_x = {dim: spatial.part(dim, shard, of_x=True) for dim, shard in shards.items()}
    of_weight = {dim: spatial.part(dim, shard, of_x=False) for dim, shard in shards.items()}

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
        rest = spatial.unpadded([grad, x, *args], 4, shards)[2:-1]
        more_grad, more_x = rows([grad, x])
        results: list[Any] = [None] * 3
        if mask[0]:
            shape = list(x.shape)
            for dim, part in of_x.items():
                more_grad = fitted(more_grad, dim, part.needs, part.block)
                shape[dim] = part.made.size
            # The gradient of x depends on the shape of x, not on its values.
            made = op(more_grad, x.new_empty(shape), *rest, [True, False, False])[0]
            for dim, part in of_x.items():
                made = fitted(made, dim, part.made, part.own)
            results[0] = made
        if mask[1] or mask[2]:
            for dim, part in of_weight.items():
                more_x = fitted(more_x, dim, part.needs, part.block)
                # This rank's own rows, not `more_grad`: fetched rows would be summed on two ranks.
                grad = fitted(grad, dim, part.own, part.made)
            results[1:] = op(grad, more_x, *rest, [False, *mask[1:]])[1:]
        return tuple(results)

    return local
