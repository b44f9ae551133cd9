"""Alignment of the tensors of two runs of the same program.

Tensors of modules, parameters and tensors that the program names are paired by step, phase, role,
module, name and shape; results of operators also by operator and line. Lines are ignored if the
runs have few in common, as with different versions. Calls of a module are numbered afresh in each
step and phase, so that calls of a single run, such as a recomputation, do not shift later calls.
What a program computes before its first step is not paired with what it computes after its last.

If several tensors are alike in all this, the first is paired with the first: in the order of calls
if both runs have calls of these numbers, as the backward passes of micro-batches may have another
order, or else by time. If a run has more of them than the other, for example by looping
over all experts or over more parts of a batch, tensors with equal values are paired, and the rest
only if many are equal. Results that are computed in another order are also paired by value.
Everything else is skipped. If several are alike, a pair that differs is ambiguous: the runs may
have computed different tensors, such as other sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

import numpy as np
import pandas as pd

from commtrace.analyze.values.global_values import KEY, OWN_DATA, SKETCHES
from commtrace.analyze.values.tolerance import ROUNDOFF
from commtrace.schema import BUFFER, INPUT, OUTPUT, PARAMETER, RESULT

_OF_CALL = ("step", "is_after", "phase", "module", "call")
_OF_TENSOR = ("step", "is_after", "phase", "role", "module", "name", "shape")
AlikeKey = tuple[Hashable, ...]
_ALIKE = ["step", "phase", "role", "module", "call", "name", "op", "shape"]
_OF_EQUAL_VALUES = 2.0**10
"""Multiple of the unit roundoff up to which values of different runs are equal."""
_MOST_APART = 0.05
_MOST_COMPARED = 256
"""Largest number of alike tensors whose values are compared, since pairs grow quadratically."""


def aligned(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of rows of two tables `tensors`, in the order of the first.

    Returns:
        Columns `left` and `right`, labels of rows, `is_ambiguous`, and `right_on`: a rank that has
        the tensor of the first run, if another rank's differs, which is then `right`; else -1.
    """
    left, right = map(_with_end, _with_calls(left, right))
    pairs = list(chain(_named(left, right), _results(left, right)))
    names = ["left", "right", "is_ambiguous"]
    table = pd.DataFrame(pairs, columns=names, dtype="int64").astype({names[-1]: bool})
    order = left["order"].reindex(table["left"]).to_numpy()
    table = table.iloc[order.argsort(kind="stable")].reset_index(drop=True)
    return _on_the_furthest_rank(left, right, table.assign(right_on=-1))


