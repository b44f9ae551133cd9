"""Work that runs beside calls, or could: the operators of the rank, or the kernels of its device.

The operator that runs for longest in the time that a call could be hidden behind, or was, is named
with its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.measures.device import on_device
from commtrace.analyze.overlap.overlap_lost.reasons import LOST
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMPUTE


def behind(part: Frames, calls: pd.DataFrame) -> pd.Series:
    """Name the operator that some of the `chances` could be hidden behind for longest.

    For a call that lost nothing, it ran while the call was in flight. The name is empty if nothing
    ran.
    """
    ops, kernels = part.ops, part.kernels
    ops = ops[(ops["parent"] < 0) & (ops["duration_ns"] > 0)]
    kernels = kernels[(kernels["category"] == COMPUTE) & (kernels["duration_ns"] > 0)]
    kernels = kernels.assign(module=pd.Categorical([""] * len(kernels)))
    work = {
        False: _by_rank(part, calls, ops, ops["op"].cat),
        True: _by_rank(part, calls, kernels, kernels["name"].cat),
    }
    is_on_device = on_device(part)[calls.index]
    names = [
        _longest(work[is_on].get(call["rank"]), call)
        for is_on, call in zip(is_on_device, calls.to_dict("records"), strict=True)
    ]
    return pd.Series(names, index=calls.index, dtype=object)


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of a rank in order of starts.

    Attributes:
        start: Starts, in ns since the start of the run.
        end: Ends, likewise.
        name: Number of the operator in `names`.
        module: Number of the module in `modules`.
        names: Operators.
        modules: Modules.
    """

    start: np.ndarray
    end: np.ndarray
    name: np.ndarray
    module: np.ndarray
    names: pd.Index
    modules: pd.Index

    def text(self, name: int, module: int) -> str:
        """Return the operator with its module."""
        path = str(self.modules[module]) if module >= 0 else ""
        return f"{self.names[name]} in {path}" if path else str(self.names[name])


def _by_rank(
    part: Frames, calls: pd.DataFrame, table: pd.DataFrame, names: Any
) -> Mapping[int, _Work]:
    """Return the work of the ranks that made the calls."""
    module = table["module"].cat
    columns = pd.DataFrame(
        {
            "rank": table["rank"],
            "start": table["start_ns"] - part.start_ns,
            "end": table["start_ns"] - part.start_ns + table["duration_ns"],
            "name": names.codes,
            "module": module.codes,
        }
    )
    columns = columns[columns["rank"].isin(calls["rank"].unique())].sort_values("start")
    return {
        int(str(rank)): _Work(
            rows["start"].to_numpy(),
            rows["end"].to_numpy(),
            rows["name"].to_numpy(),
            rows["module"].to_numpy(),
            names.categories,
            module.categories,
        )
        for rank, rows in columns.groupby("rank")
    }


def _longest(work: _Work | None, call: Mapping[Any, Any]) -> str:
    windows = [(call["ready"], call["issue"]), (call["end"], call["used"])]
    if call["reason"] not in LOST:
        windows = [(call["issue"], call["end"])]
    lasted: dict[tuple[int, int], float] = {}
    for first, last in windows:
        if work is None or not last > first:  # nan compares false
            continue
        begun = slice(int(np.searchsorted(work.start, last)))
        beside = np.flatnonzero(work.end[begun] > first)
        shares = np.minimum(work.end[beside], last) - np.maximum(work.start[beside], first)
        keys = zip(work.name[beside].tolist(), work.module[beside].tolist(), strict=True)
        for key, share in zip(keys, shares.tolist(), strict=True):
            lasted[key] = lasted.get(key, 0.0) + share
    if work is None or not lasted:
        return ""
    most = max(lasted.values())
    return min(work.text(*key) for key, share in lasted.items() if share == most)
