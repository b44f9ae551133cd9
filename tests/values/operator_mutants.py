"""Faults of the operators of dtensor_core: a rank's local result is wrong at a call of a program.

A right run lists its operators on distributed tensors, each with its module and phase. A mutant is
a call, by its number among its operator's calls on each rank, and a kind of fault. It is expected
to be found at that very operator.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from commtrace.analyze import Frames
from commtrace.analyze.values import Fault
from commtrace.recorder import bridge, listening
from commtrace.recorder.interception import operators
from dtensor_core.dispatch.redistribute_arguments import redistribute_arguments

Run = Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]
"""Runs the local function on arguments that a function has changed."""
Kind = Callable[[Run], Any]


def _changed(result: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change the floating-point numbers of a result in place, which may be an argument."""

    def write(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and tensor.numel():
            _effect.has_any |= not torch.equal(tensor, wrong := change(tensor.clone()))
            if _effect.is_view:
                return wrong  # what it is a view of stays right
            tensor.copy_(wrong)
        return tensor

    with torch.no_grad():
        return tree_map_only(torch.Tensor, write, result)


class _Effect:
    """Effect of a fault: true if it has changed numbers on any rank, and if they are of a view."""

    has_any = False
    is_view = False


_effect = _Effect()


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def off_by_one(run: Run) -> Any:
    """Return every element in the place of its neighbour, as with a wrong offset."""
    return _changed(run(_unchanged), lambda x: x.flatten().roll(1).view_as(x))


def divided(run: Run) -> Any:
    """Divide by the number of ranks, as a mean by the global size of a local sum."""
    return _changed(run(_unchanged), lambda x: x / dist.get_world_size())


def first_missing(run: Run) -> Any:
    """Leave out the first element, as without its halo or behind a mask."""
    return _changed(run(_unchanged), lambda x: x.flatten().index_fill(0, _FIRST, 0.0).view_as(x))


def empty_on_a_rank(run: Run) -> Any:
    """Return zeros on rank 1."""
    result = run(_unchanged)
    return _changed(result, torch.zeros_like) if dist.get_rank() == 1 else result


def drawn_by_rank(run: Run) -> Any:
    """Depend on the rank, as numbers that each rank draws for itself."""
    result = run(_unchanged)
    return _changed(result, lambda x: x * (1 + dist.get_rank())) if dist.get_rank() else result


def in_bfloat16(run: Run) -> Any:
    """Accumulate in bfloat16."""
    return _changed(run(_rounded), _rounded)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


_FIRST = torch.tensor([0])
KINDS: dict[str, Kind] = {
    each.__name__: each
    for each in (
        off_by_one, divided, first_missing, empty_on_a_rank, drawn_by_rank, in_bfloat16,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call of an operator in a right run.

    Attributes:
        op: the operator.
        number: its number among the operator's calls on a rank, from 0.
        module: the module that it is in.
        phase: its phase.
    """

    op: str
    number: int
    module: str
    phase: str

    def has(self, fault: Fault) -> bool:
        """Return whether a fault was found at this operator, in its module and phase."""
        found = fault.right
        return (found["op"], found["module"], found["phase"]) == (self.op, self.module, self.phase)


def calls(run: Frames, *, are_views: bool = False) -> list[Call]:
    """Return the calls of a right run whose results are observed, of each operator in order.

    Args:
        run: the run.
        are_views: the calls of operators that return views, or else the calls of all others. A run
            of plain tensors does not observe views.
    """
    found, numbers = [], Counter[str]()
    table = run.fingerprints
    results = table[
        (table["rank"] == 0) & (table["role"] == "result") & (table["placements"] != "")
    ]
    first = results[results["name"].astype(str).isin(["", "0"])]
    for op, module, phase in zip(first["op"], first["module"], first["phase"], strict=True):
        if _is_view(str(op)) == are_views:
            found.append(Call(str(op), numbers[op], str(module), str(phase)))
        numbers[op] += 1
    return found


def _is_view(op: str) -> bool:
    # The schema of `_unsafe_view` hides that it is one.
    return _overload(op).is_view or op.startswith("aten._unsafe_view.")


def _overload(op: str) -> Any:
    name, _, overload = op.removeprefix("aten.").rpartition(".")
    return getattr(getattr(torch.ops.aten, name), overload)


class _Counted(threading.local):
    """Calls of an operator that a rank has made in a run."""

    number = 0


@contextmanager
def wrong_at(call: Call, kind: str) -> Iterator[Callable[[], bool]]:
    """Let an operator of all ranks go wrong in a single call while the body runs.

    The value is a function that returns whether this has changed any number.
    """
    _effect.has_any, _effect.is_view = False, _is_view(call.op)
    counted, original, setting = _Counted(), bridge.set_runner, (listening, operators)

    def wrong(runner: Callable[..., Any]) -> Callable[..., Any]:
        def run(op: Any, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            is_moving = function is redistribute_arguments
            if str(op) != call.op or is_moving or not _has_numbers(args):
                return runner(op, function, args, kwargs)
            counted.number += 1
            if counted.number != call.number + 1:
                return runner(op, function, args, kwargs)

            def changed(*given: Any, **options: Any) -> Any:
                return KINDS[kind](lambda change: function(*_each(given, change), **options))

            return runner(op, changed, args, kwargs)

        return run

    def set_runner(runner: Callable[..., Any] | None) -> None:
        original(None if runner is None else wrong(runner))

    for each in setting:
        each.set_runner = set_runner  # type: ignore[attr-defined]
    try:
        yield lambda: _effect.has_any
    finally:
        for each in setting:
            each.set_runner = original  # type: ignore[attr-defined]


def _has_numbers(given: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in given)


def _each(given: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return arguments with their floating-point tensors changed."""

    def of(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, of, tuple(given))
