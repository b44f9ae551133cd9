"""Content numbers of sent tensors: equal numbers mean the same tensors without a write in between.

A tensor is identified by its storage and its position in it. A change is detected by torch's
version counter and by the recorded collectives that write into the storage, which the counter
ignores. Storages are held weakly: this extends no memory's lifetime, and the address of a held
storage is not reused. If too many are known, older storages are forgotten and get new numbers when
they return. So two equal contents may have different numbers, but no number stands for two
contents. A storage that a collective overwrites in the same call is not kept at all.

Writes through `.data` have a version counter of their own. FullyShardedDataParallel and many
hand-written optimizers use them. Hence an optimizer's step counts as a write into all of its
parameters, and for all-gathers from the CPU a few bytes in the middle are compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import string_at
from itertools import islice
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.signature import RESULT, Signature

_MAX_STORAGES = 4096
_MAX_CONTENTS = 4096
"""Bound on the contents of a storage, or of several tensors."""
_NOT_KNOWN = -1
_SAMPLE_BYTES = 32


class _Storage:
    """Numbers and samples of the current contents of a storage, by version and position."""

    __slots__ = ("numbers", "reference", "samples")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.reference = StorageWeakRef(storage)
        self.numbers: dict[tuple[object, ...], int] = {}
        self.samples: dict[tuple[object, ...], bytes] = {}

    def changed(self) -> None:
        """Note that the storage has been written to."""
        if self.numbers:
            self.numbers, self.samples = {}, {}


class TensorIdentity:
    """Contents sent so far, with numbers from `first` on; callable from any thread."""

    def __init__(self, first: int = 0) -> None:
        self._storages: dict[int, _Storage] = {}
        self._of_several: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()
        self.next_number = first
        """The lowest number that no contents have."""

    def of(
        self, tensors: Sequence[torch.Tensor], *, are_written: bool = False, are_read: bool = False
    ) -> int:
        """Return the number of the tensors' current contents; -1 if unknown.

        Args:
            tensors: the tensors.
            are_written: the contents change afterwards.
            are_read: compare a few bytes with the last time's.
        """
        if not tensors:
            return _NOT_KNOWN
        try:
            with self._lock:
                if len(tensors) == 1:
                    return self._of_one(tensors[0], are_written, are_read)
                parts = tuple([self._of_one(each, are_written, are_read) for each in tensors])
                return self._number_in(self._of_several, parts)
        except (RuntimeError, NotImplementedError):  # inference tensors have no version counter
            return _NOT_KNOWN

    def _of_one(self, tensor: torch.Tensor, is_written: bool, is_read: bool) -> int:
        version, storage = tensor._version, tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            if is_written:  # nothing of it is sent again
                return self._new_number()
            _drop_older_half(self._storages, _MAX_STORAGES)
            known = self._storages[storage._cdata] = _Storage(storage)
        place = version, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()
        if is_read:
            sample = _sample(tensor)
            if known.samples.setdefault(place, sample) != sample:  # no counter has noticed
                known.changed()
                known.samples[place] = sample
        number = self._number_in(known.numbers, place)
        if is_written:  # the call sends the contents from before its own write
            known.changed()
        return number

    def _number_in(self, numbers: dict[Any, int], key: Any) -> int:
        """Return the number of a key; a new key gets a new number."""
        number = numbers.get(key)
        if number is None:
            _drop_older_half(numbers, _MAX_CONTENTS)
            number = numbers[key] = self._new_number()
        return number

    def _new_number(self) -> int:
        number = self.next_number
        self.next_number = number + 1
        return number

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that a call writes into these tensors."""
        with self._lock:
            for tensor in tensors:
                try:
                    known = self._storages.get(tensor.untyped_storage()._cdata)
                except (RuntimeError, NotImplementedError):
                    continue
                if known is not None:
                    known.changed()

    def step(self, optimizer: Any) -> None:
        """Note that an optimizer has written into its parameters, perhaps through an alias."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.write([getattr(each, "_local_tensor", each) for each in parameters])


def _drop_older_half(known: dict[Any, Any], most: int) -> None:
    """Make room in a dictionary with `most` entries; entry by entry would take longer."""
    if len(known) >= most:
        for key in list(islice(known, (most + 1) // 2)):
            del known[key]


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
