"""Writers of what operators have read, in the steps whose operators have details (`ops.needs`).

    call <── operator <── operator        origins: back from what was read
    call ──> operator ──> operator        uses: on to what has read it

Without details, as in most steps of a long run, it is unknown what an operator has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames

_NONE = np.zeros(0, dtype="int64")


def name_of(op: str) -> str:
    """Return the name of an operator without namespace and overload.

    >>> name_of("aten.add_.Tensor")
    'add_'
    """
    return op.split(".")[1] if "." in op else op


@cached_per_run
def reads(part: Frames) -> pd.DataFrame:
    """Return a row per operator of a part and writer of what it has read.

    Columns are `rank` and `op`, the reader's id; and `source`, the id of the operator or, if
    `is_call`, of the call that last wrote it.
    """
    ops = part.ops[["rank", "id", "start_ns", "needs"]]
    ops = ops[ops["needs"] != ""]
    texts = ops["needs"].astype(object).str.split(",")
    each = texts.explode().astype(str)
    is_call = each.str.startswith("c").to_numpy(dtype=bool)
    back = each.str.removeprefix("c").astype("int64").to_numpy()
    counted_from = np.where(is_call, _latest_calls(part, ops)[each.index], ops["id"][each.index])
    found = ops[["rank", "id"]].loc[each.index].rename(columns={"id": "op"})
    found = found.assign(source=counted_from - back, is_call=is_call)
    return found[found["source"] >= 0].reset_index(drop=True)


def _latest_calls(part: Frames, ops: pd.DataFrame) -> pd.Series:
    """Return the id of the last call that the rank had issued when each operator began; else -1."""
    calls = part.comm.loc[part.comm["issue_ns"] >= 0, ["rank", "id", "issue_ns"]]
    calls = calls.rename(columns={"id": "latest", "issue_ns": "start_ns"})
    began = ops[["rank", "start_ns"]].assign(row=ops.index)
    both = pd.merge_asof(
        began.sort_values("start_ns"), calls.sort_values("start_ns"), on="start_ns", by="rank"
    ).set_index("row")
    return both["latest"].fillna(-1).astype("int64").reindex(ops.index)


class Details:
    """Operators of a part of a run that have details, by rank and id, with what they have read.

    Args:
        part: A part with all rows of some ranks.
    """

    def __init__(self, part: Frames) -> None:
        self._part = part
        self._ops = part.ops[part.ops["bytes"] >= 0]
        self._starts: dict[tuple[str, str], dict[int, np.ndarray]] = {}
        self._place = pd.MultiIndex.from_frame(self._ops[["rank", "id"]])

    def has(self, rank: int, op: int) -> bool:
        """Return whether an operator was recorded with details."""
        return self._place_of(rank, op) >= 0

    def name(self, rank: int, op: int) -> str:
        """Return the name of an operator, without its namespace; empty if it is unknown."""
        place = self._place_of(rank, op)
        return name_of(str(self._ops["op"].iloc[place])) if place >= 0 else ""

    def phase(self, rank: int, op: int) -> str:
        """Return the phase of an operator; empty if it is unknown."""
        place = self._place_of(rank, op)
        return str(self._ops["phase"].iloc[place]) if place >= 0 else ""

    def start_ns(self, rank: int, op: int) -> int:
        """Return when an operator started; -1 if it is unknown."""
        place = self._place_of(rank, op)
        return int(self._ops["start_ns"].iloc[place]) if place >= 0 else -1

    def sources(self, rank: int, op: int) -> Iterator[tuple[bool, int]]:
        """Yield what an operator has read: is it of a call, and the id of the call or operator."""
        table = reads(self._part)
        for row in self._read_by.get((rank, op), ()):
            yield bool(table["is_call"].iloc[row]), int(table["source"].iloc[row])

    def users(self, rank: int, source: int, *, is_call: bool) -> Collection[int]:
        """Return the operators that have read what a call or an operator last wrote."""
        rows = self._users.get((rank, source, is_call), ())
        return set(reads(self._part)["op"].iloc[list(rows)].tolist())

    def starts_ns(self, rank: int, phase: str, op: str = "") -> np.ndarray:
        """Return the starts of a rank's operators of a phase in order, of all or of a full name."""
        if (phase, op) not in self._starts:
            ops = self._part.ops[self._part.ops["phase"] == phase]
            starts = (ops[ops["op"] == op] if op else ops)["start_ns"]
            found = {int(str(rank)): np.sort(own) for rank, own in starts.groupby(ops["rank"])}
            self._starts[phase, op] = found
        return self._starts[phase, op].get(rank, _NONE)

    def _place_of(self, rank: int, op: int) -> int:
        try:
            return int(self._place.get_loc((rank, op)))  # type: ignore[arg-type] - it is unique
        except KeyError:
            return -1

    @cached_property
    def _read_by(self) -> dict[tuple[int, int], np.ndarray]:
        return dict(reads(self._part).groupby(["rank", "op"]).indices)  # type: ignore[arg-type]

    @cached_property
    def _users(self) -> dict[tuple[int, int, bool], np.ndarray]:
        by = ["rank", "source", "is_call"]
        return dict(reads(self._part).groupby(by).indices)  # type: ignore[arg-type]
