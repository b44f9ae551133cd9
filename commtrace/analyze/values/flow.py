"""Flow of data: whether what was computed from a wrong tensor is right.

A tensor of unknown layout that differs may be a part of one. If a tensor that was computed from it
is right, that is what it was. What was computed from it is recorded (column `inputs`); on the way
back, the gradient of an output leads to those of the outputs that this was computed from, and to
the gradients of the module's parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import cached_per_run
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.values.global_values import parts
from commtrace.schema import (
    GRADIENT,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    STATE,
    UNCLIPPED,
    UPDATED,
)

_COLUMNS = ["rank", "id", "step", "role", "module", "module_call", "name", "inputs"]
_GRADIENTS = (UNCLIPPED, GRADIENT)
_LEFT_BY_OPTIMIZERS = (UPDATED, STATE)
Edges = Mapping[tuple[int, int], list[int]]
"""By rank and id of a row, the ids of rows that were computed from it."""


def _rows(part: Frames) -> pd.DataFrame:
    return part.fingerprints[_COLUMNS].astype(
        {"role": str, "module": str, "name": str, "inputs": str}
    )


@cached_per_run
def edges(run: Frames) -> Edges:
    """Return what was computed from each tensor; empty if the run does not say it."""
    rows = joined(run.by_ranks(_rows)).sort_values(["rank", "id"], kind="stable")
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    if not (rows["inputs"] != "").any():
        return found
    for rank, own in rows.groupby("rank", sort=False):
        for source, target in _of_rank(own):
            found[int(rank), source].append(target)
    return found


def _of_rank(rows: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield the ids of a tensor and of one that was computed from it, of one rank."""
    sources_of: dict[int, list[int]] = {}
    by_call: dict[Any, int] = {}
    """Outputs of a call of a module, which have gradients in the order of their names."""
    of_output: dict[int, int] = {}
    of_module: defaultdict[str, dict[str, int]] = defaultdict(dict)
    """The latest values of its parameters, and gradients of its outputs."""
    reduced: dict[str, int] = {}
    columns = [rows[name].tolist() for name in _COLUMNS[1:]]
    for number, step, role, module, module_call, name, inputs in zip(*columns, strict=True):
        given = [int(each) for each in inputs.split(",") if each.isascii() and each.isdigit()]
        sources = [number - each for each in given if 0 < each <= number]
        sources_of[number] = sources
        call = (step, module, module_call, name)
        if role == OUTPUT:
            by_call[call] = number
            sources += of_module[f"values {module}"].values()
        elif role == OUTPUT_GRADIENT:
            if call in by_call:
                of_output[by_call[call]] = number
            of_module[f"gradients {module}"][f"{module_call} {name}"] = number
        elif role in _GRADIENTS:
            sources += of_module[f"gradients {module}"].values()
            reduced[name] = number
            of_module[f"values {module}"][f"gradient {name}"] = number
        elif role in _LEFT_BY_OPTIMIZERS:
            owner = name if role == UPDATED else name.rpartition(".")[0]
            sources += [reduced[owner]] if owner in reduced else []
            of_module.pop(f"gradients {module}", None)
        if role in (PARAMETER, UPDATED):
            of_module[f"values {module}"][name] = number
        for source in sources:
            yield source, number
    for output, gradient in of_output.items():
        for source in sources_of[output]:
            if source in of_output:
                yield gradient, of_output[source]


def lead_to_right_ones(
    run: Frames, asked: Collection[int], right: Collection[int], wrong: Collection[int]
) -> set[int] | None:
    """Return which tensors a right one was computed from, by their numbers in `parts`.

    Args:
        run: the run.
        asked: the tensors in question.
        right: tensors that are right.
        wrong: tensors that are wrong for certain, through which a right one shows nothing.

    Returns:
        Their numbers; None if the run does not say what tensors were computed from.
    """
    following = edges(run)
    if not following:
        return None
    table = parts(run)
    state = np.zeros(len(table), dtype=np.int8)
    state[table["tensor"].isin(right).to_numpy()] = 1
    state[table["tensor"].isin(wrong).to_numpy()] = -1
    keys = list(zip(table["rank"].tolist(), table["id"].tolist(), strict=True))
    known = dict(zip(keys, state.tolist(), strict=True))
    leading: dict[tuple[int, int], bool] = {}
    for key in sorted({*following}, reverse=True):
        leading[key] = any(
            (verdict := known.get((key[0], target), 0)) > 0
            or (verdict == 0 and leading.get((key[0], target), False))
            for target in following[key]
        )
    is_asked = table["tensor"].isin(asked).to_numpy()
    tensors = table["tensor"].to_numpy()
    return {
        int(tensors[place]) for place in np.flatnonzero(is_asked) if leading.get(keys[place], False)
    }


def sources(run: Frames, tensor: int, among: Collection[int]) -> set[int]:
    """Return which tensors another one was computed from, directly or through others of them.

    Args:
        run: the run.
        tensor: number of the tensor in `parts`.
        among: numbers of those in question.
    """
    table = parts(run)
    keys = list(zip(table["rank"].tolist(), table["id"].tolist(), strict=True))
    tensor_of = dict(zip(keys, table["tensor"].tolist(), strict=True))
    before: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (rank, source), targets in edges(run).items():
        for target in targets:
            before.setdefault((rank, target), []).append((rank, source))
    waiting = [key for key in keys if tensor_of[key] == tensor]
    found: set[int] = set()
    while waiting:
        for source in before.get(waiting.pop(), ()):
            number = tensor_of.get(source, -1)
            if number in among and number not in found:
                found.add(number)
                waiting.append(source)
    return found
