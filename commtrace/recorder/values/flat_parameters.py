"""Original parameters in the flat parameters of FullyShardedDataParallel.

A flat parameter has the elements of a module's parameters in succession. Each rank of the sharding
group holds a chunk of it, and so a range of each parameter's elements, which may be empty. Chunks
are the rank's own views of the flat parameter (`use_orig_params`), or parts of it.

The backward pass computes the gradient of the whole flat parameter. When it is reduced, the rank
keeps its chunk.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from commtrace.recorder.values.fsdp_classes import fsdp_classes
from commtrace.recorder.values.owners import Owner
from commtrace.torch_internals.modules import modules_of

Original = tuple[str, tuple[int, ...], int]
"""Name and shape of an original parameter, and its first element in the flat parameter."""
SHARDED = "S(flat)"
"""Placement of a tensor if each rank holds a range of its elements, in row-major order."""


@dataclass(frozen=True, slots=True)
class FlatPart:
    """The part of an original parameter that this rank holds.

    Attributes:
        owner: name and module of the original parameter.
        shape: its shape.
        begin: the first element that this rank holds, in row-major order.
        size: number of the elements that this rank holds.
        offset: place of the first element in the tensor that has them.
        mesh: axes and ranks that hold the parameter.
        placements: placement on each axis.
    """

    owner: Owner
    shape: tuple[int, ...]
    begin: int
    size: int
    offset: int
    mesh: str
    placements: str

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of this part in a tensor shaped like the parameter's holder."""
        return tensor.reshape(-1)[self.offset : self.offset + self.size]


class FlatParameters:
    """Parts of original parameters, by the tensor that an optimizer has."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, tuple[FlatPart, ...]]] = {}

    def learn(self, root: nn.Module, owner_of: Callable[[str], Owner]) -> None:
        """Find the flat parameters of a model; `owner_of` names owners by their path in it."""
        for path, state, handle in _handles(root):
            parts = _parts(owner_of, path, state, handle)
            flat = handle.flat_param
            if flat._params is None:
                is_sharded = handle.uses_sharded_strategy
                size = flat._sharded_size.numel() if is_sharded else flat.numel()
                self._keep(flat, size, parts)
                continue
            for parameter, part in zip(flat._params, parts, strict=True):
                self._keep(parameter, part.size, (replace(part, offset=0),))

    def _keep(self, parameter: Any, size: int, parts: tuple[FlatPart, ...]) -> None:
        self._known[id(parameter)] = weakref.ref(parameter), size, parts

    def of(self, parameter: torch.Tensor) -> tuple[FlatPart, ...]:
        """Return the parts of original parameters in a tensor; none if it is not flat."""
        known = self._known.get(id(parameter))
        # While the parameters of a module are gathered, each rank has all elements.
        if known is None or known[0]() is not parameter or known[1] != parameter.numel():
            return ()
        return known[2]

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient of a parameter, empty for an empty part."""
        if parameter.grad is None and not parameter.numel() and self.of(parameter):
            return parameter.detach()
        return parameter.grad


def whole_gradients(
    root: nn.Module, name_of: Callable[[str], str]
) -> Iterator[tuple[torch.Tensor, Sequence[Original]]]:
    """Yield the flat parameters of a model, with what their unsharded gradients consist of.

    Args:
        root: the model.
        name_of: names a parameter by its path in the model.
    """
    for path, _, handle in _handles(root):
        flat = handle.flat_param
        names = [name_of(f"{path}.{name}" if path else name) for name in flat._fqns]
        yield flat, tuple(zip(names, map(tuple, flat._shapes), _offsets(flat), strict=True))


def _handles(root: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    for path, module in modules_of(root):
        if isinstance(module, fsdp_classes("FullyShardedDataParallel")):
            handle = getattr(module, "_handle", None)
            if handle is not None:
                yield path, module, handle


def _offsets(flat: Any) -> list[int]:
    """Return the first element of each original parameter; there is padding between them."""
    begins = accumulate(flat._numels_with_padding, initial=0)
    return [
        begin
        for begin, is_padding in zip(begins, flat._is_padding_mask, strict=False)
        if not is_padding
    ]


def _parts(
    owner_of: Callable[[str], Owner], path: str, state: Any, handle: Any
) -> tuple[FlatPart, ...]:
    flat = handle.flat_param
    is_sharded = handle.uses_sharded_strategy
    mesh, placements = _mesh(state, is_sharded)
    sizes = [math.prod(shape) for shape in flat._shapes]
    ranges = [(0, size, offset) for size, offset in zip(sizes, _offsets(flat), strict=True)]
    if is_sharded:
        ranges = [
            (each.intra_param_start_idx or 0, each.numel_in_shard or 0, each.offset_in_shard or 0)
            for each in flat._shard_param_infos
        ]
    return tuple(
        FlatPart(
            owner_of(f"{path}.{name}" if path else name),
            tuple(shape), begin, size, offset, mesh, placements,
        )
        for name, shape, (begin, size, offset) in zip(
            flat._fqns, flat._shapes, ranges, strict=True
        )
    )  # fmt: skip


def _mesh(state: Any, is_sharded: bool) -> tuple[str, str]:
    """Return axes and ranks of the mesh, and the placements; replicas are on its first axis."""
    own = dist.get_process_group_ranks(state.process_group)
    between = getattr(state, "_inter_node_pg", None)
    here = dist.get_rank()
    replicas = [here] if between is None else dist.get_process_group_ranks(between)
    ranks = [rank + other - here for other in replicas for rank in own]
    names = f"replicas={len(replicas)},shards={len(own)}"
    return f"{names}:{','.join(map(str, ranks))}", f"R,{SHARDED if is_sharded else 'R'}"
