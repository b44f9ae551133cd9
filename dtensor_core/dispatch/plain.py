"""Which plain tensors that meet DTensors are the same on every rank, provably.

One number spread over a shape, what autograd makes of sizes alone, and arguments that torch makes
inside of an operator are; `dispatch` takes those as replicated and refuses the others, whose layout
nobody knows.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

# Operators to which torch passes indices or samples that it made of sizes and the common seed,
# and `copy_`: what is copied into a DTensor is taken to be whole, as in a state dict.
_TAKING_WHOLE = frozenset(
    {
        aten.copy_.default,
        aten._unsafe_index.Tensor,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
        aten.fractional_max_pool2d.default,
        aten.fractional_max_pool3d.default,
    }
)
# Nodes of the backward pass whose formulas make zeros, ones or ranges of the saved sizes.
_MAKERS = (
    "Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes Unbind Cumprod Cummax Cummin Prod "
    "DiagonalScatter SelectScatter SliceScatter IndexPut Put Trace Mvlgamma AsStrided Diagonal "
    "FractionalMaxPool2D FractionalMaxPool3D EmbeddingBag"
)
_MAKING_CONSTANTS = frozenset(f"{name}Backward{n}" for name in _MAKERS.split() for n in (0, 1))


def is_whole(op: OpOverload, tensor: torch.Tensor) -> bool:
    """True if a plain argument of an operator is the same tensor on every rank."""
    if tensor.numel() <= 1 or op in _TAKING_WHOLE or _is_one_number(tensor):
        return True
    if op.namespace == "prims":  # in formulas of forward derivatives, where a tangent is zero
        return True
    node = torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
    return node is not None and node.name() in _MAKING_CONSTANTS


def _is_one_number(tensor: torch.Tensor) -> bool:
    return all(
        step == 0 or size == 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
