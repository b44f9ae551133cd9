"""Numbers for what calls send: equal numbers, the same tensors with nothing written in between.

A tensor is known by its storage and its place in it, a change by torch's version counter and by
the collectives that were seen to write into the storage, which do not count there. Storages are
held weakly: no memory lives longer for it, and as long as one is held its address is not given to
another. Where too many are known, the oldest are forgotten, and are new when they come again; so a
number may be missing that two calls have in common, but none is given to two contents.

What is written through `.data` has a version counter of its own. FullyShardedDataParallel and many
hand-written optimizers do so; hence an optimizer's step counts as a write into all of its
parameters, and of what is gathered from the CPU a few bytes in the middle are compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import string_at
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from commtrace.recorder.calls import Call, tensors_of
from commtrace.recorder.signatures import RESULT

_MAX_STORAGES = 4096
_MAX_CONTENTS = 16_384
_NOT_KNOWN = -1
_SAMPLE_BYTES = 32


class _Known:
    """A storage: its number, how many collectives wrote into it, and what keeps its address."""

    __slots__ = ("num_written", "number", "reference")

    def __init__(self, number: int, storage: torch.UntypedStorage) -> None:
        self.number = number
        self.num_written = 0
        self.reference = StorageWeakRef(storage)


class TensorIdentity:
    """The contents that were sent so far; any thread may ask."""

    def __init__(self) -> None:
        self._storages: dict[int, _Known] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._samples: dict[int, bytes] = {}
        self._num_storages = 0
        self._num_contents = 0
        self._lock = threading.Lock()

    def of(
        self, tensors: Sequence[torch.Tensor], *, are_written: bool = False, are_read: bool = False
    ) -> int:
        """The number of what these tensors hold now; -1 where it cannot be told.

        Afterwards they hold something else, where they `are_written`. Where they `are_read`, some
        bytes of them are compared with those of the last time.
        """
        if not tensors:
            return _NOT_KNOWN
        try:
            with self._lock:
                number = self._number(tensors, are_written)
            if are_read and self._differs(number, tensors):
                self.write(tensors)
                return self.of(tensors, are_written=are_written, are_read=True)
        except (RuntimeError, NotImplementedError):  # inference tensors count no versions
            return _NOT_KNOWN
        return number

    def _number(self, tensors: Sequence[torch.Tensor], are_written: bool) -> int:
        if len(tensors) == 1:
            key = self._parts(tensors[0], are_written)
        else:
            key = tuple([self._parts(tensor, are_written) for tensor in tensors])
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= _MAX_CONTENTS:
                self._samples.pop(self._numbers.pop(next(iter(self._numbers))), None)
            number = self._numbers[key] = self._num_contents
            self._num_contents += 1
        return number

    def _differs(self, number: int, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether tensors were changed by what no counter has seen."""
        sample = b"".join([_sample(tensor) for tensor in tensors])
        return self._samples.setdefault(number, sample) != sample

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """A call writes into these tensors."""
        with self._lock:
            for tensor in tensors:
                try:
                    known = self._storages.get(tensor.untyped_storage()._cdata)
                except (RuntimeError, NotImplementedError):
                    continue
                if known is not None:
                    known.num_written += 1

    def step(self, optimizer: Any) -> None:
        """An optimizer has written into its parameters, perhaps by another name for them."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.write([getattr(each, "_local_tensor", each) for each in parameters])

    def _parts(self, tensor: torch.Tensor, is_written: bool) -> tuple[object, ...]:
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._storages.get(address)
        if known is None:
            if len(self._storages) >= _MAX_STORAGES:
                self._storages.pop(next(iter(self._storages)))
            known = self._storages[address] = _Known(self._num_storages, storage)
            self._num_storages += 1
        num_written = known.num_written
        known.num_written += is_written
        return (
            known.number, num_written, tensor._version, tensor.dtype,
            tensor.storage_offset(), tensor.shape, tensor.stride(),
        )  # fmt: skip


def _sample(tensor: torch.Tensor) -> bytes:
    """A few bytes in the middle of a tensor, if they can be read without asking a device."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or not tensor.is_contiguous():
        return b""
    storage, size = tensor.untyped_storage(), tensor.itemsize
    start = (int(tensor.storage_offset()) + tensor.numel() // 2) * size
    length = min(_SAMPLE_BYTES, int(storage.nbytes()) - start)
    address = storage.data_ptr()
    return string_at(address + start, length) if address and length > 0 else b""


def identify(call: Call, args: Sequence[Any], contents: TensorIdentity) -> None:
    """Number what a call sends, and take note of what it writes into."""
    signature = call.request.signature
    sent, received = signature.sent, signature.received
    if sent is not None:
        call.sent_id = contents.of(
            tensors_of(args[sent]),
            are_written=sent == received,
            are_read=signature.kind == "all_gather",
        )
    if received is not None and received not in (sent, RESULT):
        contents.write(tensors_of(args[received]))
