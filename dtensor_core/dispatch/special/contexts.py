"""Contexts that change what operators on DTensors do: replaced operators, and implicit replication.

A context holds on the thread that entered it, and in the backward that the thread runs. Used by the
dispatcher, the parallel loss and `experimental.implicit_replication`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dtensor_core.torch_internals.autograd import current_graph_task_id
from dtensor_core.torch_internals.dispatcher import OpOverload
from dtensor_core.tracing import outside_graphs

rewrites: dict[int, Callable[..., Any]] = {}
"""Functions that replace operators, by the operator's id; usually empty, for the hot path."""

_rewriting: list[tuple[int, dict[int, Callable[..., Any]]]] = []
_plain_is_replicated: list[int] = []
# The threads of these contexts; of `rewriting` with its functions.


@outside_graphs("contexts that change operators must enclose the call of the compiled function")
def _this_thread() -> int:
    return threading.get_ident()


@contextmanager
def rewriting(functions: Mapping[OpOverload, Callable[..., Any]]) -> Iterator[None]:
    """Replace operators on DTensors by functions while the body runs, and in its backward.

    A function receives the operator's arguments and may decline a call by returning NotImplemented.
    """
    mine = {id(op): function for op, function in functions.items()}
    entered = (_this_thread(), mine)
    _rewriting.append(entered)
    rewrites.update(mine)
    try:
        yield
    finally:
        # By identity: a context around this one, or on another thread, may have equal functions.
        del _rewriting[next(n for n, each in enumerate(_rewriting) if each is entered)]
        # Changed in place and never emptied meanwhile, since other threads look at it.
        remaining: dict[int, Callable[..., Any]] = {}
        for _, replaced in list(_rewriting):
            remaining |= replaced
        rewrites.update(remaining)
        for op_id in mine.keys() - remaining.keys():
            rewrites.pop(op_id, None)


@contextmanager
def implicit_replication() -> Iterator[None]:
    """Treat plain tensors that meet DTensors as equal on every rank while the body runs."""
    _plain_is_replicated.append(_this_thread())
    try:
        yield
    finally:
        _plain_is_replicated.remove(threading.get_ident())


def is_rewriting() -> bool:
    """True if the functions in `rewrites` replace operators on this thread."""
    return _holds([thread for thread, _ in _rewriting])


def is_replicating() -> bool:
    """True if plain tensors count as replicas on this thread."""
    return _holds(_plain_is_replicated)


def _holds(threads: list[int]) -> bool:
    """True on a listed thread, or on a thread of the autograd engine while any is listed."""
    if not threads:
        return False
    # A backward on an accelerator runs on the engine's threads, which entered nothing.
    return threading.get_ident() in threads or current_graph_task_id() >= 0
