"""Handler that runs before C++ terminates the process because of an uncaught exception.

This is how gloo reports that ranks disagree on a size, and how NCCL's watchdog ends a hanging rank,
so the last calls matter most. The C++ runtime calls our handler on the throwing thread; the handler
then calls the previous one, which aborts.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

_Handler = ctypes.CFUNCTYPE(None)
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"

_handlers: list[Callable[[], None]] = []
_before: Any = None


def add_terminate_handler(write: Callable[[], None]) -> None:
    """Call `write` if C++ terminates the process, until it is removed; a no-op if unsupported."""
    global _before
    if not _handlers and _set_terminate is not None:
        _before = _set_terminate(_ours)
    _handlers.append(write)


def remove_terminate_handler(write: Callable[[], None]) -> None:
    """Stop calling `write` at termination."""
    _handlers.remove(write)
    # `_before` stays known: another thread may be on its way to `_terminating`.
    if not _handlers and _before is not None:
        _set_terminate(_before)


def _terminating() -> None:
    for write in list(_handlers):
        # The process is about to end: each handler gets its turn, whatever the others do.
        with contextlib.suppress(Exception):
            write()
    # A handler must not return; C++ aborts if it does.
    if _before is not None:
        _Handler(_before)()


def _setter() -> Any:
    """Return `std::set_terminate` of the C++ runtime that torch links to; None if unavailable."""
    try:
        setter = ctypes.CDLL("libstdc++.so.6")[_SET_TERMINATE]
    except (OSError, AttributeError):
        return None
    setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
    return setter


_set_terminate = _setter()
# `_kept` holds the callback, which ctypes would free although C++ still refers to it.
_ours = ctypes.cast(_kept := _Handler(_terminating), ctypes.c_void_p)
