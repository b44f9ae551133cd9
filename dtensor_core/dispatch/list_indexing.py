"""`x[[0, 2]]` and `x[0, [1, 2]] = y` on DTensors: what lists say is the same on every rank.

torch makes plain tensors of lists, of which nobody can tell then that all ranks have the same ones.
So they are made here, as replicated DTensors; every other subscript goes on as it is. Installed by
`tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta


def install(cls: type[torch.Tensor]) -> None:
    """Give the class its subscripts."""
    getitem, setitem = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def get(self: Any, index: Any) -> Any:
        return getitem(self, _without_lists(self, index))

    def put(self: Any, index: Any, value: Any) -> None:
        setitem(self, _without_lists(self, index), value)

    methods: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("__getitem__", get), ("__setitem__", put),
    )  # fmt: skip
    for name, method in methods:
        setattr(cls, name, method)


def _without_lists(tensor: Any, index: Any) -> Any:
    """The subscript with a replicated DTensor for each list of numbers."""
    kind = type(index)
    if kind is list:  # torch takes it for a tuple if there is anything but numbers in it
        return _whole(tensor, index) if {int, bool}.issuperset(map(type, index)) else index
    if kind is tuple and list in map(type, index):
        return tuple(_whole(tensor, each) if type(each) is list else each for each in index)
    return index


def _whole(tensor: Any, numbers: list[Any]) -> Any:
    if not all(type(each) in (int, bool) for each in tree_leaves(numbers)):
        return numbers
    local = torch.tensor(
        numbers, dtype=None if numbers else torch.int64, device=tensor._local_tensor.device
    )
    mesh = tensor._spec.mesh
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    return type(tensor)(local, Spec(mesh, (Replicate(),) * mesh.ndim, meta))
