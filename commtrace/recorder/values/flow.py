"""Flow of data: which observed tensors another one was computed from.

At level "op", each operator passes on, by storage, the observed tensors that its arguments were
computed from, also through tensors that are not observed, such as indices and what collectives
fill. Otherwise the graph of autograd leads from the output of a module to those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

_MOST_SOURCES = 8
_MOST_STORAGES = 1 << 16
_MOST_NODES = 1 << 12
"""Nodes of autograd between an output and those that it was computed from."""
_MOST_CALLS = 4
"""Calls of a model without a backward pass whose graphs are kept."""
SourceNumbers = tuple[int, ...]


class TensorSources:
    """Observed tensors of one rank, by number, and where their values go."""

    def __init__(self) -> None:
        self._num_observed = 0
        self._of_storage: dict[int, SourceNumbers] = {}
        self._of_node: dict[Any, int] = {}
        self._called: Counter[int] = Counter()

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
            key = _storage_of(tensor)
            sources = self._of_storage.get(key, ())
            self._keep(key, (number,))
        if tensor.grad_fn is not None:
            # Operators of compiled functions go unseen.
            sources = sources or self._before(tensor.grad_fn)
            self._of_node[tensor.grad_fn] = number
        return tuple([number - each for each in sources])

    def sources_of(self, tensors: Iterable[torch.Tensor]) -> SourceNumbers:
        """Return the tensors that these were computed from, the latest ones of many."""
        found = {each for own in tensors for each in self._of_storage.get(_storage_of(own), ())}
        return tuple(sorted(found)[-_MOST_SOURCES:])

    def passed_on(self, tensors: Iterable[torch.Tensor], sources: SourceNumbers) -> None:
        """Note that tensors were computed from others that were observed."""
        for each in tensors:
            self._keep(_storage_of(each), sources)

    def model_begins(self, model: object) -> None:
        """Note an outermost module that is called, maybe without a backward pass afterwards."""
        self._called[id(model)] += 1
        if self._called[id(model)] > _MOST_CALLS:
            self.forget_nodes()

    def forget_nodes(self) -> None:
        """Let go of autograd's graph, whose nodes hold what the backward pass needs."""
        self._of_node.clear()
        self._called.clear()

    def _keep(self, key: int, sources: SourceNumbers) -> None:
        if key:
            self._of_storage.pop(key, None)
            self._of_storage[key] = sources
            if len(self._of_storage) > _MOST_STORAGES:
                del self._of_storage[next(iter(self._of_storage))]

    def _before(self, node: Any) -> SourceNumbers:
        """Return the observed tensors before a node of autograd's graph."""
        found: set[int] = set()
        seen, waiting = {node}, [node]
        while waiting and len(seen) < _MOST_NODES:
            each = waiting.pop()
            known = self._of_node.get(each)
            if known is not None:
                found.add(known)
                continue
            for following, _ in each.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return tuple(sorted(found)[-_MOST_SOURCES:])


def _storage_of(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor; 0 if it has none."""
    try:
        local: Any = getattr(tensor, "_local_tensor", tensor)
        return local.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0
