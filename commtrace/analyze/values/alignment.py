"""Alignment of the tensors of two runs of one program.

Tensors of modules, parameters and those that the program names are paired by step, phase, role,
module, call and name. Results of operators are paired within a call of a module, in order, by
operator, shape and line: what one run computes in addition, such as a redistribution, is passed
over. Lines are left out if the runs have few in common, as those of different versions.
A tensor of unknown layout is paired only if it has the shape of its counterpart.
"""

from __future__ import annotations

from collections.abc import Hashable
from difflib import SequenceMatcher
from itertools import chain

import pandas as pd

from commtrace.schema import RESULT

_OF_CALL = ["step", "phase", "module", "module_call"]
_OF_TENSOR = ["step", "phase", "role", "module", "module_call", "name", "occurrence"]


def aligned(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of rows of two tables `tensors`, in the order of the first.

    Returns:
        Columns `left` and `right`: labels of rows.
    """
    pairs = list(chain(_named(left, right), _results(left, right)))
    table = pd.DataFrame(pairs, columns=["left", "right"], dtype="int64")
    order = left["order"].reindex(table["left"]).to_numpy()
    return table.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def _named(left: pd.DataFrame, right: pd.DataFrame) -> list[tuple[int, int]]:
    """Pair tensors that have a name: all but the results of operators."""
    sides = []
    for side in (left, right):
        own = side[side["role"] != RESULT]
        # Of tensors that each rank has for itself, the first rank's stands for all that are alike.
        sides.append(own.assign(label=own.index).drop_duplicates([*_OF_TENSOR, "shape"]))
    found = sides[0].merge(sides[1], on=[*_OF_TENSOR, "shape"], suffixes=("", "_right"), sort=False)
    return list(zip(found["label"], found["label_right"], strict=True))


def _results(left: pd.DataFrame, right: pd.DataFrame) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    by_line = _have_lines_in_common(left, right)
    theirs = _by_call(right, by_line=by_line)
    for call, own in _by_call(left, by_line=by_line).items():
        other = theirs.get(call)
        if other is not None:
            pairs += _in_order(own, other)
    return pairs


def _have_lines_in_common(left: pd.DataFrame, right: pd.DataFrame) -> bool:
    lines = [
        set(zip(side["source_function"], side["source_line"], strict=True))
        for side in (left[left["role"] == RESULT], right[right["role"] == RESULT])
    ]
    return 2 * len(lines[0] & lines[1]) >= min(map(len, lines))


Keyed = list[tuple[tuple[Hashable, ...], int]]
"""Operator, name, shape and line of each result of a module's call, with the label of its row."""


def _by_call(side: pd.DataFrame, *, by_line: bool) -> dict[Hashable, Keyed]:
    results = side[(side["role"] == RESULT) & (side["rank"].isin([-1, side["rank"].max()]))]
    # Overloads differ between runs, such as those with and without `out`.
    base = [op.rpartition(".")[0] for op in results["op"]]
    calls: dict[Hashable, Keyed] = {}
    for label, op, name, shape, line, *call in zip(
        results.index, base, results["name"], results["shape"], results["source_line"],
        *(results[column] for column in _OF_CALL), strict=True,
    ):  # fmt: skip
        key = (op, name, shape, line if by_line else -1)
        calls.setdefault(tuple(call), []).append((key, label))
    return calls


def _in_order(left: Keyed, right: Keyed) -> list[tuple[int, int]]:
    """Pair the longest runs of equal operators, in the order of both sides."""
    num_equal = _common_length(left, right)
    pairs = [(left[place][1], right[place][1]) for place in range(num_equal)]
    left, right = left[num_equal:], right[num_equal:]
    keys = [[key for key, _ in side] for side in (left, right)]
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs += [
            (left[block.a + place][1], right[block.b + place][1]) for place in range(block.size)
        ]
    return pairs


def _common_length(left: Keyed, right: Keyed) -> int:
    """Return the number of leading results that are alike, which spares most of the matching."""
    for place, (own, other) in enumerate(zip(left, right, strict=False)):
        if own[0] != other[0]:
            return place
    return min(len(left), len(right))
