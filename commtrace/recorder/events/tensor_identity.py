"""Content numbers of sent tensors: equal numbers mean the same tensors without a write in between.

A tensor is identified by its storage and its position in it. A change is detected by torch's
version counter and by the recorded collectives that write into the storage, which the counter
ignores. Storages are held weakly: this extends no memory's lifetime, and the address of a held
storage is not reused. If too many are known, the oldest are evicted and get a new number when they
return. So two equal contents may have different numbers, but no number stands for two contents.

Writes through `.data` have a version counter of their own. FullyShardedDataParallel and many
hand-written optimizers use them. Hence an optimizer's step counts as a write into all of its
parameters, and for all-gathers from the CPU a few bytes in the middle are compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import string_at
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.signature import RESULT, Signature

_MAX_STORAGES = 4096
_MAX_CONTENTS = 16_384
_NOT_KNOWN = -1
_SAMPLE_BYTES = 32


class _Known:
    """A storage: its number, the number of collectives that wrote into it, and a weak reference."""

    __slots__ = ("num_written", "number", "reference")

    def __init__(self, number: int, storage: torch.UntypedStorage) -> None:
        self.number = number
        self.num_written = 0
        self.reference = StorageWeakRef(storage)


class TensorIdentity:
    """Contents sent so far, with numbers from `first` on; callable from any thread."""

    def __init__(self, first: int = 0) -> None:
        self._storages: dict[int, _Known] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._samples: dict[int, bytes] = {}
        self._num_storages = 0
        self._num_identities = first
        self._lock = threading.Lock()

    @property
    def next_number(self) -> int:
        """The lowest number that no contents have."""
        return self._num_identities

    def of(
        self, tensors: Sequence[torch.Tensor], *, are_written: bool = False, are_read: bool = False
    ) -> int:
        """Return the number of the tensors' current contents; -1 if unknown.

        Args:
            tensors: the tensors.
            are_written: the contents change afterwards.
            are_read: compare a few bytes with those of the last time.
        """
        if not tensors:
            return _NOT_KNOWN
        try:
            with self._lock:
                number = self._number(tensors, are_written)
            if are_read and self._differs(number, tensors):
                # The tensors then have a new number without a sample, so this recurs only once.
                self.write(tensors)
                return self.of(tensors, are_written=are_written, are_read=True)
        except (RuntimeError, NotImplementedError):  # inference tensors have no version counter
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
            number = self._numbers[key] = self._num_identities
            self._num_identities += 1
        return number

    def _differs(self, number: int, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the tensors were changed without any counter noticing."""
        sample = b"".join([_sample(tensor) for tensor in tensors])
        return self._samples.setdefault(number, sample) != sample

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that a call writes into these tensors."""
        with self._lock:
            for tensor in tensors:
                try:
                    known = self._storages.get(tensor.untyped_storage()._cdata)
                except (RuntimeError, NotImplementedError):
                    continue
                if known is not None:
                    known.num_written += 1

    def step(self, optimizer: Any) -> None:
        """Note that an optimizer has written into its parameters, perhaps through an alias."""
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
        # After the number was read: the call sends the contents from before its own write.
        known.num_written += is_written
        return (
            known.number, num_written, tensor._version, tensor.dtype,
            tensor.storage_offset(), tensor.shape, tensor.stride(),
        )  # fmt: skip


def _sample(tensor: torch.Tensor) -> bytes:
    """Return a few bytes from the middle of a tensor, if readable without querying a device."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or not tensor.is_contiguous():
        return b""
    storage, size = tensor.untyped_storage(), tensor.itemsize
    start = (int(tensor.storage_offset()) + tensor.numel() // 2) * size
    length = min(_SAMPLE_BYTES, int(storage.nbytes()) - start)
    address = storage.data_ptr()
    # A storage resized to nothing has no address, and reading there would crash.
    return string_at(address + start, length) if address and length > 0 else b""


def sent_id(signature: Signature, args: Sequence[Any], identity: TensorIdentity) -> int:
    """Return the number of the contents that a call sends, and note the tensors it writes into."""
    sent, received = signature.sent, signature.received
    number = _NOT_KNOWN
    if sent is not None:
        number = identity.of(
            tensors_of(args[sent]),
            are_written=sent == received,
            are_read=signature.kind == "all_gather",
        )
    if received is not None and received not in (sent, RESULT):
        identity.write(tensors_of(args[received]))
    return number
