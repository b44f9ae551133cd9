"""Details of operators: what they needed, and the shapes and sizes of their tensors.

To find them takes longer than all else that is recorded of an operator. So they are recorded in
some steps only, the same on every rank: steps of a training loop are alike.

    step      0   1   2   ...   99   100   101   ...   199   200
    details   x   x                   x                       x

In the other steps, they are unknown. So are those of operators after the first 65,536 of a step,
such as of a program that never ends one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.marks import NO_ORIGIN, NOTHING, Mark
from commtrace.recorder.events.operator_costs import flops_of
from commtrace.recorder.events.texts import shapes_text
from commtrace.recorder.operator_kinds import OperatorKind, OperatorPlace
from commtrace.torch_internals.tensors import address_of, awaited_tensor

MOST_DETAILED = 1 << 16
"""Bound on the operators of a step whose details are recorded."""
_NUM_FIRST, _EVERY = 2, 100


def has_details(step: int) -> bool:
    """Return whether the details of a step's operators are recorded."""
    return step < _NUM_FIRST or step % _EVERY == 0


class OperatorDetail(NamedTuple):
    """Kind of an operator, and what it shares with alike operators.

    Attributes:
        kind: the kind.
        needs: column `needs`.
        shapes: column `shapes`.
        flops: column `flops`.
        num_bytes: column `bytes`.
    """

    kind: OperatorKind
    needs: str
    shapes: str
    flops: int
    num_bytes: int

    @property
    def where(self) -> OperatorPlace:
        """The place of the kind."""
        return self.kind.where

    @property
    def op(self) -> Any:
        """The operator."""
        return self.kind.op

    @property
    def level(self) -> str:
        """The level of the kind."""
        return self.kind.level


class OperatorDetails:
    """Finds the details of operators that have run.

    Args:
        written: marks of last writes into storages, by address.

    Attributes:
        latest: the latest call of each rank.
    """

    __slots__ = ("_written", "latest")

    def __init__(self, written: Mapping[int, Mark]) -> None:
        self._written = written
        self.latest: dict[int, Call] = {}

    def of(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        number: int,
        begin_ns: int,
    ) -> tuple[OperatorDetail | OperatorKind, int]:
        """Return the details of an operator, and the origin of its data.

        It returns the kind instead if they cannot be read. What the operator writes must not be
        marked yet.
        """
        try:
            given = [*tensors_in(args)]
            if kwargs:
                given += tensors_in([kwargs[name] for name in kwargs if name != kind.out])
            read = given[1:] if kind.overwrites else given
            needs, origin = self._needs_of(read, kind.where.rank, number, begin_ns)
            results = [result] if isinstance(result, torch.Tensor) else result or ()
            returned = [each for each in results if isinstance(each, torch.Tensor)]
            return (
                OperatorDetail(
                    kind,
                    needs,
                    shapes_text(tuple([each.shape for each in given])),
                    flops_of(kind.op, args, kwargs, result),
                    sum([each.numel() * each.itemsize for each in (*given, *returned)]),
                ),
                origin,
            )
        except (AttributeError, RuntimeError, TypeError, NotImplementedError):
            return kind, NO_ORIGIN  # shapes that are not numbers, or tensors without a storage

    def _needs_of(
        self, read: Sequence[torch.Tensor], rank: int, number: int, begin_ns: int
    ) -> tuple[str, int]:
        """Return column `needs` of an operator that has read some tensors, and their origin."""
        latest = self.latest.get(rank)
        last = -1 if latest is None else latest.id - (latest.issue_ns > begin_ns)
        ops: set[int] = set()
        calls: set[int] = set()
        origin = NO_ORIGIN
        for each in read:
            tensor = each if type(each) is torch.Tensor else awaited_tensor(each)
            mark: Any = self._written.get(address_of(tensor), NOTHING)
            if type(mark) is tuple:
                if 0 <= mark[0] < number:
                    ops.add(number - mark[0])
                origin = max(origin, mark[2])
            elif mark.request.group.rank == rank:
                calls.add(max(last - mark.id, 0))
                origin = max(origin, mark.id)
        return ",".join([*map(str, sorted(ops)), *(f"c{each}" for each in sorted(calls))]), origin


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, also those in lists."""
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors_in(each)
