"""Enumeration of the layouts of a call's arguments, for operator tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dtensor_core.api import distribute_tensor
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Placement, Replicate, Shard
from dtensor_core.torch_internals.tensors import is_functional
from dtensor_core.torch_internals.trees import tree_flatten, tree_unflatten


class DTensorConverter:
    """Iterates over `(args, kwargs)` with the tensors as DTensors, once for each layout.

    A tensor is replicated, or sharded along a dim that the mesh divides evenly. Bools are only
    replicated, as c10d does not communicate them.

    Attributes:
        hit: The number of tensors converted to DTensors.
        miss: The number of tensors that can't be converted; these are passed unchanged.
    """

    def __init__(
        self, mesh: DeviceMesh, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        self.hit = 0
        self.miss = 0
        self.mesh = mesh
        self.args = args
        self.kwargs = kwargs
        self._leaves, self._structure = tree_flatten((args, dict(kwargs)))
        choices = [
            self.gen_sharding_choices_for_arg(leaf)
            for leaf in self._leaves
            if isinstance(leaf, torch.Tensor)
        ]
        self.sharding_combs: Iterator[Sequence[Placement]] = iter(itertools.product(*choices))

    def __iter__(self) -> DTensorConverter:
        return self

    def __next__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placements = iter(next(self.sharding_combs))
        converted = [
            self.to_dist_tensor(leaf, self.mesh, [next(placements)])
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in self._leaves
        ]
        return tree_unflatten(converted, self._structure)

    def successful(self) -> bool:
        """True if at least one tensor was converted so far, and none failed to convert."""
        return self.hit > 0 and self.miss == 0

    def is_supported_tensor(self, t: torch.Tensor) -> bool:
        """True if `t` can become a DTensor: dense, strided, with data of its own."""
        return (
            t.layout is torch.strided
            and not t.is_quantized
            and not t.is_nested
            and not t.is_neg()
            and not t.is_conj()
            and not is_functional(t)
            and t.device.type not in ("lazy", "meta")
        )

    def gen_sharding_choices_for_arg(self, arg: torch.Tensor) -> Sequence[Placement]:
        """Return the placements to try for a tensor."""
        if arg.dtype == torch.bool:
            return [Replicate()]
        ranks = self.mesh.size()
        even = [dim for dim, size in enumerate(arg.shape) if size > 1 and size % ranks == 0]
        return [Replicate(), *(Shard(dim) for dim in even)]

    def to_dist_tensor(
        self, t: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
    ) -> torch.Tensor:
        """Return `t` as a DTensor (a parameter stays one), or `t` itself if that is impossible.

        Args:
            t: The tensor.
            mesh: The mesh of the DTensor.
            placements: One placement per mesh axis; scalars are replicated.
        """
        plain = type(t) in (torch.Tensor, nn.Parameter)
        if not plain or not self.is_supported_tensor(t):
            self.miss += 1
            return t
        self.hit += 1
        layout = list(placements) if t.ndim else [Replicate()] * mesh.ndim
        distributed = distribute_tensor(t, mesh, layout)
        if type(t) is nn.Parameter:
            return nn.Parameter(distributed, requires_grad=distributed.requires_grad)
        return distributed
