"""Recurrent layers and cells on DTensors, laid out once so that steps need no communication.

The sequences of a batch are independent. If the input or a state is sharded by the batch, so are
the others. A layer's input sharded by another dim is resharded by the batch, and a layer's weights
are replicated. Each rank then runs the layer on its own sequences, and gradients of weights are
partial sums. Layers with dropout run one by one, so that the numbers drawn between them match a
single device. Under a transform of `torch.func` or a compiler, the layer is decomposed with the
same layouts. Used by `composites`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.placement import Partial, Placement, Replicate, Shard, shard_in_blocks
from dtensor_core.torch_internals.dispatcher import COMPOSITE_IMPLICIT, OpOverload
from dtensor_core.torch_internals.trees import tree_leaves, tree_map
from dtensor_core.tracing import is_transforming


def layer(op: OpOverload, x: Any, states: Any, weights: Any, *options: Any) -> Any:
    """Run a layer on x [time, batch, features], or batch first, and states [layers, batch, hidden].

    `options` are has_biases, num_layers, dropout, train, bidirectional, batch_first.
    """
    if not _share_a_mesh((x, states, weights)):
        return op._op_dk(COMPOSITE_IMPLICIT, x, states, weights, *options)
    batch = 0 if options[-1] else 1
    dropout, train = options[2:4]
    # A kernel that draws for the sequences of one rank would not draw the numbers of one device.
    if dropout and train:
        return _one_by_one(op, x, states, weights, *options)
    shards = [
        Shard(0) if shard is None and placement.sharded_dim is not None else shard
        for shard, placement in zip(_shards(x, states, batch, 1), x.placements, strict=True)
    ]
    x = _placed(x, shards, batch)
    states = tree_map(lambda state: _placed(state, shards, 1), states)
    weights = [_placed(weight, [None] * len(shards), 0) for weight in weights]
    if is_transforming() or x._spec.coords is None:
        return op._op_dk(COMPOSITE_IMPLICIT, x, states, weights, *options)
    grads = [Replicate() if shard is None else Partial() for shard in shards]
    local_x, local_states = tree_map(lambda each: each.to_local(), (x, states))
    local_weights = [weight.to_local(grad_placements=grads) for weight in weights]
    held = local_x.shape[batch]
    if not held:  # one sequence of zeros: kernels need no empty case, and gradients are zeros
        local_x = _one_more(local_x, batch)
        local_states = tree_map(lambda state: _one_more(state, 1), local_states)
    made = op(local_x, local_states, local_weights, *options)
    count = x.shape[batch]
    return tuple(
        _whose_part(x, each.narrow(dim, 0, held), shards, dim, count)
        for each, dim in zip(made, (batch, *[1] * (len(made) - 1)), strict=True)
    )


def _one_by_one(
    op: OpOverload,
    x: Any,
    states: Any,
    weights: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Run layer after layer with dropout in between; kernels draw it in time-first order."""
    x = x.transpose(0, 1) if batch_first else x
    ways, each = 2 if bidirectional else 1, len(weights) // num_layers
    ends: list[Any] = []
    for n in range(num_layers):
        given = tree_map(lambda state, n=n: state.narrow(0, n * ways, ways), states)
        own = weights[n * each : (n + 1) * each]
        x, *last = layer(op, x, given, own, has_biases, 1, 0.0, train, bidirectional, False)
        x = torch.dropout(x, dropout, train) if n + 1 < num_layers else x
        ends.append(last)
    x = x.transpose(0, 1) if batch_first else x
    return x, *(torch.cat(found) for found in zip(*ends, strict=True))


def cell(op: OpOverload, x: Any, states: Any, *weights: Any) -> Any:
    """Run a cell on x [batch, features] and states [batch, hidden]; weights keep their layout."""
    if _share_a_mesh((x, states)) and x.ndim == 2:
        shards = _shards(x, states, 0, 0)
        x = _aligned(x, shards)
        states = tree_map(lambda state: _aligned(state, shards), states)
    return op._op_dk(COMPOSITE_IMPLICIT, x, states, *weights)


def _share_a_mesh(given: Any) -> bool:
    specs = [getattr(each, "_spec", None) for each in tree_leaves(given)]
    return all(spec is not None and spec.mesh == specs[0].mesh for spec in specs)  # pyright: ignore


def _shards(x: Any, states: Any, batch: int, batch_of_states: int) -> list[Placement | None]:
    """Return the batch's sharding on each axis, as if of dim 0; None where it is not sharded."""
    dims = [(x, batch), *((state, batch_of_states) for state in tree_leaves(states))]
    return [
        next((shard_in_blocks(0, p.num_blocks) for p, d in of_axis if p.sharded_dim == d), None)
        for of_axis in zip(*[[(p, d) for p in t.placements] for t, d in dims], strict=True)
    ]


def _placed(tensor: Any, shards: Sequence[Placement | None], dim: int) -> Any:
    """Shard the tensor by `dim` as given, and replicate it on other axes."""
    wanted = tuple(
        Replicate() if shard is None else shard_in_blocks(dim, shard.num_blocks) for shard in shards
    )
    return tensor if tensor.placements == wanted else tensor.redistribute(placements=wanted)


def _aligned(tensor: Any, shards: Sequence[Placement | None]) -> Any:
    """Shard the tensor by its first dim where it was replicated and others are sharded."""
    now = zip(tensor.placements, shards, strict=True)
    wanted = tuple(p if shard is None or not p.is_replicate() else shard for p, shard in now)
    return tensor if tensor.placements == wanted else tensor.redistribute(placements=wanted)


def _one_more(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = 1
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def _whose_part(
    like: Any, local: torch.Tensor, shards: Sequence[Placement | None], dim: int, count: int
) -> Any:
    """Wrap a local result of batch size `count`, stored time first, as a DTensor."""
    first = dim == 0
    local = local.transpose(0, 1).contiguous() if first else local.contiguous()
    time, _, features = local.shape
    shape, stride = [time, count, features], [count * features, features, 1]
    if first:
        local, shape[:2], stride[:2] = local.transpose(0, 1), shape[1::-1], stride[1::-1]
    placements = [
        Replicate() if shard is None else shard_in_blocks(dim, shard.num_blocks) for shard in shards
    ]
    sizes = {"run_check": False, "shape": torch.Size(shape), "stride": tuple(stride)}
    return type(like).from_local(local, like._spec.mesh, placements, **sizes)
