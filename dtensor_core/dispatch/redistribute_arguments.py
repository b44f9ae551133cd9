"""Redistribution of a call's local arguments to the layouts that its entry decided.

Used by the dispatcher.
"""

from __future__ import annotations

from typing import Any

import torch

from dtensor_core import observe
from dtensor_core.dispatch.arguments import Args, Kwargs, first_mesh, spec_on
from dtensor_core.dispatch.entry import Entry
from dtensor_core.dispatch.special.coalescing import reduced_together
from dtensor_core.dispatch.special.fallback import apply_policy
from dtensor_core.dispatch.special.inplace_writeback import check_given
from dtensor_core.mesh import DeviceMesh
from dtensor_core.redistribute.execute import execute
from dtensor_core.torch_internals.dispatcher import OpOverload
from dtensor_core.torch_internals.trees import tree_leaves


def redistribute_arguments(
    op: OpOverload,
    entry: Entry,
    args: Args,
    kwargs: Kwargs,
    local: list[Any],
    local_kwargs: dict[str, Any],
) -> None:
    """Bring the local arguments to their decided layouts; a tensor given twice moves once."""
    # Everything that may refuse the call comes before the first communication.
    check_given(op, entry.kind.backs, args, kwargs)
    if entry.missing is not None:
        apply_policy(entry.missing)
    moves = {number: (plan, origin) for number, plan, origin in entry.moves}
    mesh = first_mesh(args, kwargs)
    moved = _Moved(moves, mesh)
    guard = observe.guard()
    if guard is not None:
        guard(str(op), _as_moves(entry, mesh, args, kwargs))
    if len(moves) > 1 and any(isinstance(each, (list, tuple)) for each in args):
        tensors = _inputs(entry, args, kwargs)
        parts = _inputs(entry, local, local_kwargs)
        sends = [(parts[n], spec_on(mesh, tensors[n]), *moves[n]) for n in moves]
        keys = [(id(tensors[n]), id(plan)) for n, (plan, _) in moves.items()]
        moved.done = {keys[place]: full for place, full in reduced_together(sends).items()}
    for position, given in enumerate(args):
        local[position] = moved(given, local[position])
    for name, given in kwargs.items():
        if name not in entry.kind.written:
            local_kwargs[name] = moved(given, local_kwargs[name])


class _Moved:
    """Local arguments in their decided layouts, in the order in which moves number them.

    Not a function that calls itself from within another: that is a reference cycle, which would
    keep the tensors until the next garbage collection.
    """

    def __init__(self, moves: dict[int, tuple[Any, Any]], mesh: DeviceMesh) -> None:
        self.done: dict[tuple[int, int], torch.Tensor] = {}
        self._moves = moves
        self._mesh = mesh
        self._number = -1

    def __call__(self, given: Any, value: Any) -> Any:
        """Return `value`, the local part of `given`, in its layout."""
        if isinstance(given, (list, tuple)):
            return [self(g, v) for g, v in zip(given, value, strict=True)]
        if not isinstance(given, torch.Tensor):
            return value
        self._number += 1
        if self._number not in self._moves:
            return value
        plan, origin = self._moves[self._number]
        # The plan is part of the key, as a tensor given twice may be needed in two layouts.
        again = (id(given), id(plan))
        if again not in self.done:
            self.done[again] = execute(value, spec_on(self._mesh, given), plan, origin)
        return self.done[again]


def _inputs(entry: Entry, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """Return the tensors that are read, in the order in which moves number them."""
    inputs = (args, {name: arg for name, arg in kwargs.items() if name not in entry.kind.written})
    return [each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor)]


def _as_moves(entry: Entry, mesh: DeviceMesh, args: Args, kwargs: Kwargs) -> list[observe.Move]:
    """Describe the redistributions about to happen, for a guard."""
    tensors = _inputs(entry, args, kwargs)
    there = [
        observe.Move(origin.argument, spec_on(mesh, tensors[number]), plan.steps, origin.candidates)
        for number, plan, origin in entry.moves
    ]
    back = [
        observe.Move(observe.WRITTEN, each.spec, each.plan.steps, ()) for each in entry.kind.backs
    ]
    return there + back
