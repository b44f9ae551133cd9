"""Tied parameters: a parameter with several names stays a single parameter when distributed.

Styles and partition functions replace the parameter of one name by a DTensor, unaware of other
names. Each replacement is therefore recorded by the parameter it replaces, for as long as that is
referenced. The parameter's other names get the same DTensor, in this call or in a later call for
another part of the model. Called by `distribute_module` and `parallelize_module`.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from dtensor_core.errors import PlacementError
from dtensor_core.tensor import DTensor


class TiedError(PlacementError):
    """Names of a tied parameter ask for different layouts."""


@dataclass(frozen=True, slots=True, eq=False)
class _ParameterName:
    """A name of a parameter: an attribute of a submodule."""

    owner: nn.Module
    key: str

    def __str__(self) -> str:
        for root in _state.roots:
            for path, module in root.named_modules():
                if module is self.owner:
                    return f"{path}.{self.key}" if path else self.key
        return f"{self.key} of a {type(self.owner).__name__}"


class _State(threading.local):
    """Parameters that this thread has replaced, and the modules in progress, outermost first."""

    def __init__(self) -> None:
        self.replaced = WeakTensorKeyDictionary()
        self.roots: list[nn.Module] = []


# Per thread, since ranks may be threads of one process.
_state = _State()


@contextmanager
def keeping_ties(module: nn.Module) -> Iterator[None]:
    """Give all names of a parameter the DTensor that the body assigns to any of them.

    Raises:
        TiedError: The body makes DTensors of different layouts from the same parameter.
    """
    named = Counter(id(parameter) for _, parameter in _parameters(module))
    # Held weakly unless tied, so that a full parameter with one name can be freed once replaced.
    before = [
        (place, weakref.ref(parameter), parameter if _is_tied(parameter, named) else None)
        for place, parameter in _parameters(module)
    ]
    _state.roots.append(module)
    try:
        yield
        for place, reference, _ in before:
            old, new = reference(), place.owner._parameters.get(place.key)
            if old is not None and new is not old and isinstance(new, DTensor):
                _tie(place, old, new)
        for place, parameter in _parameters(module):
            place.owner._parameters[place.key] = _current(parameter)
    finally:
        _state.roots.pop()


def _is_tied(parameter: torch.Tensor, named: Mapping[int, int]) -> bool:
    """True if a parameter is known to have, or to have had, another name."""
    return named[id(parameter)] > 1 or parameter in _state.replaced


def _parameters(module: nn.Module) -> Iterator[tuple[_ParameterName, Any]]:
    """Yield every name in a module that has a parameter."""
    for owner in module.modules():
        for key, parameter in list(owner._parameters.items()):
            if parameter is not None:
                yield _ParameterName(owner, key), parameter


def _tie(place: _ParameterName, old: torch.Tensor, new: Any) -> None:
    """Record the replacement of a parameter under a name, or reuse the recorded replacement."""
    if old not in _state.replaced:
        if isinstance(old, DTensor) and _is_same(old, new):
            place.owner._parameters[place.key] = old  # pyright: ignore[reportArgumentType]
        else:
            _state.replaced[old] = new, weakref.ref(place.owner), place.key
        return
    first, owner, key = _state.replaced[old]
    if first is new or first.shape != new.shape or first.dtype is not new.dtype:
        return
    if (first.device_mesh, first.placements) != (new.device_mesh, new.placements):
        module = owner()
        other = str(_ParameterName(module, key)) if module is not None else "another name"
        raise _refusal(str(place), new._spec.text, other, first._spec.text)
    place.owner._parameters[place.key] = first


def _refusal(place: str, wanted: str, other: str, layout: str) -> TiedError:
    return TiedError(
        f"{place} as {wanted}",
        found=f"{other}, the same parameter, as {layout}",
        why="a tied parameter is a single tensor with a single layout",
        hint="give both names the same placements, or untie them before: "
        "module.weight = nn.Parameter(module.weight.detach().clone())",
    )


def refuse_another_layout(parameter: DTensor, wanted: str) -> None:
    """Raise TiedError if a parameter to be laid out again has several names.

    The request is attributed to the innermost module being distributed.
    """
    if not _state.roots:
        return
    names = [str(place) for place, each in _parameters(_state.roots[0]) if each is parameter]
    mine = [str(place) for place, each in _parameters(_state.roots[-1]) if each is parameter]
    others = [name for name in names if name not in mine] or mine[1:]
    if mine and others:
        raise _refusal(mine[0], wanted, others[0], parameter._spec.text)


def _is_same(one: DTensor, other: DTensor) -> bool:
    """True if two DTensors are the same tensor: same layout and same memory."""
    same_memory = one._local_tensor.data_ptr() == other._local_tensor.data_ptr()
    return one._spec is other._spec and same_memory


def _current(parameter: Any) -> Any:
    """Return the replacement of a parameter, or the parameter itself."""
    while parameter in _state.replaced:
        parameter = _state.replaced[parameter][0]
    return parameter


def name_of(tensor: torch.Tensor) -> str | None:
    """Return the name of a parameter in the current modules, also if given only its data."""
    for root in _state.roots:
        for place, parameter in _parameters(root):
            if parameter is tensor or _is_data_of(tensor, parameter):
                return str(place)
    return None


def _is_data_of(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if a plain tensor is the data of a plain parameter."""
    if any(isinstance(each, DTensor) or each.is_meta for each in (tensor, parameter)):
        return False
    storages = [each.untyped_storage().data_ptr() for each in (tensor, parameter)]
    return storages[0] == storages[1] and tensor.shape == parameter.shape
