"""Marks of last writes into storages, by address: an operator, or a call whose result it holds.

    storage ────────── number, end and origin of the operator, or the call
      └ view inside ── the same, until the storage is written to or given out again

The *origin* is the last call whose result the contents come from, also through other operators. So
that an operator finds the marks of its arguments by their own addresses, which is cheaper than that
of their storages, the addresses of views that begin inside a storage have marks, too. Tensors
without memory, such as fake tensors, are known by their storage objects. Addresses keep no memory
alive: memory that is given out to something unseen, such as an array of numpy, keeps its mark.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from commtrace.recorder.events.call import Call
from commtrace.torch_internals.tensors import FakeTensor, address_of, awaited_tensor

_TENSOR = torch.Tensor
_MAX_MARKS = 1 << 16
_NO_ADDRESS = -1

OperatorMark = tuple[int, int, int]
"""An operator's number, when it ended, and the number of the call that its data comes from."""
Mark = OperatorMark | Call

NOTHING: Any = (inf, -1, -1)
"""Mark of a storage that nothing known has written to; infinitely many operators ago."""


class LastWrites:
    """Marks of last writes, by address.

    Attributes:
        of: the marks. The same object as long as it is in use.
        views: addresses inside of a storage that have its mark, by the address of the storage.
    """

    __slots__ = ("of", "views")

    def __init__(self) -> None:
        self.of: dict[int, Mark] = {}
        self.views: dict[int, set[int]] = {}

    def set(self, address: int, mark: Mark) -> None:
        """Note a write into a storage."""
        if address == _NO_ADDRESS:
            return
        if address in self.views:
            self.forget_views(address)
        self.of[address] = mark

    def forget_views(self, address: int) -> None:
        """Drop the marks inside of a storage, which has been written to or given out again."""
        for inside in self.views.pop(address):
            self.of.pop(inside, None)

    def look_up(self, tensor: torch.Tensor) -> Mark:
        """Return the mark of a tensor's storage, and note it for the tensor's own address."""
        tensor = tensor if type(tensor) is _TENSOR else awaited_tensor(tensor)
        base = address_of(tensor)
        mark: Any = self.of.get(base, NOTHING)
        if base > 0:
            address = base if isinstance(tensor, FakeTensor) else tensor.data_ptr()
            self._put(address, base, mark)
        return mark

    def viewed(self, viewed: Any, result: Any) -> None:
        """Note views of a tensor that may begin elsewhere in its storage."""
        if isinstance(viewed, FakeTensor):
            return
        begin = viewed.data_ptr()
        for each in result if isinstance(result, (list, tuple)) else (result,):
            address = each.data_ptr()
            if address != begin and address:
                base = address_of(each)
                mark: Any = self.of.get(base, NOTHING)
                self._put(address, base, mark)

    def _put(self, address: int, base: int, mark: Mark) -> None:
        if not address:  # of an empty tensor
            return
        self.of[address] = mark
        if address != base:
            self.views.setdefault(base, set()).add(address)

    def make_room(self) -> None:
        """Forget all marks if there are too many."""
        if len(self.of) > _MAX_MARKS:
            self.forget()

    def forget(self) -> None:
        """Drop all marks."""
        self.of.clear()
        self.views.clear()
