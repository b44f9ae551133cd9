"""Plain tensors among DTensors: those that are provably equal on every rank, and the others.

A single number expanded to a shape, tensors that autograd makes from sizes alone, and arguments
that torch makes inside of an operator are equal; `dispatch` treats them as replicated. At a level
of dual numbers all are, since torch's formulas make such tensors there. The layout of others is
unknown, and `refuse_mixed` names them.
"""

from __future__ import annotations

from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, flattened
from dtensor_core.dispatch.special.foreach import any_element_mixes, is_list_operator
from dtensor_core.errors import MixedTensorError
from dtensor_core.torch_internals.autograd import (
    current_node,
    has_dual_level,
    innermost,
    is_batched,
    python_node,
)
from dtensor_core.torch_internals.dispatcher import OpOverload

aten = torch.ops.aten

# Operators to which torch passes indices or samples made from sizes and the common seed. Also
# `copy_`: a tensor copied into a DTensor counts as a full tensor, as in a state dict.
_ACCEPTING_FULL = frozenset(
    {
        aten.copy_.default,
        aten._unsafe_index.Tensor,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
        aten.fractional_max_pool2d.default,
        aten.fractional_max_pool3d.default,
    }
)


def is_replicated_plain(op: OpOverload, tensor: torch.Tensor) -> bool:
    """True if a plain argument of an operator is the same tensor on every rank."""
    # A plain tensor of one element counts as replicated, as it does for torch's DTensor.
    if tensor.numel() <= 1 or op in _ACCEPTING_FULL or _is_one_number(tensor):
        return True
    node = current_node()
    if node is not None:
        # torch's formulas make tensors from sizes alone; a user's gradients are checked before.
        return not isinstance(node, python_node)
    # So do those of forward mode, and its zero tangents are plain. They can't be told from the
    # user's, except for the tangents that are given: torch compares their sizes first.
    return has_dual_level() and op is not aten.is_same_size.default


def _is_one_number(tensor: torch.Tensor) -> bool:
    return all(
        step == 0 or size == 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def refuse_mixed(op: OpOverload, args: Args, kwargs: Kwargs, cls: type[Any]) -> None:
    """Raise MixedTensorError if DTensors (of class `cls`) meet a plain tensor of unknown layout."""
    tensors = [value for value in flattened(args, kwargs) if isinstance(value, torch.Tensor)]
    if all(isinstance(each, cls) for each in tensors):
        return
    if is_list_operator(op) and not any_element_mixes(args, kwargs, cls):
        return
    schema = op._schema.arguments
    named = [*((schema[place].name, arg) for place, arg in enumerate(args)), *kwargs.items()]
    each = [
        (f"{name}[{index}]" if isinstance(arg, (list, tuple)) else name, tensor)
        for name, arg in named
        for index, tensor in enumerate(arg if isinstance(arg, (list, tuple)) else [arg])
        if isinstance(tensor, torch.Tensor)
    ]
    plain = [
        f"{name}, a torch.Tensor of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
        for name, tensor in each
        if not isinstance(tensor, cls) and not is_replicated_plain(op, tensor)
    ]
    if plain:
        known: Any = {name: t for name, t in each if isinstance(t, cls)}
        raise MixedTensorError(
            # Programs match on this text, which is torch's.
            f"{op}: got mixed torch.Tensor and DTensor, need to convert all "
            "torch.Tensor to DTensor before calling distributed operators!",
            found="; ".join(
                [*plain, *(f"{n}, a DTensor {t._spec.text}" for n, t in known.items())]
            ),
            why="the layout of a plain tensor on the mesh is unknown",
            hint=f"if {plain[0].partition(',')[0]} is the same on every rank, "
            "DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim), or run under "
            "dtensor_core.experimental.implicit_replication(); "
            "distribute_tensor(tensor, mesh, placements) to split it",
        )


def refuse_plain_derivative(tensor: Any, derivative: Any) -> None:
    """Raise MixedTensorError if a DTensor has a plain gradient or tangent, or vice versa."""
    if isinstance(tensor, torch.Tensor) and isinstance(derivative, torch.Tensor):
        pair = [innermost(tensor), innermost(derivative)]
        known = [type(each) for each in pair if hasattr(each, "_spec")]
        if len(known) == 1 and not any(map(is_batched, pair)):
            refuse_mixed(aten.is_same_size.default, pair, {}, known[0])
