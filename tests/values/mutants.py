"""Faults of the communication of dtensor_core: a kind of fault at a collective of a program.

A right run lists its collectives, each with the module, the phase, the operator or the parameter
that needs it. A mutant is a collective, by its number on each rank, and a kind of fault. It is
expected to be found where the collective is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from commtrace.analyze import Frames
from commtrace.analyze.values import Fault
from dtensor_core import DTensor, collectives, observe

Call = Callable[[torch.Tensor], torch.Tensor]
Kind = Callable[[Call, torch.Tensor, str], torch.Tensor]
"""Result of a faulty collective, from the right result, the tensor given to it and its name."""


def dropped(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Return a rank's own part in place of the reduction."""
    right = call(given)
    if right.numel() == given.numel():
        return given.clone().view_as(right)
    mine = given.flatten().view(-1, right.numel())
    return mine[dist.get_rank() % len(mine)].view_as(right).clone()


def doubled(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Reduce over the ranks once too often."""
    return call(given) * dist.get_world_size()


def divided(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Divide by the number of ranks."""
    return call(given) / dist.get_world_size()


def without_a_rank(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Leave out the last rank's part."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    return call(torch.zeros_like(given) if is_last else given)


def in_bfloat16(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Reduce in bfloat16."""
    return call(given.bfloat16().to(given.dtype)).bfloat16().to(given.dtype)


def maximum(call: Call, given: torch.Tensor, name: str) -> torch.Tensor:
    """Return the maximum of all ranks in place of the sum."""
    right = call(given)
    if name != "all_reduce":
        return right.abs()
    largest = given.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.view_as(right)


def off_by_one(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Return every element in the place of its neighbour."""
    right = call(given)
    return right.flatten().roll(1).view_as(right)


def exchanged(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Return the parts of the ranks in reverse order."""
    right = call(given)
    parts = right.flatten().tensor_split(dist.get_world_size())
    return torch.cat(parts[::-1]).view_as(right)


def stale_on_a_rank(call: Call, given: torch.Tensor, _: str) -> torch.Tensor:
    """Return memory on rank 1 that nothing has arrived in."""
    right = call(given)
    return torch.zeros_like(right) if dist.get_rank() == 1 else right


_OF_REDUCTIONS = {
    each.__name__: each
    for each in (dropped, doubled, divided, without_a_rank, in_bfloat16, maximum)
}
_OF_MOVES = {each.__name__: each for each in (off_by_one, exchanged, without_a_rank)}
KINDS: dict[str, dict[str, Kind]] = {
    "all_reduce": _OF_REDUCTIONS | {"stale_on_a_rank": stale_on_a_rank},
    "reduce_scatter": _OF_REDUCTIONS | {"off_by_one": off_by_one},
    "all_gather": _OF_MOVES | {"stale_on_a_rank": stale_on_a_rank},
    "all_to_all": _OF_MOVES,
}
"""Kinds of faults by kind of collective."""


@dataclass(frozen=True)
class Place:
    """A collective of a right run.

    Attributes:
        number: its number among the rank's collectives, from 0.
        kind: its kind.
        module: the module that it is in.
        phase: its phase.
        op: the operator that needs it.
        parameter: the parameter whose gradient it reduces or gathers.
    """

    number: int
    kind: str
    module: str
    phase: str
    op: str
    parameter: str = ""

    def has(self, fault: Fault) -> bool:
        """Return whether a fault was found in this module and phase, or in this parameter."""
        found = fault.right
        if self.parameter:
            return (found["role"], found["name"]) == ("gradient", self.parameter)
        if found["phase"] != self.phase:
            return False
        is_same_op = found["op"].split(".")[:2] == self.op.split(".")[:2]
        return found["module"] == self.module and (
            is_same_op or self.op.partition(".")[0] != "aten" or found["role"] != "result"
        )


def places(run: Frames, reduced: list[str]) -> list[Place]:
    """Return the collectives of a run from which mutants are made.

    Args:
        run: a right run of a single step, on a mesh of a single axis.
        reduced: parameters whose gradients the optimizer's collectives reduce or gather, in order.
    """
    comm: pd.DataFrame = run.comm
    own = comm[(comm["rank"] == 0) & comm["kind"].isin(KINDS) & (comm["reason"].astype(str) != "")]
    is_of_counts = own["dtype"].astype(str).str.startswith("int")
    names = iter(reduced)
    return [
        Place(
            number,
            *map(str, (each.kind, each.module, each.phase, each.op)),
            parameter=next(names) if each.phase == "optimizer" else "",
        )
        for number, each in enumerate(own.itertuples())
        if not is_of_counts.iloc[number]
    ]


def is_named(place: Place, fault: Fault) -> bool:
    """Return whether a fault has the collective among those that led to it."""
    return any(
        (call["kind"], call["phase"], call["module"], call["op"])
        == (place.kind, place.phase, place.module, place.op)
        for call in fault.communication
    )


def noting(reduced: list[str]) -> Callable[[nn.Module, int], AbstractContextManager[None]]:
    """Return a context of a step that notes the parameters whose gradients need communication."""

    @contextmanager
    def note(model: nn.Module, _: int) -> Iterator[None]:
        yield
        if dist.get_rank() == 0:
            reduced.extend(
                name
                for name, each in model.named_parameters()
                if isinstance(each, DTensor)
                and isinstance(each.grad, DTensor)
                and each.grad.placements != each.placements
            )

    return note


class _Counted(threading.local):
    """Collectives that a rank has called in a run."""

    number = 0


@contextmanager
def injected(place: Place, kind: str) -> Iterator[None]:
    """Let a collective of all ranks go wrong while the body runs."""
    counted, change = _Counted(), KINDS[place.kind][kind]
    originals = {name: getattr(collectives, name) for name in KINDS}

    def replaced(name: str) -> Callable[..., Any]:
        original = originals[name]

        def call(local: torch.Tensor, *args: Any) -> Any:
            if observe.current() is None:
                return original(local, *args)
            counted.number += 1
            if counted.number != place.number + 1:
                return original(local, *args)
            assert name == place.kind
            with torch.no_grad():
                return change(lambda given: collectives.wait(original(given, *args)), local, name)

        return call

    for name in KINDS:
        setattr(collectives, name, replaced(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(collectives, name, original)
