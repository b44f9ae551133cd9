"""Casts between 16 bits and float32 right before a call sends data, or of the result it received.

Such data has the precision of 16 bits, so that float32 carries nothing that 16 bits would not. Only
operators that cast, rearrange or unpack are noted here; the others pay nothing. What another
operator computes is not followed: it is float32 by choice. So are gradients that a hook reduces as
they are accumulated, whose sums lose precision in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.marks import Mark
from commtrace.torch_internals.autograd import AccumulateGrad, current_node
from commtrace.torch_internals.tensors import address_of

_HALF = frozenset({torch.bfloat16, torch.float16})
_MAX_ORIGINS = 4096

_Origin = Call | torch.dtype
"""The call that the data is a result of, or the type that it was cast from."""


class Casts:
    """Origins of the contents of storages that were only cast or moved.

    Args:
        written: last writes into storages, of `DataTimes`.
    """

    __slots__ = ("_origins", "_written")

    def __init__(self, written: Mapping[int, Mark]) -> None:
        self._written = written
        self._origins: dict[int, tuple[Mark, _Origin]] = {}

    def _origin_of(self, address: int) -> _Origin | None:
        last = self._written.get(address)
        if isinstance(last, Call):
            return last
        mark, origin = self._origins.get(address, (None, None))
        return origin if mark is not None and mark is last else None

    def ran(
        self, given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], mark: Mark
    ) -> None:
        """Note an operator that moves elements, whose writes have been noted as `mark`.

        Args:
            given: the tensors that it has read.
            results: the tensors that it has written to.
            mark: its mark.
        """
        if len(given) == len(results) == 1 and given[0].dtype is results[0].dtype:
            # For most of them.
            address = address_of(given[0])
            if address not in self._origins and type(self._written.get(address)) is tuple:
                return
        origins = {self._cast(each, results) for each in given}
        origin = origins.pop() if len(origins) == 1 else None
        if origin is None:
            return
        if len(self._origins) >= _MAX_ORIGINS:
            self._origins.clear()
        for each in results:
            self._origins[address_of(each)] = mark, origin

    def _cast(self, given: torch.Tensor, results: Sequence[torch.Tensor]) -> _Origin | None:
        """Return the origin of what an operator makes of a tensor, and note a cast of a result."""
        source, targets = given.dtype, {each.dtype for each in results}
        if targets == {source}:
            return self._origin_of(address_of(given))
        if source in _HALF:
            return source if targets == {torch.float32} else None
        if source == torch.float32 and targets <= _HALF:
            origin = self._origin_of(address_of(given))
            if isinstance(origin, Call) and not _is_accumulating():
                origin.cast_to(*targets)
        return None

    def sent(self, call: Call, addresses: Iterable[int]) -> None:
        """Note a call that sends the contents of these addresses."""
        if call.request.dtype == torch.float32:
            origins = {self._origin_of(address) for address in addresses}
            origin = origins.pop() if len(origins) == 1 else None
            if isinstance(origin, torch.dtype) and not _is_accumulating():
                call.cast_to(origin)

    def forget(self) -> None:
        """Drop all origins."""
        self._origins.clear()


def _is_accumulating() -> bool:
    """Return whether a hook runs on the gradient of a parameter."""
    return isinstance(current_node(), AccumulateGrad)
