"""Exporter for speedscope (speedscope.app): time and bytes of communication by place.

Each rank has a weighted profile in order of time. A stack is phase, modules, operator and call,
weighted by the time for which the call blocked the rank. Another profile covers all ranks,
weighted by the bytes sent. Left-heavy and sandwich views then add up by place in the program. Calls
of unknown time or size have no weight; the name of the profile counts those that have a weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.notices import replayed_note
from commtrace.analyze.run.analysis import addable
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import PartialSum, partial_sum
from commtrace.atomic_write import atomic_write

SCHEMA = "https://www.speedscope.app/file-format-schema.json"

_PLACE = ["phase", "module", "op", "kind", "group", "source_file", "source_line"]


def write_speedscope(frames: Frames, path: Path) -> None:
    """Write the profiles to `path` in sequence."""
    listed = _DistinctFrames()
    with atomic_write(path) as unfinished, unfinished.open("w", encoding="utf-8") as stream:
        stream.write(f'{_dumped(_head(frames))[:-1]},"profiles":[')
        for number, profile in enumerate(_profiles(frames, listed)):
            stream.write(f"{',' if number else ''}{_dumped(profile)}")
        # The frames are known when all profiles are written.
        stream.write(f'],"shared":{_dumped({"frames": listed.frames})}}}')


def speedscope_document(frames: Frames) -> dict[str, Any]:
    """Return the document, following speedscope's schema."""
    listed = _DistinctFrames()
    profiles = list(_profiles(frames, listed))
    return _head(frames) | {"profiles": profiles, "shared": {"frames": listed.frames}}


def _head(frames: Frames) -> dict[str, Any]:
    name = str(frames.run.get("command") or frames.path or "commtrace")
    return {
        "$schema": SCHEMA,
        "name": " ".join(filter(None, [name, replayed_note(frames)])),
        "activeProfileIndex": 0,
        "exporter": "commtrace",
    }


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _profiles(frames: Frames, listed: _DistinctFrames) -> Iterator[dict[str, Any]]:
    """Yield the profile of each rank, then of all ranks; their frames are added to `listed`."""
    sent: dict[int, int] = {}
    known = PartialSum(0.0, 0, 0)
    for part in frames.parts_by_ranks():
        comm = part.comm[[*_PLACE, "rank", "issue_ns", "blocked_ns", "wire_bytes"]]
        comm = comm.assign(stack=_stacks(part, listed))
        for rank, of_rank in comm.sort_values(["rank", "issue_ns"], kind="stable").groupby("rank"):
            blocked = of_rank["blocked_ns"]
            numbers, weights = _runs(of_rank["stack"], blocked.clip(lower=0))
            name = f"rank {rank}: time blocked{_note(partial_sum(blocked))}"
            yield _profile(name, "nanoseconds", numbers, weights, listed.stacks)
        of_part = addable(comm["wire_bytes"].clip(lower=0)).groupby(comm["stack"]).sum()
        for number, weight in zip(of_part.index.tolist(), of_part.tolist(), strict=True):
            sent[number] = sent.get(number, 0) + weight
        known += partial_sum(comm["wire_bytes"])
    numbers = sorted(sent)
    weights = np.array([sent[number] for number in numbers], dtype=object)
    name = f"all ranks: bytes sent{_note(known)}"
    yield _profile(name, "bytes", np.array(numbers, dtype="int64"), weights, listed.stacks)


def _note(values: PartialSum) -> str:
    """Return the number of calls that a profile covers, behind a comma; empty if it covers all."""
    return f", {values.note}" if values.note else ""


class _DistinctFrames:
    """Distinct frames, and stacks of their numbers, outermost first."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.stacks: list[list[int]] = []
        self._numbers: dict[tuple[str, str, int], int] = {}
        self.numbers_of_places: dict[tuple[Any, ...], int] = {}

    def number(self, name: str, file: str = "", line: int = -1) -> int:
        """Return the number of a frame, adding it if it is new."""
        key = name, file, line
        if key not in self._numbers:
            self._numbers[key] = len(self.frames)
            where: dict[str, Any] = {"file": file} if file else {}
            where |= {"line": line} if file and line >= 0 else {}
            self.frames.append({"name": name, **where})
        return self._numbers[key]


def _stacks(frames: Frames, listed: _DistinctFrames) -> np.ndarray:
    """Return the number of each call's stack; stacks that are new are added to `listed`."""
    comm = frames.comm
    axes = frames.groups.set_index("name")["mesh_axis"].astype(object).to_dict()
    plain = comm[_PLACE].astype(
        {name: object for name in _PLACE if isinstance(comm[name].dtype, pd.CategoricalDtype)}
    )
    numbers = plain.groupby(_PLACE, sort=False).ngroup().to_numpy()
    firsts = np.sort(np.unique(numbers, return_index=True)[1]) if len(numbers) else []
    known = listed.numbers_of_places
    of_all: list[int] = []
    for place in plain.iloc[firsts].itertuples(index=False, name=None):
        is_new = place not in known
        of_all.append(known.setdefault(place, len(known)))
        if not is_new:
            continue
        phase, module, op, kind, group, file, line = place
        paths = module.split(".") if module else []
        axis = axes.get(group, "")
        names = [phase or "no phase", *paths, *([op] if op else [])]
        call = listed.number(f"{kind} {axis}" if axis else str(kind), file, int(line))
        listed.stacks.append([*(listed.number(name) for name in names), call])
    return np.array(of_all, dtype="int64")[numbers] if len(numbers) else numbers


def _runs(numbers: pd.Series, weights: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Merge consecutive equal numbers of stacks, after dropping those without weight."""
    number, weight = numbers.to_numpy(), weights.to_numpy()
    number, weight = number[weight > 0], weight[weight > 0]
    if not len(number):
        return number, weight
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    return number[starts], np.add.reduceat(weight, starts)


def _profile(
    name: str, unit: str, numbers: np.ndarray, weights: np.ndarray, stacks: list[list[int]]
) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": int(weights.sum()),
        "samples": [stacks[number] for number in numbers.tolist()],
        "weights": weights.tolist(),
    }
