"""Dispatch mode that observes the results of operators of the thread on which it was entered.

It is entered inside of the mode that records operators, and sees an operator on distributed tensors
once, with its global results. A view of a plain tensor has the numbers of its base and is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from commtrace.recorder.thread_state import CURRENT
from commtrace.recorder.values.flow import TensorSources
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
_NEW = frozenset(
    {"zero_", "fill_", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
)
"""Operators whose results do not depend on the numbers of their arguments."""
_UNUSED = {"nll_loss_backward": 1, "nll_loss2d_backward": 1}
"""Places of arguments whose shape alone an operator reads."""
_HIDDEN_VIEW = "aten::_unsafe_view"
"""View whose schema does not say so. Releases of torch differ in where they call it."""

_ELEMENTWISE = frozenset({f"c10d::{name}" for name in ("allreduce_", "broadcast_", "reduce_")})
"""Collectives that change each element of a tensor in place, whatever the others are."""


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
        if not isinstance(func, OpOverload):
            return func(*args, **(kwargs or {}))
        flow, operator = self._observer.flow(), func._schema.name
        given = [tensor for _, tensor in tensors_in((args, kwargs))]
        sources = () if _is_new(operator) else flow.sources_of(_used(operator, args, given))
        result = func(*args, **(kwargs or {}))
        results = [*tensors_in(result)]
        is_in_place = operator in _ELEMENTWISE  # each part of a bucket keeps its sources
        if not func.is_view and not is_in_place:
            flow.passed_on([tensor for _, tensor in results], sources)
        if func._schema.is_mutable and func.namespace in _NOT_COMPUTING and not is_in_place:
            flow.passed_on(given, sources)  # a collective fills the tensors that it is given
        elif written := _written_by_place(func, args, result):
            _pass_on_by_place(flow, args, written)
        if CURRENT.state.optimizer.depth:  # what it leaves is observed when its step is over
            return result
        if func.namespace not in _NOT_COMPUTING and operator not in _UNINITIALIZED:
            is_view = func.is_view or operator == _HIDDEN_VIEW
            for name, tensor in results:
                if not is_view or hasattr(tensor, "placements"):
                    self._observer.result(func, name, tensor)
        return result


def _written_by_place(func: OpOverload, args: Sequence[Any], result: Any) -> Sequence[Any]:
    """Return the tensors that an operator on lists computes each from those at its place."""
    if not args or not isinstance(args[0], (list, tuple)):
        return ()
    if not func._schema.returns:
        return args[0]
    is_by_place = func._schema.name.startswith("aten::_foreach_")
    return result if is_by_place and len(result) == len(args[0]) else ()


def _pass_on_by_place(flow: TensorSources, args: Sequence[Any], written: Sequence[Any]) -> None:
    for place, tensor in enumerate(written):
        others = [each[place] if isinstance(each, (list, tuple)) else each for each in args]
        used = [each for each in others if isinstance(each, torch.Tensor)]
        flow.passed_on([tensor], flow.sources_of(used))


def _is_new(operator: str) -> bool:
    name = operator.rpartition("::")[2]
    return name in _NEW or name.startswith(("new_", "_foreach_zero_"))


def _used(operator: str, args: Sequence[Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors among the arguments whose numbers the operator reads."""
    place = _UNUSED.get(operator.rpartition("::")[2])
    return given if place is None else [each for each in given if each is not args[place]]
