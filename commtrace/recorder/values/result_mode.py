"""Dispatch mode that observes the results of operators of the thread on which it was entered.

It is entered inside of the mode that records operators, and sees an operator on distributed tensors
once, with its global results. A view of a plain tensor has the numbers of its base and is passed.
"""

from __future__ import annotations

from typing import Any

from commtrace.recorder.thread_state import CURRENT
from commtrace.recorder.values.found_tensors import tensors_in
from commtrace.recorder.values.observer import ValueObserver
from commtrace.torch_internals.dispatcher import OpOverload, TorchDispatchMode

_NOT_COMPUTING = frozenset({"profiler", "c10d", "_c10d_functional", "c10d_functional"})
_UNINITIALIZED = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
    )
)
"""Operators whose results are whatever was in memory."""
_HIDDEN_VIEW = "aten::_unsafe_view"
"""View whose schema does not say so. Releases of torch differ in where they call it."""


class ResultMode(TorchDispatchMode):
    """Observes the results of operators."""

    supports_higher_order_operators = True

    def __init__(self, observer: ValueObserver) -> None:
        super().__init__()
        self._observer = observer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled functions stay compiled, and their operators go unseen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Parameters and states are observed when the optimizer's step is over.
        if CURRENT.state.optimizer.depth or not isinstance(func, OpOverload):
            return result
        operator = func._schema.name
        if func.namespace not in _NOT_COMPUTING and operator not in _UNINITIALIZED:
            is_view = func.is_view or operator == _HIDDEN_VIEW
            for name, tensor in tensors_in(result):
                if not is_view or hasattr(tensor, "placements"):
                    self._observer.result(func, name, tensor)
        return result
