"""Flow of data: which tensors were computed from which, as a run says it.

What a tensor was computed from is recorded (column `inputs`): by storage, or by autograd's graph.
On the way back, the gradient of an output leads to those of the outputs that this was computed
from, and to the gradients of the module's parameters; a loss leads to all gradients of its backward
pass; and a gradient to what the optimizer leaves, and to the module's next outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import cached_per_run
from commtrace.analyze.frame import Frames, joined
from commtrace.analyze.values.global_values import parts
from commtrace.schema import (
    GRADIENT,
    LOCAL_GRADIENT,
    LOSS,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    RESULT,
    STATE,
    UNCLIPPED,
    UPDATED,
)

_COLUMNS = ["rank", "id", "step", "role", "module", "module_call", "name", "inputs", "at_ns"]
_TEXTS = dict.fromkeys(("role", "module", "name", "inputs"), str)
_GRADIENTS = (UNCLIPPED, GRADIENT)
_LEFT_BY_OPTIMIZERS = (UPDATED, STATE)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Rows of table `fingerprints`, by place, with the places of those they were computed from.

    Attributes:
        sources: by row.
        is_known: the run says what tensors were computed from.
        num_calls: calls of communication that the rank issued before each row.
    """

    sources: list[list[int]]
    is_known: bool
    num_calls: np.ndarray


class Flow:
    """Flow of data in a run.

    Attributes:
        rows: rank, id, step, role and name of each row of table `fingerprints`, by rank and time.
        tensor: number of its tensor in `parts`; -1 of none.
    """

    def __init__(self, run: Frames) -> None:
        rows = joined(run.by_ranks(_rows)).sort_values(["rank", "id"], kind="stable")
        self.rows = rows.reset_index(drop=True)
        table = parts(run)[["rank", "id", "tensor"]]
        numbered = self.rows[["rank", "id"]].merge(table, how="left", on=["rank", "id"])
        self.tensor = numbered["tensor"].fillna(-1).to_numpy("int64")
        self._edges = _edges(self.rows, run)

    @property
    def is_known(self) -> bool:
        """True if the run says what tensors were computed from."""
        return self._edges.is_known

    @cached_property
    def _following(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self._edges.sources]
        for target, sources in enumerate(self._edges.sources):
            for source in sources:
                found[source].append(target)
        return found

    def lead_to(
        self, asked: Set[int], right: Set[int], wrong: Set[int], right_rows: Collection[int]
    ) -> set[int]:
        """Return which tensors a right one was computed from.

        Args:
            asked: the tensors in question.
            right: tensors that are right.
            wrong: tensors that are wrong for certain, through which a right one shows nothing.
            right_rows: places of more rows that are right.
        """
        tensors = self.tensor.tolist()
        is_right = [number in right for number in tensors]
        for place in right_rows:
            is_right[place] = True
        leads = [False] * len(tensors)
        following = self._following
        # A module that returns what another one does has its gradient observed after that one's.
        for _ in range(2):
            for place in range(len(tensors) - 1, -1, -1):
                leads[place] = leads[place] or any(
                    is_right[target] or (leads[target] and tensors[target] not in wrong)
                    for target in following[place]
                )
        return {
            number for number, each in zip(tensors, leads, strict=True) if each and number in asked
        }

    def sources(self, tensor: int, among: Set[int]) -> set[int]:
        """Return those of some tensors that a tensor was computed from, through others of them."""
        waiting = np.flatnonzero(self.tensor == tensor).tolist()
        found: set[int] = set()
        while waiting:
            for source in self._edges.sources[waiting.pop()]:
                number = int(self.tensor[source])
                if number in among and number not in found:
                    found.add(number)
                    waiting.append(source)
        return found

    def following_alone(self, begin: Set[int], among: Set[int]) -> set[int]:
        """Return which tensors a rank computed from some of its own, without communication.

        Args:
            begin: the tensors that it computed from.
            among: tensors through which this is followed.
        """
        tensors, num_calls = self.tensor.tolist(), self._edges.num_calls
        follows = [number in begin for number in tensors]
        for place, sources in enumerate(self._edges.sources):
            if not follows[place] and tensors[place] in among:
                follows[place] = any(
                    follows[source] and num_calls[source] == num_calls[place] for source in sources
                )
        return {number for number, each in zip(tensors, follows, strict=True) if each}


@cached_per_run
def flow_of(run: Frames) -> Flow:
    """Return the flow of data in a run."""
    return Flow(run)


def _rows(part: Frames) -> pd.DataFrame:
    return part.fingerprints[_COLUMNS].astype(_TEXTS)


def _edges(rows: pd.DataFrame, run: Frames) -> _Edges:
    found: list[list[int]] = [[] for _ in range(len(rows))]
    num_calls = np.zeros(len(rows), dtype="int64")
    comm = run.comm
    for rank, own in rows.groupby("rank", sort=False):
        first = int(own.index[0])
        for source, target in _of_rank(own):
            found[first + target].append(first + source)
        issued = np.sort(comm.loc[comm["rank"] == rank, "issue_ns"].to_numpy())
        num_calls[own.index] = np.searchsorted(issued, own["at_ns"].to_numpy())
    return _Edges(found, bool((rows["inputs"] != "").any()), num_calls)


def _of_rank(rows: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield the places of a tensor and of one that was computed from it, of one rank."""
    sources_of: list[list[int]] = []
    by_call: dict[Any, int] = {}
    of_output: dict[int, int] = {}
    of_module: defaultdict[str, dict[str, int]] = defaultdict(dict)
    """The latest values of its parameters, and gradients of its outputs."""
    reduced: dict[str, int] = {}
    local: dict[str, int] = {}
    loss = latest_output = -1
    has_results = bool((rows["role"] == RESULT).any())
    place_of = {number: place for place, number in enumerate(rows["id"].tolist())}
    numbers = rows["id"].tolist()
    columns = [rows[name].tolist() for name in _COLUMNS[2:-1]]
    for place, (step, role, module, call, name, inputs) in enumerate(zip(*columns, strict=True)):
        given = (int(each) for each in inputs.split(",") if each.isascii() and each.isdigit())
        earlier = (place_of.get(numbers[place] - each, place) for each in given)
        sources = [each for each in earlier if each < place]
        sources_of.append(sources)
        this = (step, module, call, name)
        if role == LOSS:
            loss = place
        elif role == OUTPUT:
            by_call[this] = place
            # Without gradients, autograd has no graph.
            if not sources and latest_output >= 0 and not has_results:
                sources.append(latest_output)
            latest_output = place
            sources += of_module[f"values {module}"].values()
        elif role == OUTPUT_GRADIENT:
            if this in by_call:
                of_output[by_call[this]] = place
            of_module[f"gradients {module}"][f"{call} {name}"] = place
        elif role == LOCAL_GRADIENT:
            sources += [*of_module[f"gradients {module}"].values(), *[loss] * (loss >= 0)]
            local[name] = place
        elif role in _GRADIENTS:
            sources += of_module[f"gradients {module}"].values()
            sources += [local[name]] if name in local else []
            reduced[name] = of_module[f"values {module}"][f"gradient {name}"] = place
        elif role in _LEFT_BY_OPTIMIZERS:
            owner = name if role == UPDATED else name.rpartition(".")[0]
            sources += [reduced[owner]] if owner in reduced else []
            of_module.pop(f"gradients {module}", None)
        if role in (PARAMETER, UPDATED):
            of_module[f"values {module}"][name] = place
        for source in sources:
            yield source, place
    for output, gradient in of_output.items():
        for source in sources_of[output]:
            if source in of_output:
                yield gradient, of_output[source]
