"""Contents that a broadcast has sent, followed through copies to other storages.

    broadcast(flat) ── copy_(a, flat[:4]), copy_(b, flat[4:]) ── cat([a, b]) ── broadcast

Libraries flatten what they broadcast, and copy it back. The last write before the second broadcast
is theirs, though it has the contents of the first. An operator that only moves elements is noted if
they stay in order and contiguous; other operators pay nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.marks import Mark
from commtrace.torch_internals.tensors import address_of

_MAX_COPIES = 4096


class BroadcastContents:
    """Storages with the contents of a broadcast, and which of its elements come first in each.

    Args:
        written: last writes into storages, of `DataTimes`.

    Attributes:
        contents: by storage, its last write then, the broadcast, and its first element; while it is
            empty, there is nothing to follow.
    """

    __slots__ = ("_written", "contents")

    def __init__(self, written: Mapping[int, Mark]) -> None:
        self._written = written
        self.contents: dict[int, tuple[Mark, Call, int]] = {}

    def sent(self, call: Call, tensors: Sequence[torch.Tensor]) -> int:
        """Note a broadcast that is about to be made.

        Returns:
            When an earlier broadcast had written all that is sent now; -1 if none had.
        """
        if len(tensors) != 1 or not tensors[0].is_contiguous():
            return -1
        (tensor,) = tensors
        found = self._place_of(tensor)
        if len(self.contents) >= _MAX_COPIES:
            self.contents.clear()
        self.contents[address_of(tensor)] = call, call, -tensor.storage_offset()
        if found is None:
            return -1
        earlier, first = found
        is_all = not first and earlier.request.payload == call.request.payload
        return earlier.complete_ns if is_all else -1

    def moved(
        self, given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], mark: Mark
    ) -> None:
        """Note an operator that moves elements, whose writes have been noted as `mark`."""
        if not given or len(results) != 1 or (found := self._place_of(given[0])) is None:
            return
        call, begin = found
        end = begin
        for each in given:
            if self._place_of(each) != (call, end) or each.dtype is not results[0].dtype:
                return
            end += each.numel()
        (result,) = results
        is_all = result.untyped_storage().nbytes() == (end - begin) * result.itemsize
        if is_all and result.is_contiguous() and (len(given) == 1 or result.dim() == 1):
            self.contents[address_of(result)] = mark, call, begin

    def _place_of(self, tensor: torch.Tensor) -> tuple[Call, int] | None:
        """Return the broadcast of a tensor's contents, and which of its elements comes first."""
        address = address_of(tensor)
        mark, call, first = self.contents.get(address, (None, None, 0))
        if call is None or self._written.get(address) is not mark or not tensor.is_contiguous():
            return None
        return call, first + int(tensor.storage_offset())

    def forget(self) -> None:
        """Drop all contents."""
        self.contents.clear()


def is_onto_itself(args: Sequence[Any]) -> bool:
    """Return whether an operator that overwrites its first argument copies it from itself."""
    target, source = args[:2] if len(args) > 1 else (None, None)
    return (
        isinstance(target, torch.Tensor)
        and isinstance(source, torch.Tensor)
        and target.dtype is source.dtype
        and (address := address_of(target)) >= 0
        and address == address_of(source)
        and target.storage_offset() == source.storage_offset()
        and (target.shape, target.stride()) == (source.shape, source.stride())
    )
