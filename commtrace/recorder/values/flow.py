"""Flow of data: the observed tensors that another was computed from.

At level "op", each operator passes on, by storage, the observed tensors that its arguments were
computed from, also through tensors that are not observed, such as indices and the results of
collectives. Each part of a storage that tensors share, such as a bucket of gradients, has sources
of its own. Otherwise the graph of autograd leads from the output of a module to earlier outputs.
Tensors and nodes of the graph are known by number, so that nothing is kept alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import Any, TypeVar

import torch

_MOST_SOURCES = 8
_MOST_KNOWN = 1 << 16
_MOST_NODES = 1 << 12
"""Autograd nodes between an output and earlier outputs."""
_MOST_PARTS = 256
"""Parts of a storage, such as the gradients in a bucket, that have sources of their own."""
SourceNumbers = tuple[int, ...]
StoragePart = tuple[float, float, SourceNumbers]
"""The first byte of a part of a storage, the byte behind it, and what it was computed from."""
K = TypeVar("K")
V = TypeVar("V")


class TensorSources:
    """Observed tensors of a rank, by number, and where their values go."""

    def __init__(self) -> None:
        self._num_observed = 0
        self._of_storage: dict[int, tuple[StoragePart, ...]] = {}
        self._of_node: dict[tuple[int, int], int] = {}

    def observed(self, tensor: torch.Tensor, *, by_storage: bool) -> SourceNumbers:
        """Note a tensor that is observed, and return how many tensors ago its sources were.

        Args:
            tensor: the tensor.
            by_storage: operators pass on sources by storage; else autograd's graph has them.
        """
        number = self._num_observed
        self._num_observed += 1
        sources: SourceNumbers = ()
        if by_storage:
            sources = self.sources_of((tensor,))
            self._keep(tensor, (number,))
        if tensor.grad_fn is not None:
            # Operators of compiled functions go unseen.
            sources = sources or self._before(tensor.grad_fn)
            _put(self._of_node, _number_of(tensor.grad_fn), number)
        return tuple([number - each for each in sources])

    def sources_of(self, tensors: Iterable[torch.Tensor]) -> SourceNumbers:
        """Return the observed tensors behind some tensors, only the latest if there are many."""
        found: set[int] = set()
        for each in tensors:
            storage, _, local = _storage_of(each)
            if parts := self._of_storage.get(storage):
                begin, end = _bytes_of(local)
                found.update(*(own for first, last, own in parts if first < end and begin < last))
        return tuple(sorted(found)[-_MOST_SOURCES:])

    def passed_on(self, tensors: Iterable[torch.Tensor], sources: SourceNumbers) -> None:
        """Note that tensors were computed from others that were observed."""
        for each in tensors:
            self._keep(each, sources)

    def _keep(self, tensor: torch.Tensor, sources: SourceNumbers) -> None:
        storage, size, local = _storage_of(tensor)
        if not storage:
            return
        begin, end = _bytes_of(local)
        others: tuple[StoragePart, ...] = ()
        # Memory that is allocated anew may have the identity of what was freed.
        if end - begin < size:
            known = self._of_storage.get(storage, ())
            others = tuple([each for each in known if each[0] < begin or each[1] > end])
        if len(others) >= _MOST_PARTS:
            others = others[1:]
        _put(self._of_storage, storage, (*others, (begin, end, sources)))

    def _before(self, node: Any) -> SourceNumbers:
        """Return the observed tensors before a node of autograd's graph."""
        found: set[int] = set()
        seen, waiting = {node}, [node]
        while waiting and len(seen) < _MOST_NODES:
            each = waiting.pop()
            known = self._of_node.get(_number_of(each))
            if known is not None:
                found.add(known)
                continue
            for following, _ in each.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return tuple(sorted(found)[-_MOST_SOURCES:])


def _put(known: dict[K, V], key: K, value: V) -> None:
    """Put an entry last, and drop the first of too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _MOST_KNOWN:
        del known[next(iter(known))]


def _number_of(node: Any) -> tuple[int, int]:
    """Return what identifies a node: each thread numbers the nodes of its forward pass."""
    return get_ident(), node._sequence_nr()


def _storage_of(tensor: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """Return what identifies the memory of a tensor, its bytes, and the tensor in it; 0 if none."""
    try:
        local: Any = getattr(tensor, "_local_tensor", tensor)
        storage = local.untyped_storage()
        return storage._cdata, storage.nbytes(), local
    except RuntimeError:  # it may not be read
        return 0, 0, tensor


def _bytes_of(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the first byte of a tensor's part of its storage, and the byte behind it."""
    size = tensor.element_size()
    begin = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return begin, begin + tensor.numel() * size
    last = sum(
        (length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + (int(last) + 1) * size if tensor.numel() else begin
