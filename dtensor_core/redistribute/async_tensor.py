"""Pending local tensors: the result of an asynchronous redistribution.

A pending tensor is an `AsyncCollectiveTensor`, so programs that check for that type recognise it.
The work left to do on the arrived data (slicing, joining, dividing) is deferred with it. The first
operator that uses it waits, as does `wait()`; a view that changes nothing does not wait. The
DTensor that owns it then holds the plain tensor. Made by `execute`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dtensor_core import collectives
from dtensor_core.torch_internals.groups import AsyncCollectiveTensor
from dtensor_core.torch_internals.tensors import make_wrapper

_aten = torch.ops.aten
# Autograd applies these to a tensor that passes through it; they need no data.
_PASSED_ON = (_aten.detach.default, _aten.alias.default)


class Arrival:
    """An issued collective and its deferred post-processing, shared by all its tensors."""

    __slots__ = ("_finish", "_issued", "_result")

    def __init__(
        self, issued: torch.Tensor, finish: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._issued: torch.Tensor | None = issued
        self._finish = finish
        self._result: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        """Return the local tensor, waiting for it if necessary."""
        if self._result is None:
            assert self._issued is not None
            self._result = self._finish(collectives.wait(self._issued))
            self._issued = None
        return self._result


class Pending(AsyncCollectiveTensor):
    """A tensor of known shape whose elements are on their way."""

    _arrival: Arrival
    _owner: weakref.ref[Any] | None

    __slots__ = ("_arrival", "_owner")

    @staticmethod
    def __new__(cls, arrival: Arrival, shape: Sequence[int], like: torch.Tensor) -> Pending:
        """Make a contiguous tensor of the result's shape and of the dtype and device of `like`."""
        made = make_wrapper(cls, torch.Size(shape), dtype=like.dtype, device=like.device)
        made._arrival, made._owner = arrival, None
        return made

    def owned_by(self, tensor: Any) -> None:
        """Let a DTensor hold the plain tensor once it has arrived."""
        # Weak, since the DTensor holds this tensor in turn.
        self._owner = weakref.ref(tensor)

    def passed_on(self) -> Pending:
        """Return another tensor of the same arrival."""
        return Pending(self._arrival, self.shape, self)

    def trigger_wait(self) -> torch.Tensor:
        """Wait, and return the plain tensor."""
        result = self._arrival.result()
        owner = self._owner and self._owner()
        # The DTensor may have been given other data before this arrived.
        if owner is not None and owner._local_tensor is self:
            owner._local_tensor = result
        return result

    wait = trigger_wait

    @property
    def elem(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The plain tensor; reading it waits."""
        return self.trigger_wait()

    @property
    def completed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the tensor has been waited for."""
        return self._arrival._result is not None

    def _get_acs_underlying_tensor(self) -> torch.Tensor:
        return self.trigger_wait()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # pyright: ignore
        return f"AsyncCollectiveTensor({self.trigger_wait()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.trigger_wait().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.trigger_wait().clone()

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        first = args[0] if args else None
        if type(first) is Pending and _changes_nothing(func, args):
            return first.passed_on()
        plain = [_arrived(arg) for arg in args]
        return func(*plain, **{name: _arrived(arg) for name, arg in (kwargs or {}).items()})


def waited(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor, waiting if it is still arriving."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def _arrived(arg: Any) -> Any:
    """Replace pending tensors in an argument of an operator by plain tensors."""
    if type(arg) is Pending:
        return arg.trigger_wait()
    if type(arg) in (list, tuple):
        return type(arg)(_arrived(each) for each in arg)
    return arg


def _changes_nothing(func: Any, args: Sequence[Any]) -> bool:
    if func in _PASSED_ON:
        return True
    return func is _aten.view.default and tuple(args[1]) == tuple(args[0].shape)
