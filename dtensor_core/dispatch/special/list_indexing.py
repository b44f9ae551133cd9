"""Indexing of DTensors by lists and ranges, as in `x[[0, 2]]` and `x[0, [1, 2]] = y`.

torch turns them into plain tensors, which are not known to be equal on all ranks. Here they become
replicated DTensors; other subscripts are passed on unchanged. Installed by `tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.trees import tree_leaves

# Subscripts without a list, the most frequent ones.
_SIMPLE = frozenset((int, slice, type(None), type(Ellipsis), bool))


def install(cls: type[torch.Tensor]) -> None:
    """Install the indexing methods on the class."""
    getitem, setitem = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def get(self: Any, index: Any) -> Any:
        return getitem(self, index if type(index) in _SIMPLE else _without_lists(self, index))

    def put(self: Any, index: Any, value: Any) -> None:
        setitem(self, _without_lists(self, index), value)

    methods: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("__getitem__", get), ("__setitem__", put),
    )  # fmt: skip
    for name, method in methods:
        setattr(cls, name, method)


def _without_lists(tensor: Any, index: Any) -> Any:
    """Replace each list of numbers in a subscript by a replicated DTensor."""
    kind = type(index)
    if kind is range or (kind is list and {int, bool}.issuperset(map(type, index))):
        return _full(tensor, list(index))
    if kind in (tuple, list) and not {list, range}.isdisjoint(map(type, index)):
        # torch treats a list of lists as a tuple, with a warning; it stays a list, to warn too.
        return kind(
            _full(tensor, list(each)) if type(each) in (list, range) else each for each in index
        )
    return index


def _full(tensor: Any, numbers: list[Any]) -> Any:
    if not all(type(each) in (int, bool) for each in tree_leaves(numbers)):
        return numbers
    # The dtype of an empty list would be a floating-point one, which does not index.
    local = torch.tensor(
        numbers, dtype=None if numbers else torch.int64, device=tensor._local_tensor.device
    )
    mesh = tensor._spec.mesh
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    return type(tensor)(local, Spec(mesh, (Replicate(),) * mesh.ndim, meta))
