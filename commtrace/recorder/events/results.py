"""Results of calls, followed to the operators that use them: all of a result, or one shard of it.

A result that is only rearranged, as by `torch.cat` of its chunks, is followed to the copy as well,
and so is one that a pointwise operator is given: a shard of its output needs that shard only. Such
an output may depend on the results of several calls. Memory
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
_MANY_PLACES = 8


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


class Received:
    """What a call has received in one tensor, and which part of it operators have used so far."""

    __slots__ = ("_part", "call", "places")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.places: list[Result] = []
        self._part = UNKNOWN

    def add_place(self, place: Result) -> None:
        """Follow one more tensor that holds it."""
        if len(self.places) > _MANY_PLACES:
            self.places = [each for each in self.places if each.may_be_used()]
        self.places.append(place)

    def use(self, part: int) -> bool:
        """Note that operators use a part; return whether only one shard is used so far."""
        self._part = part if self._part in (UNKNOWN, part) else ALL
        self.call.follow(self)
        return self._part != ALL

    def part(self) -> int:
        """Return column `used_shard`: what operators have used, unless more may follow."""
        if self._part != ALL and any([each.may_be_used() for each in self.places]):
            return UNKNOWN
        return self._part


class Result:
    """A tensor that holds the result of a call: the one that received it, or a copy.

    It is made for each call, so that all that can be computed later is.

    Attributes:
        call: the call that it is a result of, the first if there are several.
        mark: the last write into the tensor's storage, as `DataTimes.written` has it.
    """

    __slots__ = (
        "_itemsize", "_offset", "_received", "_shape", "_storage", "_strides", "call", "mark",
    )  # fmt: skip

    def __init__(
        self, call: Call, tensor: torch.Tensor, received: tuple[Received, ...] = ()
    ) -> None:
        self.call = call
        self.mark: Call | int = call
        self._received = received
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

    def received(self, view: torch.Tensor) -> tuple[Received, ...]:
        """Return what the tensor holds, of which `view` is a part, and follow its storage."""
        if self._storage is None:
            self._storage = StorageWeakRef(view.untyped_storage())
            self._received = self._received or (Received(self.call),)
            for each in self._received:
                each.add_place(self)
        return self._received

    def is_kept_by(self, views: list[torch.Tensor], copy: Any) -> bool:
        """Return whether an operator that was given these views has kept the place of all of it."""
        num, sizes = self._shape.numel(), [each.numel() for each in views]
        return copy.numel() == num and (sum(sizes) == num or sizes == [num] * len(sizes))

    def use_all(self) -> None:
        """Note that an operator uses all of it."""
        for each in self._received:
            each.use(ALL)
        self.call.follow(ALL_USED)

    def use(self, views: list[torch.Tensor]) -> bool:
        """Note that an operator uses these views; return whether only one shard is used so far."""
        dims = {self._shard_dim(each) for each in views}
        dim = dims.pop() if len(dims) == 1 else UNKNOWN
        part = ALL if dim < 0 else 1 + dim
        return any([each.use(part) for each in self.received(views[0])])

    def may_be_used(self) -> bool:
        """Return whether the tensor is still there."""
        return self._storage is not None and not self._storage.expired()

    def close(self) -> None:
        """Note that no operator will use it any more."""
        self._storage = None
        if not self._received:
            self.call.expect_no_uses()

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
