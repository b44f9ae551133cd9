"""Tensors in what modules and operators return, and the numbers of the latest."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from commtrace.recorder.module_place import join
from commtrace.recorder.values.layouts import TensorLayout
from commtrace.torch_internals.tensors import FakeTensor

_NUM_LATEST = 16
_MAX_DEPTH = 8
_MAX_TENSORS = 1000
"""Bounds on the tensors that are found in an output or state."""


def has_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has data that can be read, of floating point or complex numbers."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and not isinstance(tensor, FakeTensor)
        and not is_lazy(tensor)
    )


def completed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the completed tensor behind a result that a collective of torch returns early."""
    wait = None if type(tensor) is torch.Tensor else getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()


def is_outdated(tensor: torch.Tensor) -> bool:
    """Return whether a distributed tensor copies a view whose base has been written since.

    Reading its local part is an error until an operator has fetched the written values.
    """
    try:
        getattr(tensor, "_local_tensor", None)
    except RuntimeError:
        return True
    return False


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has memory.

    Not if its storage was freed, as FSDP does, nor if it stands for other tensors: wrappers, and
    tensors in functions that `torch.func` transforms and in batched gradients.
    """
    try:
        return tensor.untyped_storage().data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


def tensors_in(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a structure of tuples, lists and mappings, with their places: `0.key`.

    The place of a single tensor is empty.
    """
    for number, found in enumerate(_tensors_in(value, "", 0)):
        if number >= _MAX_TENSORS:
            return
        yield found


def _tensors_in(value: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth >= _MAX_DEPTH:
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (tuple, list)):
        parts = enumerate(value)
    elif isinstance(value, dict):
        parts = value.items()
    for key, part in parts:
        yield from _tensors_in(part, join(name, str(key)), depth + 1)


Moment = tuple[int, ...]
"""Numbers of operators, collectives and waits before an observation."""
_KnownFacts = tuple["weakref.ref[torch.Tensor]", int, TensorLayout, Moment, torch.Tensor]
"""A tensor, its version, its layout, the moment of its observation, and its numbers."""


class LatestFacts:
    """Numbers of the tensors observed last, which modules pass on to each other.

    A version alone does not show whether a tensor has changed. Collectives write to tensors without
    counting that, and so do in-place operators on lists below a dispatch mode, and those that write
    to `.data`, or to a distributed tensor's local tensor. Hence numbers hold until anything runs,
    and are of use only while operators are counted.
    """

    def __init__(self) -> None:
        self._known: dict[int, _KnownFacts] = {}

    def of(self, tensor: torch.Tensor, layout: TensorLayout, moment: Moment) -> torch.Tensor | None:
        """Return the numbers of a tensor that has not changed since; None if they are unknown."""
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor or known[2] is not layout:
            return None
        return known[4] if known[1] == tensor._version and known[3] == moment else None

    def keep(
        self, tensor: torch.Tensor, layout: TensorLayout, moment: Moment, facts: torch.Tensor
    ) -> torch.Tensor:
        """Keep the numbers of a tensor, and return them."""
        if not tensor.is_inference():  # whose changes are not counted
            self._known.pop(id(tensor), None)
            self._known[id(tensor)] = weakref.ref(tensor), tensor._version, layout, moment, facts
            while len(self._known) > _NUM_LATEST:
                del self._known[next(iter(self._known))]
        return facts
