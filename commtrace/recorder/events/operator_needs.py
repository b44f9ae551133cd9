"""Operators and calls that an operator needed: those that last wrote into its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import torch

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.marks import LastWrites
from commtrace.recorder.events.operator_details import OperatorDetail, Takes, detail_of
from commtrace.recorder.operator_kinds import OperatorKind
from commtrace.torch_internals.tensors import FakeTensor

_TENSOR = torch.Tensor
_UNKNOWN = -1


class OperatorNeeds:
    """Finds what operators needed, by the marks of their arguments.

    Attributes:
        latest: the latest call of each rank.
    """

    __slots__ = ("_marks", "latest")

    def __init__(self, marks: LastWrites) -> None:
        self._marks = marks
        self.latest: dict[int, Call] = {}

    def details(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        number: int,
        begin_ns: int,
    ) -> tuple[OperatorDetail | OperatorKind, int]:
        """Return the details of an operator that has run, and the origin of its data."""
        written = self._marks.of
        try:
            tensors = kind.takes.tensors_in(args)
            marks: list[Any] = [written[each.data_ptr()] for each in tensors]
            try:
                distances = [number - mark[0] for mark in marks]
                origin = max([mark[2] for mark in marks], default=_UNKNOWN)
            except TypeError:  # the result of a call
                distances, origin = self._distances(marks, kind.where.rank, number, begin_ns)
            detail = kind.details[tuple(distances)]
            if (
                [each.shape for each in tensors] == detail.given
                and (not tensors or tensors[0].dtype is detail.dtype)
                and (detail.result is None or is_of(result, *detail.result))
            ):
                return detail, origin
        except (AttributeError, KeyError, RuntimeError, TypeError):
            pass  # the first of them, or it takes views that are new
        return self.new_details(kind, args, kwargs, result, number, begin_ns)

    def new_details(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        number: int,
        begin_ns: int,
    ) -> tuple[OperatorDetail | OperatorKind, int]:
        """Return the same as `details`, of an operator unlike those before, or on fake tensors."""
        try:
            kind.takes = takes = Takes(kind, args)
            read = takes.tensors_in(args) or []
            tensors = [*tensors_in(args)]
            if kwargs:
                more = [*tensors_in([kwargs[name] for name in kwargs if name != kind.out])]
                tensors += more
                read += more
            marks: list[Any] = [self._marks.look_up(each) for each in read]
            distances, origin = self._distances(marks, kind.where.rank, number, begin_ns)
            ops = [int(each) for each in distances if each > 0]
            calls = [int(-each - 1) for each in distances if -inf < each < 0]
            detail = detail_of(kind, (ops, calls), tensors, args, kwargs, result)
            if len(read) == len(tensors):
                kind.details[tuple(distances)] = detail
        except (AttributeError, RuntimeError, TypeError, NotImplementedError):
            return kind, _UNKNOWN  # a tensor of a class that has no storage, for instance
        return detail, origin

    def _distances(
        self, marks: Sequence[Any], rank: int, number: int, begin_ns: int
    ) -> tuple[list[float], int]:
        """Return the distances back to the writers of some marks, and the origin of the data.

        The distance of an operator is the difference of their numbers. A call's distance is -1 for
        the rank's latest call, -2 for the call before, and so on; without a writer, it is -inf.
        """
        distances: list[float] = []
        origin, latest = _UNKNOWN, self.latest.get(rank)
        last = _UNKNOWN if latest is None else latest.id - (latest.issue_ns > begin_ns)
        for mark in marks:
            if type(mark) is tuple:
                distances.append(number - mark[0])
                origin = max(origin, mark[2])
            elif mark.request.group.rank == rank:
                mark.used_by(number)
                distances.append(-1 - max(last - mark.id, 0))
                origin = max(origin, mark.id)
            else:
                distances.append(-inf)
        return distances, origin


def are_fake(given: Any) -> bool:
    """Return whether the first of some tensors is fake, so that it has no address."""
    while type(given) in (list, tuple) and given:
        given = given[0]
    return type(given) is not _TENSOR and isinstance(given, FakeTensor)


def is_of(result: Any, shape: torch.Size, dtype: torch.dtype) -> bool:
    """Return whether the first result has a shape and a type."""
    first = result if type(result) is _TENSOR else result[0]
    return first.dtype is dtype and first.shape == shape


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, also those in lists."""
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors_in(each)
