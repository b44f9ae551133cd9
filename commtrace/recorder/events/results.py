"""Results of calls, followed to the operators that use them: all of a result, or one shard of it.

A result that is only rearranged, as by `torch.cat` of its chunks, is followed to the copy, and so
is one that a pointwise operator is given: a shard of its output needs that shard only. Memory
that another operator has written since holds no result any more, which the owner of these objects
(`DataTimes`) checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from commtrace.recorder.events.call import Call

UNKNOWN, ALL = -1, 0


def _extent(
    shape: Sequence[int], strides: Sequence[int], offset: Any, itemsize: int
) -> tuple[int, int]:
    """Return where in its storage a tensor begins and ends, in bytes."""
    steps = zip(shape, strides, strict=True)
    last = -1 if 0 in shape else sum([(each - 1) * step for each, step in steps])
    return offset * itemsize, (offset + last + 1) * itemsize


class AllUsed:
    """Follows a result of which operators have used all."""

    __slots__ = ()

    def part(self) -> int:
        """Return column `used_shard`."""
        return ALL


ALL_USED = AllUsed()


class Result:
    """The tensor that receives the result of a call, or the copy that it was rearranged to.

    It is made for each call, so that all that can be computed later is.

    Attributes:
        call: the call.
        mark: the last write into the tensor's storage, as `DataTimes.written` has it.
    """

    __slots__ = (
        "_itemsize", "_offset", "_part", "_shape", "_storage", "_strides", "call", "mark",
    )  # fmt: skip

    def __init__(self, call: Call, tensor: torch.Tensor) -> None:
        self.call = call
        self.mark: Call | int = call
        self._part = UNKNOWN
        self._storage: StorageWeakRef | None = None
        self._shape, self._strides = tensor.shape, tensor.stride()
        self._offset, self._itemsize = tensor.storage_offset(), tensor.itemsize

    def is_all(self, view: torch.Tensor) -> bool:
        """Return whether a view of the storage is the result itself, in the usual case."""
        return view.shape == self._shape and view.storage_offset() == self._offset

    def has(self, view: torch.Tensor) -> bool:
        """Return whether a view of the storage has an element of the result.

        A smaller tensor that was given the result's memory has a storage that ends before it.
        """
        begin, end = _extent(self._shape, self._strides, self._offset, self._itemsize)
        if view.untyped_storage().nbytes() < end:
            return False
        other = _extent(view.shape, view.stride(), view.storage_offset(), view.itemsize)
        return other[0] < end and other[1] > begin

    def moved(self, given: list[torch.Tensor], copy: Any) -> bool:
        """Return whether an operator has kept the places of all elements, and follow the copy then.

        Args:
            given: the views of the result that the operator was given.
            copy: what it has returned.
        """
        if self._part != UNKNOWN or type(copy) is not torch.Tensor:
            return False
        num = self._shape.numel()
        if copy.numel() != num or sum([each.numel() for each in given]) != num:
            return False
        self._shape, self._strides = copy.shape, copy.stride()
        self._offset = copy.storage_offset()
        return True

    def use(self, given: list[torch.Tensor]) -> bool:
        """Note that an operator uses these views; return whether only one shard is used so far."""
        dims = {self._shard_dim(each) for each in given}
        dim = dims.pop() if len(dims) == 1 else UNKNOWN
        if dim < 0 or self._part not in (UNKNOWN, 1 + dim):
            self._part, self._storage = ALL, None
        elif self._part == UNKNOWN:
            self._part, self._storage = 1 + dim, StorageWeakRef(given[0].untyped_storage())
        self.call.follow(self)
        return self._part != ALL

    def close(self) -> None:
        """Note that no operator will use it any more."""
        self._storage = None
        self.call.expect_no_uses()

    def part(self) -> int:
        """Return column `used_shard`: what operators have used, unless more may follow."""
        storage = self._storage
        return self._part if storage is None or storage.expired() else UNKNOWN

    def _shard_dim(self, view: torch.Tensor) -> int:
        """Return the dim along which a view is the rank's own shard of the result; -1 if none."""
        group = self.call.request.group
        num, rank, numel = len(group.ranks), group.group_rank, self._shape.numel()
        shape, start = view.shape, view.storage_offset() - self._offset
        if num < 2 or not 0 < view.numel() < numel:
            return UNKNOWN
        if len(shape) == len(self._shape) and view.stride() == self._strides:
            sizes = zip(shape, self._shape, strict=True)
            differing = [dim for dim, (own, every) in enumerate(sizes) if own != every]
            dim, size = differing[0], -(-self._shape[differing[0]] // num)
            own = max(0, min(size, self._shape[dim] - rank * size))
            is_own = shape[dim] == own and start == rank * size * self._strides[dim]
            return dim if len(differing) == 1 and is_own else UNKNOWN
        # Even chunks of the first dim, in another shape.
        is_flat = view.is_contiguous() and num * view.numel() == numel
        return 0 if is_flat and start == rank * view.numel() else UNKNOWN
