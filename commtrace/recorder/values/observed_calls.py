"""Calls of modules, with what goes into and comes out of them observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.compiler import is_compiling

from commtrace.recorder.module_place import ModuleCall, Place
from commtrace.recorder.thread_state import CURRENT


class CallObserver(Protocol):
    """Observes modules that are called."""

    @property
    def is_on(self) -> bool:
        """True while anything is observed."""
        ...

    def place_of(self, outer: ModuleCall | None, module: nn.Module) -> Place | None:
        """Return the place of a module as called inside `outer`; None before its first call."""
        ...

    def module_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Observe an outermost module that is about to be called."""
        ...

    def module_ends(self, module: nn.Module, call: ModuleCall, result: Any) -> None:
        """Observe what a module returns."""
        ...


def observed_calls(observer: CallObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `nn.Module.__call__` that observes what goes into and comes out of modules.

    It calls the tracker's, which knows where the module is called.
    """

    def observed_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # A wrapper that others have wrapped stays in place when the recording ends.
        if is_compiling() or not observer.is_on:
            return original(self, *args, **kwargs)
        modules = CURRENT.modules
        outer = modules.innermost
        if outer is None:
            observer.module_begins(self, args, kwargs)
        place = observer.place_of(outer, self)
        number = place.num_calls if place is not None else 0
        result = original(self, *args, **kwargs)
        place = place or observer.place_of(outer, self)
        if place is not None:
            observer.module_ends(self, (place, number), result)
        return result

    return observed_call
