"""Ranks that hold replicas of a parameter, as its values at the beginning show.

Parameters of known layout state it. Plain parameters are replicas if they are equal when the model
is first called. A parameter all of whose elements are equal, a bias of zeros, shows nothing: it is
taken to be held like the others of its module, and with doubt if those, or others inside of the
module, are held otherwise, or if its ranks have no other parameter in common and no collective
inside of modules, like stages of a pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from commtrace.analyze.gradients.fit import distinct
from commtrace.analyze.gradients.held import Held, held
from commtrace.analyze.gradients.rows import SketchRow, SketchRows
from commtrace.analyze.run.tensor_shapes import numel


@dataclass(frozen=True, slots=True)
class Replicas:
    """Sets of ranks that hold replicas of a parameter.

    Attributes:
        sets: disjoint sets of ranks.
        is_certain: False if values do not show which ranks hold replicas.
    """

    sets: tuple[frozenset[int], ...]
    is_certain: bool

    def of(self, rank: int) -> frozenset[int]:
        """Return the ranks that hold what a rank holds."""
        return next((each for each in self.sets if rank in each), frozenset({rank}))


def replica_sets(parameters: SketchRows, linked: Collection[frozenset[int]]) -> dict[str, Replicas]:
    """Return the ranks that hold replicas of each parameter, by name.

    Args:
        parameters: values of the parameters when the model is first called.
        linked: sets of ranks of groups with collectives inside of modules.
    """
    by_name: dict[str, dict[int, SketchRow]] = {}
    for row in parameters:
        # The first row of each rank: a model may be called under several roots.
        by_name.setdefault(row.name, {}).setdefault(row.rank, row)
    found = {name: _sets(held(list(own.values()))) for name, own in by_name.items()}
    constant = {name for name, own in by_name.items() if _is_constant(list(own.values()))}
    shown = {ranks for name in found.keys() - constant for ranks in found[name].sets}
    for name in constant:
        module = name.rpartition(".")[0]
        siblings = [
            each for each in found if each.rpartition(".")[0] == module and each not in constant
        ]
        inside = [each for each in found if each.startswith(f"{module}.") and each not in constant]
        if siblings:
            is_alike = found[siblings[0]] == found[name]
            found[name] = Replicas(found[siblings[0]].sets, is_certain=is_alike)
        elif module and any(found[each] != found[name] for each in inside):
            found[name] = Replicas(found[name].sets, is_certain=False)
        elif shown:
            known = [*shown, *linked]
            is_shown = all(any(own <= each for each in known) for own in found[name].sets)
            found[name] = Replicas(found[name].sets, is_certain=is_shown)
    return found


def _sets(tensors: list[Held]) -> Replicas:
    classes = distinct(tensors)
    sets = [frozenset().union(*(each.ranks for each in own)) for own in classes]
    return Replicas(tuple(sets), is_certain=True)


def _is_constant(rows: SketchRows) -> bool:
    """Return whether all elements of a plain parameter are equal on each rank."""
    if all(row.mesh and row.placements for row in rows):
        return False
    bounds = [row.largest * math.sqrt(numel(row.shape)) for row in rows]
    return all(
        abs(row.norm - bound) <= 1e-6 * bound for row, bound in zip(rows, bounds, strict=True)
    )
