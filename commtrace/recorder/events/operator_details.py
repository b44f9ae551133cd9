"""Details that alike operators share: what they needed, and the shapes and sizes of their tensors.

An operator's details are looked up by its kind and by what it needed, as numbers relative to its
own, and compared with its tensors. So alike operators of different steps share one object, as they
share a kind, and the text and the FLOPs are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from commtrace.recorder.events.operator_costs import flops_of
from commtrace.recorder.events.texts import shapes_text
from commtrace.recorder.operator_kinds import OperatorKind

_MAX_DETAILS = 256
"""Bound on the details of a kind."""
Needs = tuple[Sequence[int], Sequence[int]]
"""Distances to the operators and calls that it needed, counted back from itself."""


class OperatorDetail:
    """Kind of an operator, and what it shares with alike operators.

    Attributes:
        kind: the kind.
        needs: column `needs`.
        shapes: column `shapes`.
        flops: column `flops`.
        num_bytes: column `bytes`.
        given: shapes of its tensors.
        dtype: type of its first tensor.
        result: shape and type of its first result, unless they follow from its tensors.
    """

    __slots__ = (
        "dtype", "flops", "given", "kind", "level", "needs", "num_bytes", "op", "result", "shapes",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        kind: OperatorKind,
        needs: Needs,
        tensors: Sequence[torch.Tensor],
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
    ) -> None:
        self.kind = kind
        self.where, self.op, self.level = kind.where, kind.op, kind.level
        ops, calls = ({*each} for each in needs)
        texts = [*map(str, sorted(ops)), *(f"c{each}" for each in sorted(calls))]
        self.needs = ",".join(texts)
        self.given = [each.shape for each in tensors]
        self.shapes = shapes_text(tuple(self.given))
        results = _tensors_of(result)
        self.num_bytes = sum([each.numel() * each.itemsize for each in (*tensors, *results)])
        self.flops = flops_of(kind.op, args, kwargs, result)
        self.dtype = tensors[0].dtype if tensors else None
        self.result: Any = None
        if not kind.determines_result and results:
            self.result = results[0].shape, results[0].dtype


class Takes:
    """Arguments of a kind of operators: the places of tensors, of lists, and of other values.

    Attributes:
        places: positions of tensors; of lists of them, if it takes lists.
        is_of_lists: some of them are lists.
        others: positions of values where its schema allows for tensors, and their classes.
        num_args: number of positional arguments.
        num_first: number of tensors, if they are the first one or two arguments; else 0.
    """

    __slots__ = ("is_of_lists", "num_args", "num_first", "others", "places")

    def __init__(self, kind: OperatorKind, args: Sequence[Any]) -> None:
        declared = [str(each.type) for each in kind.op._schema.arguments]
        self.num_args = len(args)
        possible = [place for place in range(len(args)) if "Tensor" in declared[place]]
        self.places = [place for place in possible if _has_tensors(args[place])]
        self.is_of_lists = any([isinstance(args[place], (list, tuple)) for place in self.places])
        self.others = [(place, type(args[place])) for place in possible if place not in self.places]
        if kind.overwrites:
            self.others += [(place, torch.Tensor) for place in self.places[:1]]
            self.places = self.places[1:]
        num = len(self.places)
        has_more = any(["Tensor" in each for each in declared[len(args) :]])
        is_first = self.places == [*range(num)] and not self.is_of_lists and not has_more
        self.num_first = num if is_first and num in (1, 2) else 0

    def tensors_in(self, args: Sequence[Any]) -> list[torch.Tensor] | None:
        """Return the tensors that an operator reads; None if it takes others than before."""
        if len(args) != self.num_args:
            return None
        for place, cls in self.others:
            if type(args[place]) is not cls:
                return None
        if not self.is_of_lists:
            return [args[place] for place in self.places]
        found: list[torch.Tensor] = []
        for place in self.places:
            given = args[place]
            if type(given) in _LISTS:
                found += given
            else:
                found.append(given)
        return found


_LISTS = frozenset({list, tuple})


def _has_tensors(given: Any) -> bool:
    if isinstance(given, (list, tuple)):
        return bool(given) and all([isinstance(each, torch.Tensor) for each in given])
    return isinstance(given, torch.Tensor)


def _tensors_of(result: Any) -> list[torch.Tensor]:
    """Return the tensors among results, not those in lists of tuples."""
    results = [result] if isinstance(result, torch.Tensor) else result or ()
    return [each for each in results if isinstance(each, torch.Tensor)]


def detail_of(
    kind: OperatorKind,
    needs: Needs,
    tensors: Sequence[torch.Tensor],
    args: Sequence[Any],
    kwargs: Any,
    result: Any,
) -> OperatorDetail | OperatorKind:
    """Return the details of an operator that has run; its kind if they cannot be read.

    Args:
        kind: its kind.
        needs: what it needed.
        tensors: the tensors among its arguments.
        args: its positional arguments.
        kwargs: its others, or None.
        result: what it has returned.
    """
    try:
        given = [*tensors, *_tensors_of(result)]
        key = (
            *map(tuple, needs),
            tuple([each.shape for each in given]),
            tuple([each.dtype for each in given]),
        )
        known = kind.details.get(key)
        if known is None:
            if len(kind.details) >= _MAX_DETAILS:
                kind.details.clear()
            known = OperatorDetail(kind, needs, tensors, args, kwargs, result)
            kind.details[key] = known
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return kind  # shapes that are not numbers, or tensors without them
    return known
