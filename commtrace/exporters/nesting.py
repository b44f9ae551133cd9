"""Nested slices of a rank's thread: phase, modules by path, operators.

A module's slice lasts from the first to the last of consecutive operators in it. Slices are clipped
to their parents, because a coarse clock could otherwise make two of them overlap. Those deeper than
`MOST_DEPTH`, which no viewer shows, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.exporters.trace_events import MOST_DEPTH

_COLUMNS = ("start_ns", "duration_ns", "op", "level", "phase", "module", "module_class",
            "module_call", "parent")  # fmt: skip


@dataclass(slots=True)
class Slice:
    """One named interval; `args` holds its arguments."""

    start: int
    end: int
    name: str
    category: str
    args: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Content of the slice without its times."""
        return self.name, self.category, self.args


def host_slices(ops: pd.DataFrame, base: int) -> Iterator[Slice]:
    """Yield the slices of a thread's operators, with times relative to `base`.

    A parent does not necessarily precede its children.
    """
    ordered = ops.assign(minus=-ops["duration_ns"]).sort_values(
        ["start_ns", "minus", "id"], kind="stable"
    )
    around: list[tuple[str, Slice]] = []  # open phase and modules
    running: list[int] = []  # ends of open operators
    for start, duration, op, level, phase, module, of_class, number, _ in zip(
        *(ordered[name].tolist() for name in _COLUMNS), strict=True
    ):
        begin = start - base
        end = begin + max(duration, 0)
        while running and running[-1] <= begin:
            running.pop()
        if running:
            end = min(end, running[-1])
        else:
            yield from _entered(around, phase, module, of_class, number, begin)
            for _, each in around:
                each.end = max(each.end, end)
        running.append(end)
        if len(around) + len(running) > MOST_DEPTH:
            continue
        category = "op" if level != "dtensor" else "dtensor op"
        yield Slice(begin, end, op, category, (("module", module), ("level", level)))
    yield from (each for _, each in around)


def _entered(
    around: list[tuple[str, Slice]], phase: str, module: str, of_class: str, number: int, at: int
) -> Iterator[Slice]:
    """Close and yield the modules that an operator is not in, then open its own."""
    path = ([phase] if phase else []) + (module.split(".") if module else [])
    path = path[: MOST_DEPTH // 2]
    keys = [".".join(path[: depth + 1]) for depth in range(len(path))]
    if keys and module:
        keys[-1] += f" {number}"  # another call of the same module is another slice
    common = 0
    while common < min(len(around), len(keys)) and around[common][0] == keys[common]:
        common += 1
    yield from (each for _, each in around[common:])
    del around[common:]
    for depth in range(common, len(path)):
        is_last, is_phase = depth == len(path) - 1, bool(phase) and depth == 0
        args = (("class", of_class), ("call", number)) if is_last and module else ()
        category = "phase" if is_phase else "module"
        around.append((keys[depth], Slice(at, at, path[depth], category, args)))
