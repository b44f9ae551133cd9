"""Second computation of the tables and the finding of all-to-alls with splits."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tests.commtrace.analyze.second.run import Run

_ITEM = {"float32": 4, "int64": 8}
_WAYS = {0: "", 1: "dispatch", 2: "combine"}


def _list(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _fitting(run: Run, call: Any, text: str) -> list[int]:
    numbers = _list(text)
    return numbers if len(numbers) == len(run.members(call.group)) else []


def _width(call: Any) -> int:
    """Size of a row; 0 if unknown."""
    if not call.input_shapes or call.dtype not in _ITEM:
        return 0
    _, *others = _list(call.input_shapes.strip("[]"))
    return math.prod(others) * _ITEM[call.dtype]


def _exchanges(run: Run) -> list[Any]:
    return [call for call in run.comm if call.kind == "all_to_all" and call.input_splits]


def _ways(run: Run) -> dict[tuple[int, int], int]:
    """Direction of each call: a later call of the step that returns the rows makes a pair."""
    found: dict[tuple[int, int], int] = {}
    calls = sorted(_exchanges(run), key=lambda call: call.id)
    for place, call in enumerate(calls):
        if not call.output_splits or (call.rank, call.id) in found:
            continue
        for other in calls[place + 1 :]:
            same = ("rank", "group", "step", "dtype")
            is_back = (other.input_splits, other.output_splits) == (
                call.output_splits,
                call.input_splits,
            )
            is_open = (other.rank, other.id) not in found
            if is_back and is_open and all(getattr(other, n) == getattr(call, n) for n in same):
                found[call.rank, call.id], found[other.rank, other.id] = 1, 2
                break
    return found


def _place(call: Any, way: int) -> dict[str, Any]:
    names = ("group", "module", "phase", "source_file", "source_line", "step")
    return {name: getattr(call, name) for name in names} | {"direction": _WAYS[way]}


def _summed(
    rows: list[tuple[dict[str, Any], int, int]], run: Run, name: str
) -> list[dict[str, Any]]:
    """Sum the bytes and rows of equal keys; rows that are unknown make the sum unknown."""
    sums: dict[Any, list[Any]] = {}
    for key, size, width in rows:
        cell = sums.setdefault(tuple(key.items()), [0, 0, 0])
        cell[0] += size
        cell[1] += 0 if not size else size // width if width else math.nan
        cell[2] += 1
    return [
        dict(key)
        | {"mesh_axis": run.axis(dict(key)["group"]), name: size, "num_calls": num}
        | {"num_rows": -1 if math.isnan(rows) else rows}
        for key, (size, rows, num) in sums.items()
    ]


def all_to_all_splits(run: Run) -> list[dict[str, Any]]:
    """Every part of every call, added to the cell of its source and target."""
    ways, rows = _ways(run), []
    for call in _exchanges(run):
        parts = _fitting(run, call, call.input_splits)
        for target, size in zip(run.members(call.group), parts, strict=False):
            key = _place(call, ways.get((call.rank, call.id), 0))
            rows.append((key | {"source": call.rank, "target": target}, size, _width(call)))
    return _summed(rows, run, "sent_bytes")


def _experts(run: Run, call: Any) -> list[int]:
    """Rows to each expert, if they add up to the splits."""
    rows, parts = _list(call.expert_rows), _fitting(run, call, call.input_splits)
    if not rows or not parts or not _width(call):
        return []
    each = math.ceil(len(rows) / len(parts))
    sums = [sum(rows[at * each : (at + 1) * each]) * _width(call) for at in range(len(parts))]
    return rows if sums == parts else []


def _used(run: Run) -> list[Any]:
    """All-to-alls whose amounts depend on data."""
    return [
        call
        for call in _exchanges(run)
        if "[" not in call.source_spec
        and not call.dtype.startswith("int")
        and _fitting(run, call, call.input_splits)
    ]


def expert_load(run: Run) -> list[dict[str, Any]]:
    """Every part of every call to experts, added to its expert, or to its rank."""
    ways = _ways(run)
    calls = [call for call in _used(run) if ways.get((call.rank, call.id), 0) != 2]

    def key_of(call: Any) -> dict[str, Any]:
        return _place(call, ways.get((call.rank, call.id), 0))

    lacking = [key_of(call) for call in calls if not _experts(run, call)]
    rows = []
    for call in calls:
        key, members = key_of(call), run.members(call.group)
        width = _width(call)
        if key in lacking:
            parts = _fitting(run, call, call.input_splits)
            loads = [(rank, -1, size) for rank, size in zip(members, parts, strict=True)]
        else:
            experts = _experts(run, call)
            each = math.ceil(len(experts) / len(members))
            loads = [(members[at // each], at, num * width) for at, num in enumerate(experts)]
        for rank, expert, size in loads:
            rows.append((key | {"rank": rank, "expert": expert}, size, width))
    found = _summed(rows, run, "load_bytes")
    for row in found:
        same = [
            other["load_bytes"]
            for other in found
            if all(other[name] == row[name] for name in key_of(calls[0]))
        ]
        mean = sum(same) / len(same)
        row["ratio"] = row["load_bytes"] / mean if mean else math.nan
    return found


def imbalance(run: Run) -> list[tuple[list[Any], float, str]]:
    """Hot ranks and experts that are so in all of the steps; the traces here have no others."""
    ways = _ways(run)
    numbered: dict[tuple[str, int], list[Any]] = {}
    for call in _used(run):
        numbered.setdefault((call.group, call.seq), []).append(call)
    loads: dict[Any, dict[int, Any]] = {}
    of_place: dict[Any, list[Any]] = {}
    for (group, _), calls in numbered.items():
        members = run.members(group)
        if sorted(call.rank for call in calls) != members:
            continue
        calls.sort(key=lambda call: call.rank)
        way = Counter(ways.get((call.rank, call.id), 0) for call in calls).most_common(1)[0][0]
        sent = [_fitting(run, call, call.input_splits) for call in calls]
        arrived = [sum(own[at] for own in sent) for at in range(len(members))]
        load = [sum(own) for own in sent] if way == 2 else arrived
        experts = [_experts(run, call) for call in calls]
        of_experts = (
            [sum(each) * _width(calls[0]) for each in zip(*experts, strict=True)]
            if all(experts)
            else []
        )
        first = calls[0]
        place = (group, first.module, first.phase, first.source_line, way)
        of_place.setdefault(place, []).extend(calls)
        cells = loads.setdefault(place, {})
        before = cells.setdefault(first.step, ([0] * len(load), [0] * len(of_experts)))
        cells[first.step] = (
            [a + b for a, b in zip(before[0], load, strict=True)],
            [a + b for a, b in zip(before[1], of_experts, strict=False)],
        )
    return _findings(run, loads, of_place)


def _findings(run: Run, loads: Any, of_place: Any) -> list[tuple[list[Any], float, str]]:
    hot: dict[tuple[str, str, int], set[int]] = {}
    places: dict[tuple[str, str, int], list[Any]] = {}
    for place, steps in loads.items():
        for rank in _always_high([load for load, _ in steps.values()]):
            key = (place[0], place[1], rank)
            places.setdefault(key, []).append(place)
            experts = [each for _, each in steps.values()]
            of_rank = [e for e in _always_high(experts) if all(experts) and e // 2 == rank]
            hot.setdefault(key, set()).update(of_rank)
    found = []
    for (group, module, rank), own in places.items():
        calls = [call for place in own for call in of_place[place]]
        for _ in range(max(len(hot[group, module, rank]), 1)):
            found.append((calls, 0.0, module))
    return found


def _always_high(steps: list[list[int]]) -> list[int]:
    """Columns whose sum is 1.5 times the mean, and 1.25 in most steps."""
    if not steps or not steps[0]:
        return []
    sums = [sum(column) for column in zip(*steps, strict=True)]
    mean = sum(sums) / len(sums)
    found = []
    for at, total in enumerate(sums):
        often = [step[at] >= 1.25 * sum(step) / len(step) for step in steps]
        if total >= 1.5 * mean and sum(often) >= 0.6 * len(often):
            found.append(at)
    return found
