"""A change as it was asked for, a graph that is changed, and the calls that a change is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from commtrace.analyze.replay.draft import Draft, distinct
from commtrace.analyze.replay.prices import prices_of
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.run.select import hints, select
from commtrace.errors import UsageError
from commtrace.schema import COMM, Column

AXIS = Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group")


@dataclass(frozen=True, slots=True)
class Change:
    """A change.

    Attributes:
        text: As it was asked for.
        verb: Key of `VERBS`.
        factor: Factor; nan if there is none.
        amount: Latency in ns, or bandwidth in bytes/s; nan if there is none.
        where: Conditions.
        rows: Rows of table `comm` in place of conditions; None if these count.
    """

    text: str
    verb: str
    factor: float = float("nan")
    amount: float = float("nan")
    where: tuple[str, ...] = ()
    rows: np.ndarray | None = None


@dataclass
class Context:
    """A draft, and what the changes to it need.

    Attributes:
        run: The run.
        draft: The graph that is changed.
        latency_share: Place of the latency between its bounds, from 0 to 1, where it is unknown.
            With 0, nothing is assumed in favour of a change.
        is_bound: True once that part was needed, or the uses of results that are not known.
        changed: Rows of table `comm` that each change has changed.
        lacking: Rows of calls that a change left alone since the trace lacks what it needs.
        with_cores: Rows of calls whose threads no longer wait for a core.
        samples: Samples of a step, as a multiple of those recorded.
    """

    run: Frames
    draft: Draft
    latency_share: float
    is_bound: bool = False
    changed: list[np.ndarray] = field(default_factory=list)
    lacking: list[np.ndarray] = field(default_factory=list)
    with_cores: list[np.ndarray] = field(default_factory=list)
    samples: float = 1.0

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """The transfer of each call as changes have left it: `prices_of` without `transfer_ns`."""
        return prices_of(self.run).drop(columns="transfer_ns")


def rows_of(given: Context, change: Change) -> np.ndarray:
    """Return the rows of table `comm` that a change is about.

    Wait and transfer are not told apart where members of a call are missing, or clocks contradict
    each other. The truth lies between a change of all of the call's time and of nothing.
    """
    calls = given.draft.calls.index
    if change.rows is not None:
        rows = np.intersect1d(change.rows, calls.to_numpy())
    else:
        comm = given.run.comm.assign(mesh_axis=mesh_axes(given.run, given.run.comm["group"]))
        known = (*COMM, AXIS)
        found = select(comm, known, where=change.where, columns=["rank"]).index
        rows = found.intersection(calls).to_numpy()
        if not len(rows):
            is_apart = found.empty and len(change.where) > 1
            apart = "no call that meets all conditions" if is_apart else NO_TIMES
            hinted = hints(comm, known, change.where) or [apart]
            raise NothingNamedError(change, hinted, "table RUN calls")
    left = rows[~np.isin(rows, given.draft.removed)]
    if len(rows) and not len(left):
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="only calls that a change before it removes",
            why="a call that is removed has no time that could change",
            attempt="one of the two changes",
        )
    is_joined = given.draft.calls["is_joined"].loc[left].to_numpy(bool)
    if is_joined.all():
        return left
    given.is_bound = True
    given.lacking.append(left[~is_joined])
    return left if given.latency_share else left[is_joined]


NO_TIMES = "no call with known times"


class NothingNamedError(UsageError):
    """The conditions of a change name nothing in a table of the run.

    Attributes:
        change: The change.
    """

    def __init__(self, change: Change, found: Sequence[str], where: str) -> None:
        self.change = change
        super().__init__(
            f"the change {change.text!r} is of nothing in this run",
            found="; ".join(found),
            attempt=f"commtrace {where}, which lists what conditions can name",
        )


def with_members(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return calls with all members of their collectives, and both ends of their transfers."""
    match = given.draft.calls["match"]
    numbers, calls = match.to_numpy(), match.index.to_numpy()
    is_own = np.zeros(int(numbers.max(initial=-1)) + 2, dtype=bool)
    is_own[numbers[np.isin(calls, rows)]] = True
    is_own[-1] = False  # of no match
    return distinct(rows, calls[is_own[numbers]])


def latency_shares(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return which part of the transfers of calls is latency now."""
    share, least = (
        given.transfers[name].loc[rows].to_numpy() for name in ("latency_share", "least_share")
    )
    given.is_bound |= bool(np.isnan(share).any())
    return np.where(np.isnan(share), least + given.latency_share * (1 - least), share)