def with_first_step(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return the second table; parameters before any activation get the first table's step.

    Whether the first step has begun by then depends on the program: some infer the shapes of stages
    before it.
    """
    before = [
        side["role"].isin((PARAMETER, BUFFER))
        & (side["order"] < activation.groupby(side["rank"]).transform("min"))
        for side in (left, right)
        for activation in [side["order"].where(side["role"].isin((INPUT, OUTPUT)))]
    ]
    steps = [side["step"][own].unique() for side, own in zip((left, right), before, strict=True)]
    if len(steps[0]) != 1 or len(steps[1]) != 1:
        return right
    return right.assign(step=right["step"].where(~before[1], steps[0][0]))


def _on_the_furthest_rank(
    left: pd.DataFrame, right: pd.DataFrame, pairs: pd.DataFrame
) -> pd.DataFrame:
    """Return pairs in which a tensor of unknown layout is taken from the rank furthest off.

    Its counterpart is from the same rank if the first run has the tensor on each rank, too. Only
    tensors that some rank has as in the first run, and that each rank has equally often, count.
    """
    ours, theirs = (_OfRanks(side) for side in (left, right))
    on_ranks = [
        (place, rank, counterparts[rank], label)
        for place, (own, other) in enumerate(zip(pairs["left"], pairs["right"], strict=True))
        if len(labels := theirs.by_rank(other)) > 1 and theirs.is_as_often(other, ours)
        for counterparts in [ours.by_rank(own) or dict.fromkeys(labels, own)]
        for rank, label in labels.items()
        if rank in counterparts
    ]
    if not on_ranks:
        return pairs
    table = pd.DataFrame(on_ranks, columns=["place", "rank", "left", "right"])
    values = _Values(left, right)
    table["apart"], table["is_equal"] = values.of_pairs(
        table["left"].tolist(), table["right"].tolist()
    )
    by_place = table.groupby("place")["is_equal"]
    is_mixed = by_place.transform("any") & ~by_place.transform("all")
    differing = table[is_mixed & ~table["is_equal"]]
    found = differing.sort_values("apart").drop_duplicates("place", keep="last")
    is_other = [
        len(alike := ours.labels[theirs.alike[label]]) == 1
        or (len(alike) <= _MOST_COMPARED and not values.are_equal(alike, [label]).any())
        for label in found["right"]
    ]
    found = found[np.array(is_other, dtype=bool)]
    right_on = table[table["is_equal"]].drop_duplicates("place").set_index("place")["rank"]
    pairs = pairs.copy()
    pairs.loc[found["place"], ["left", "right"]] = found[["left", "right"]].to_numpy()
    pairs.loc[found["place"], "right_on"] = right_on[found["place"]].to_numpy()
    return pairs


class _OfRanks:
    """Tensors of a run, with tensors of unknown layout by rank.

    Attributes:
        alike: by tensor, its properties but for its number among tensors that share them.
        labels: the tensors that share them.
    """

    def __init__(self, side: pd.DataFrame) -> None:
        keys = list(zip(*(side[name] for name in _ALIKE), strict=True))
        self.alike: dict[int, AlikeKey] = dict(zip(side.index, keys, strict=True))
        self.labels: dict[AlikeKey, list[int]] = {}
        self._counts: dict[AlikeKey, dict[int, int]] = {}
        for label, key, rank in zip(side.index, keys, side["rank"], strict=True):
            self.labels.setdefault(key, []).append(label)
            counts = self._counts.setdefault(key, {})
            counts[rank] = counts.get(rank, 0) + 1
        unknown = side[(side["layout"] == "") & ~side["mesh"].str.startswith(OWN_DATA)]
        self._of_ranks: dict[int, dict[int, int]] = {}
        for _, labels in unknown.groupby([*KEY, "shape"], observed=True).groups.items():
            by_rank = dict(zip(unknown["rank"][labels].tolist(), labels.tolist(), strict=True))
            self._of_ranks |= dict.fromkeys(labels.tolist(), by_rank)

    def by_rank(self, label: int) -> dict[int, int]:
        """Return, by rank, the tensors of unknown layout that correspond to a tensor."""
        return self._of_ranks.get(label, {})

    def is_as_often(self, label: int, other: _OfRanks) -> bool:
        """Return whether all ranks of both runs have such tensors equally often."""
        key = self.alike[label]
        counts = {*self._counts[key].values(), *other._counts.get(key, {}).values()}
        return key in other._counts and len(counts) == 1


def _with_end(side: pd.DataFrame) -> pd.DataFrame:
    """Add `is_after`: whether a tensor outside of steps is of the time after the last step."""
    steps = side[side["step"] >= 0]
    last = steps.loc[steps["step"] == steps["step"].max(), "order"].median()
    return side.assign(is_after=(side["step"] < 0) & (side["order"] > last))


def _with_calls(left: pd.DataFrame, right: pd.DataFrame) -> list[pd.DataFrame]:
    """Add `call`: the number of each tensor's call within its module, step and phase.

    It is 0 where the runs have different numbers of calls, since it is unknown which correspond.
    """
    calls, of_module = [], ["step", "phase", "module"]
    for side in (left, right):
        grouped = side.groupby(of_module, sort=False)["module_call"]
        of_side = side[of_module].assign(call=grouped.rank(method="dense").astype("int64"))
        calls.append(of_side)
    numbers = [each.groupby(of_module, sort=False)["call"].max() for each in calls]
    is_equal = numbers[0].eq(numbers[1].reindex(numbers[0].index))
    is_known = set(is_equal.index[is_equal])
    return [
        side.assign(
            call=each["call"].where(pd.MultiIndex.from_frame(each[of_module]).isin(is_known), 0)
        )
        for side, each in zip((left, right), calls, strict=True)
    ]


Alike = dict[Hashable, list[int]]
"""Labels of tensors that are alike, in order of time."""
Pairs = list[tuple[int, int, bool]]
"""Labels of both tensors, and whether the pair is ambiguous."""


def _named(left: pd.DataFrame, right: pd.DataFrame) -> Iterator[tuple[int, int, bool]]:
    """Pair tensors that have a name: all but the results of operators."""
    meshes = [
        {mesh for mesh in side["mesh"].unique() if mesh.startswith(OWN_DATA)}
        for side in (left, right)
    ]
    is_each_rank = meshes[0] == meshes[1]
    ours, theirs = (_by_name(side, is_each_rank=is_each_rank) for side in (left, right))
    values = _Values(left, right)
    for key, own in ours.items():
        other = theirs.get(key, [])
        if len(own) == len(other):
            calls = [side["module_call"].loc[each] for side, each in ((left, own), (right, other))]
            # Passes go backward through the calls in any order.
            if len(own) > 1 and {*calls[0]} == {*calls[1]}:
                own, other = (each.sort_values(kind="stable").index.tolist() for each in calls)
            yield from _sure(own, other)
        elif other:
            yield from values.equal(own, other)


def _by_name(side: pd.DataFrame, *, is_each_rank: bool) -> Alike:
    own = side[side["role"] != RESULT]
    # Of tensors that each rank has for itself, the first rank's stands for all that are alike; in
    # one of the runs another rank may have been earlier. Ranks have own data each.
    is_own_data = own["mesh"].str.startswith(OWN_DATA) & (own["layout"] == "") & is_each_rank
    own = own.assign(own_rank=own["rank"].where(is_own_data, -1))
    alike = own.sort_values("rank", kind="stable")
    alike = alike.drop_duplicates([*_OF_TENSOR, "module_call", "occurrence", "own_rank"])
    own = own.loc[own.index.isin(alike.index)]
    return _grouped(own.index, [own[name] for name in (*_OF_TENSOR, "own_rank")])


def _grouped(labels: pd.Index, columns: Sequence[Sequence[Hashable]]) -> Alike:
    found: Alike = {}
    for label, *key in zip(labels.tolist(), *columns, strict=True):
        found.setdefault(tuple(key), []).append(label)
    return found


def _results(left: pd.DataFrame, right: pd.DataFrame) -> Iterator[tuple[int, int, bool]]:
    """Pair results of operators within a call of a module."""
    by_line = _have_lines_in_common(left, right)
    ours, theirs = (_by_operator(side, by_line=by_line) for side in (left, right))
    values = _Values(left, right)
    for key, own in ours.items():
        other = theirs.get(key, [])
        if len(own) != len(other):
            yield from values.equal(own, other) if other else ()
        elif len(own) == 1:
            yield own[0], other[0], False
        else:
            yield from values.in_any_order(own, other)


def _have_lines_in_common(left: pd.DataFrame, right: pd.DataFrame) -> bool:
    lines = [
        set(zip(side["source_function"], side["source_line"], strict=True))
        for side in (left[left["role"] == RESULT], right[right["role"] == RESULT])
    ]
    return 2 * len(lines[0] & lines[1]) >= min(map(len, lines))


def _by_operator(side: pd.DataFrame, *, by_line: bool) -> Alike:
    results = side[(side["role"] == RESULT) & (side["rank"].isin([-1, side["rank"].max()]))]
    # Overloads differ between runs, such as those with and without `out`.
    base = [op.rpartition(".")[0] for op in results["op"]]
    lines = results["source_line"] if by_line else [-1] * len(results)
    columns = [results[name] for name in (*_OF_CALL, "name", "shape")]
    return _grouped(results.index, [base, lines, *columns])


class _Values:
    """Values of the tensors of both runs, by the labels of their rows."""

    def __init__(self, left: pd.DataFrame, right: pd.DataFrame) -> None:
        self._of_left, self._of_right = (
            pd.Series(range(len(side)), index=side.index) for side in (left, right)
        )
        self._left, self._right = (side[[*SKETCHES]].to_numpy("float64") for side in (left, right))
        roundoff = [
            side["dtype"].astype(str).map(ROUNDOFF).fillna(ROUNDOFF["float32"]).to_numpy("float64")
            for side in (left, right)
        ]
        self._close = [np.fmin(_OF_EQUAL_VALUES * each, _MOST_APART) for each in roundoff]

    def are_equal(self, own: Sequence[int], other: Sequence[int]) -> np.ndarray:
        """Return which tensors have equal values, as [len(own), len(other)]."""
        ours = self._of_left.loc[list(own)].to_numpy()
        theirs = self._of_right.loc[list(other)].to_numpy()
        x, y = self._left[ours], self._right[theirs]
        apart = np.linalg.norm(x[:, None] - y[None], axis=-1)
        size = np.fmax.outer(np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1))
        close = np.fmax.outer(self._close[0][ours], self._close[1][theirs])
        return apart <= close * size

    def of_pairs(self, own: Sequence[int], other: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the distance of each pair of tensors, and whether they have equal values."""
        ours = self._of_left.loc[list(own)].to_numpy()
        theirs = self._of_right.loc[list(other)].to_numpy()
        x, y = self._left[ours], self._right[theirs]
        apart = np.linalg.norm(x - y, axis=-1)
        size = np.fmax(np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1))
        return apart, apart <= np.fmax(self._close[0][ours], self._close[1][theirs]) * size

    def equal(self, own: Sequence[int], other: Sequence[int]) -> Pairs:
        """Pair tensors of equal values, and if these are many, the others in order."""
        found = self._first_equal(own, other)
        are_many = found and 2 * len(found) >= min(len(own), len(other))
        return found + _rest(own, other, found) if are_many else found

    def in_any_order(self, own: Sequence[int], other: Sequence[int]) -> Pairs:
        """Pair tensors in order, but match differing tensors by value where values are equal."""
        pairs = _sure(own, other)
        if len(own) > _MOST_COMPARED:
            return pairs
        _, is_equal = self.of_pairs(own, other)
        found = [pair for pair, equal in zip(pairs, is_equal, strict=True) if equal]
        differing = [pair[:2] for pair, equal in zip(pairs, is_equal, strict=True) if not equal]
        if len(differing) > 1:
            found += self._first_equal(*map(list, zip(*differing, strict=True)))
        return found + _rest(own, other, found)

    def _first_equal(self, own: Sequence[int], other: Sequence[int]) -> Pairs:
        if max(len(own), len(other)) > _MOST_COMPARED:
            return []
        found: Pairs = []
        free = np.ones(len(other), dtype=bool)
        for label, row in zip(own, self.are_equal(own, other), strict=True):
            places = np.flatnonzero(row & free)
            if len(places):
                free[places[0]] = False
                found.append((label, other[places[0]], False))
        return found


def _sure(own: Sequence[int], other: Sequence[int]) -> Pairs:
    return [(ours, theirs, False) for ours, theirs in zip(own, other, strict=True)]


def _rest(own: Sequence[int], other: Sequence[int], found: Pairs) -> Pairs:
    """Return ambiguous pairs, in order, of the tensors that are not paired yet."""
    ours, theirs = {pair[0] for pair in found}, {pair[1] for pair in found}
    left = [label for label in own if label not in ours]
    right = [label for label in other if label not in theirs]
    return [(label, partner, True) for label, partner in zip(left, right, strict=False)]
