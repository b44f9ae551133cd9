"""Results of calls, followed to the operators that use them: all of a result, or a shard of it.

A result that is only rearranged, as by `torch.cat` of its chunks, is followed to the copy as well,
and so is a result given to a pointwise operator: a shard of its output needs that shard only. Such
an output may depend on the results of several calls. Memory that another operator has written since
no longer holds a result, which the owner of these objects (`DataTimes`) checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.marks import Mark

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
    """Follows a result that operators have fully used."""

    __slots__ = ()

    def part(self) -> int:
        """Return column `used_shard`."""
        return ALL


ALL_USED = AllUsed()


class Received:
    """A tensor that a call has received, and the part of it that operators have used so far.

    Attributes:
        call: the call.
        places: the tensors that hold it.
    """

    __slots__ = ("_part", "call", "places")

    def __init__(self, call: Call, place: Result) -> None:
        self.call = call
        self.places = [place]
        self._part = UNKNOWN

    def use(self, part: int) -> bool:
        """Note that operators use a part; return whether only one shard is used so far."""
        self._part = part if self._part in (UNKNOWN, part) else ALL
        self.call.follow(self)
        return self._part != ALL

    @property
    def is_all_used(self) -> bool:
        """True if operators have used all of it."""
        return self._part == ALL

    def part(self) -> int:
        """Return column `used_shard`: what operators have used, unless more may follow."""
        if self._part != ALL and any([each.may_be_used() for each in self.places]):
            return UNKNOWN
        return self._part


class Result:
    """A tensor that holds the result of a call: the receiving tensor, or a copy.

    It is made for each call, so everything that can be computed later is deferred.

    Attributes:
        call: the call whose result it is, or one of several.
        mark: the last write into the tensor's storage, as `DataTimes.written` has it.
        address: the address of that storage, once there is a copy.
    """

    __slots__ = (
        "_itemsize", "_offset", "_received", "_shape", "_storage", "_strides", "address", "call",
        "mark",
    )  # fmt: skip

    def __init__(self, call: Call, tensor: torch.Tensor) -> None:
        self.call = call
        self.mark: Mark = call
        self._received: tuple[Received, ...] = ()
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

    def copied(self, views: list[torch.Tensor], tensor: torch.Tensor) -> Result | None:
        """Return the copy if an operator has copied all of the result from these views."""
        num = self._shape.numel()
        if tensor.numel() != num:
            return None
        if len(views) > 1 or views[0].numel() != num:
            sizes = [each.numel() for each in views]
            if sum(sizes) != num and sizes != [num] * len(sizes):
                return None
        received = self._received or self._follow(views[0])
        copy = Result(self.call, tensor)
        copy._track(tensor)
        copy._received = received
        for each in received:
            each.places.append(copy)
            if len(each.places) > _MANY_PLACES:
                each.places = [place for place in each.places if place.may_be_used()]
        return copy

    def join(self, other: Result) -> None:
        """Note that it also holds what another copy, the same tensor, holds."""
        new = [each for each in other._received if each not in self._received]
        self._received += tuple(new)
        for each in new:
            each.places.append(self)

    def _follow(self, view: torch.Tensor) -> tuple[Received, ...]:
        """Begin to follow what a call has received, in the storage of `view`."""
        self._track(view)
        self._received = (Received(self.call, self),)
        return self._received

    def _track(self, view: torch.Tensor) -> None:
        storage = view.untyped_storage()
        self._storage, self.address = StorageWeakRef(storage), storage.data_ptr()

    def known_copies(self) -> list[Result]:
        """Return the tensors with the same contents whose further uses change nothing."""
        return [
            place
            for received in self._received
            if received.is_all_used
            for place in received.places
            if all([each.is_all_used for each in place._received])
        ]

    def use_all(self) -> bool:
        """Note that an operator uses all of it; return whether there may be copies of it."""
        for each in self._received:
            each.use(ALL)
        self.call.follow(ALL_USED)
        return self._received != ()

    def use(self, views: list[torch.Tensor]) -> bool:
        """Note that an operator uses these views; return whether only one shard is used so far."""
        dims = {self._shard_dim(each) for each in views}
        dim = dims.pop() if len(dims) == 1 else UNKNOWN
        part = ALL if dim < 0 else 1 + dim
        received = self._received or self._follow(views[0])
        return any([each.use(part) for each in received])

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
