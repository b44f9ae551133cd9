"""Flow of data between the observed tensors of a run.

The sources of a tensor are recorded (column `inputs`): by storage, or by autograd's graph. In the
backward pass, the gradient of an output leads to the gradients of its sources and of the module's
parameters. A loss leads to all gradients of its backward pass, and a gradient to the updated
parameter and the module's next outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Set
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, joined
from commtrace.analyze.values.global_values import parts
from commtrace.schema import (
    GRADIENT,
    INPUT,
    LOCAL_GRADIENT,
    LOSS,
    OUTPUT,
    OUTPUT_GRADIENT,
    PARAMETER,
    PHASES,
    RESULT,
    STATE,
    UNCLIPPED,
    UPDATED,
)

_COLUMNS = [
    "rank", "id", "step", "role", "module", "module_call", "name", "inputs", "at_ns", "phase",
]  # fmt: skip
_TEXTS = dict.fromkeys(("role", "module", "name", "inputs", "phase"), str)
_GRADIENTS = (UNCLIPPED, GRADIENT)
_LEFT_BY_OPTIMIZERS = (UPDATED, STATE)
_FORWARD = PHASES[0]
_MOST_FOLLOWED = 4096


class Flow:
    """Flow of data in a run.

    Attributes:
        rows: rank, id, step, role and name of each row of table `fingerprints`, by rank and time.
        tensor: number of its tensor in `parts`, or -1.
        is_known: the run states the sources of its tensors.
    """

    def __init__(self, run: Frames) -> None:
        rows = joined(run.by_ranks(_rows)).sort_values(["rank", "id"], kind="stable")
        self.rows = rows.reset_index(drop=True)
        table = parts(run)[["rank", "id", "tensor"]]
        numbered = self.rows[["rank", "id"]].merge(table, how="left", on=["rank", "id"])
        self.tensor = numbered["tensor"].fillna(-1).to_numpy("int64")
        self.is_known = bool((self.rows["inputs"] != "").any())
        self._sources: list[list[int]] = [[] for _ in range(len(self.rows))]
        # Calls of communication that a rank issued before each row.
        self._num_calls = np.zeros(len(self.rows), dtype="int64")
        for rank, own in self.rows.groupby("rank", sort=False):
            first = int(own.index[0])
            for source, target in _of_rank(own):
                self._sources[first + target].append(first + source)
            issued = np.sort(run.comm.loc[run.comm["rank"] == rank, "issue_ns"].to_numpy())
            self._num_calls[own.index] = np.searchsorted(issued, own["at_ns"].to_numpy())

    @cached_property
    def _following(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self._sources]
        for target, sources in enumerate(self._sources):
            for source in sources:
                found[source].append(target)
        return found

    def lead_to(
        self,
        asked: Set[int],
        right: Set[int],
        blocked: Set[int],
        right_rows: Collection[int] = (),
        blocked_rows: Collection[int] = (),
    ) -> set[int]:
        """Return the tensors that lead to a right tensor.

        Args:
            asked: the tensors in question.
            right: tensors that are right.
            blocked: tensors through which a right tensor shows nothing, such as wrong tensors.
            right_rows: places of more rows that are right.
            blocked_rows: places of more rows through which a right tensor shows nothing.
        """
        tensors = self.tensor.tolist()
        is_right = [number in right for number in tensors]
        leads_on = [number not in blocked for number in tensors]
        for place in right_rows:
            is_right[place] = True
        for place in blocked_rows:
            leads_on[place] = False
        leads = [False] * len(tensors)
        following = self._following
        # A module that returns what another one does has its gradient observed after that one's.
        for _ in range(2):
            for place in range(len(tensors) - 1, -1, -1):
                leads[place] = leads[place] or any(
                    is_right[target] or (leads[target] and leads_on[target])
                    for target in following[place]
                )
        return {
            number for number, each in zip(tensors, leads, strict=True) if each and number in asked
        }

    def sources_alone(self, tensors: Set[int], among: Set[int], blocked: Set[int]) -> set[int]:
        """Return the sources of tensors that are in `among`, without communication since.

        Sources of sources of the same phase count, too, but for those that are in `blocked`.
        """
        waiting = np.flatnonzero(np.isin(self.tensor, [*tensors])).tolist()
        # A gradient is reduced after the rank's own backward pass has computed it.
        waiting += [
            source
            for place in waiting
            for source in self._sources[place]
            if self._roles[source] == LOCAL_GRADIENT
        ]
        phases = self.rows["phase"].tolist()
        found, seen = set[int](), {*waiting}
        while waiting:
            place = waiting.pop()
            for source in self._alone(place):
                number = int(self.tensor[source])
                if source in seen or number in blocked or phases[source] != phases[place]:
                    continue
                seen.add(source)
                waiting.append(source)
                if number in among:
                    found.add(number)
        return found

    def following_alone(self, begin: Set[int], among: Set[int]) -> set[int]:
        """Return the tensors that a rank computed from some of its own, without communication.

        Args:
            begin: these tensors.
            among: tensors through which this is followed.
        """
        tensors = self.tensor.tolist()
        follows = [number in begin for number in tensors]
        for place, number in enumerate(tensors):
            if not follows[place] and number in among:
                follows[place] = any(follows[source] for source in self._alone(place))
        return {number for number, each in zip(tensors, follows, strict=True) if each}

    def shows_call(
        self, module: str, phase: str, issue_ns: int, right: Set[int], in_parts: Set[int]
    ) -> bool:
        """Return whether a right tensor was computed from the result of a call of the first rank.

        It follows from the last tensor of the module before the call, and is seen after it. Sums
        and norms of parts show the places of elements only if these were combined with others.

        Args:
            module: where the call is issued.
            phase: its phase.
            issue_ns: when it is issued.
            right: tensors that are right.
            in_parts: tensors that are right in parts.
        """
        own = self._of_first_rank
        own = own[(own["phase"] == phase) & (own["at_ns"] <= issue_ns)]
        is_there = (own["module"] == module) | own["module"].str.startswith(f"{module}.")
        before = own.index[is_there & bool(module)]
        waiting, seen = [int(before[-1])] if len(before) else [], set[int]()
        times, modules, begin = self._times, self._modules, {*waiting}
        parts = list[int]()
        while waiting and len(seen) < _MOST_FOLLOWED:
            for place in self._following[waiting.pop()]:
                if place in seen:
                    continue
                seen.add(place)
                is_behind = times[place] > issue_ns and not modules[place].startswith(f"{module}.")
                is_behind &= modules[place] != module or phase == _FORWARD
                if is_behind and int(self.tensor[place]) in right:
                    return True
                if is_behind and int(self.tensor[place]) in in_parts:
                    parts.append(place)
                waiting.append(place)
        # Parameters and masks have the same elements in all places, or belong to these.
        others = (each for place in parts for each in self._sources[place])
        return any(
            self._roles[each] in (INPUT, OUTPUT, OUTPUT_GRADIENT)
            for each in others
            if each not in seen | begin
        )

    @cached_property
    def _of_first_rank(self) -> pd.DataFrame:
        is_passed_on = self.rows["role"].isin((INPUT, OUTPUT, OUTPUT_GRADIENT, RESULT))
        return self.rows[(self.rows["rank"] == self.rows["rank"].min()) & is_passed_on]

    @cached_property
    def _times(self) -> list[int]:
        return self.rows["at_ns"].tolist()

    @cached_property
    def _roles(self) -> list[str]:
        return self.rows["role"].tolist()

    @cached_property
    def _modules(self) -> list[str]:
        return self.rows["module"].tolist()

    def _alone(self, place: int) -> Iterator[int]:
        """Yield the sources of a row since which its rank has not communicated."""
        num_calls = self._num_calls
        return (each for each in self._sources[place] if num_calls[each] == num_calls[place])


@cached_per_run
def flow_of(run: Frames) -> Flow:
    """Return the flow of data in a run."""
    return Flow(run)


def _rows(part: Frames) -> pd.DataFrame:
    return part.fingerprints[_COLUMNS].astype(_TEXTS)


def _of_rank(rows: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield the places of each source and of a tensor computed from it, on a single rank."""
    sources_of: list[list[int]] = []
    by_call: dict[Any, int] = {}
    of_output: dict[int, int] = {}
    of_module: defaultdict[str, dict[str, int]] = defaultdict(dict)
    """The latest values of its parameters, and gradients of its outputs."""
    reduced: dict[str, int] = {}
    local: dict[str, int] = {}
    loss = -1
    outputs: list[int] = []
    """Outputs of a call of the outermost module, as far as it has come."""
    has_graph = has_results = bool((rows["role"] == RESULT).any())
    place_of = {number: place for place, number in enumerate(rows["id"].tolist())}
    numbers = rows["id"].tolist()
    columns = [rows[name].tolist() for name in _COLUMNS[2:-2]]
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
            outputs.append(place)
            has_graph |= bool(sources)
            if not module:
                # Without gradients, autograd has no graph.
                yield from () if has_graph else pairwise(outputs)
                outputs, has_graph = [], has_results
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
    yield from () if has_graph else pairwise(outputs)
    for output, gradient in of_output.items():
        for source in sources_of[output]:
            if source in of_output:
                yield gradient, of_output[source]
