"""Operators of a rank in the order of their threads, and what used whose results.

`chakra_nodes` asks for the operators within a stretch of the host's work, and for the nodes whose
results an operator or a call used (`ops.needs`, `comm.data_op_id` and the like).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from commtrace.analyze.replay.graph import (
    CALL_BEGIN,
    CALL_END,
    LAUNCH,
    STEP_BEGIN,
    STEP_END,
    SYNC_BEGIN,
    SYNC_END,
    WAIT_BEGIN,
    WAIT_END,
    Points,
)
from commtrace.analyze.run.frame import Frames

_ON_HOST = (
    CALL_BEGIN, CALL_END, WAIT_BEGIN, WAIT_END, STEP_BEGIN, STEP_END, LAUNCH, SYNC_BEGIN, SYNC_END,
)  # fmt: skip
_THREADS = {CALL_BEGIN: "comm", LAUNCH: "kernels", SYNC_BEGIN: "syncs"}
"""Tables that state the threads of points."""
_NOTHING = -1

RankColumns = Mapping[str, list[Any]]


def tables_of_rank(run: Frames, places: Mapping[str, np.ndarray]) -> dict[str, RankColumns]:
    """Return the columns of a rank's rows as lists, by table.

    Args:
        run: The run.
        places: Places of the rank's rows in each table.
    """
    found = {}
    for name, of_rank in places.items():
        table = getattr(run, name).iloc[of_rank]
        found[name] = {
            column: values.astype(object).tolist()
            if values.dtype.kind not in "iufb"
            else values.tolist()
            for column, values in table.items()
        }
    return found


class HostOperators:
    """Operators without others or calls inside, by the chain of points that they are on."""

    def __init__(
        self, run: Frames, tables: Mapping[str, RankColumns], order: list[int], points: Points
    ) -> None:
        ops = self._ops = tables["ops"]
        self._comm = tables["comm"]
        self._place = {number: place for place, number in enumerate(ops["id"])}
        self._node: dict[int, int] = {}
        self._begun: set[int] = set()
        self._start_ns = run.start_ns
        chains = self._chains = _host_chains(order, points)
        self._users: dict[int, list[int]] = {}
        for number, used_by in zip(self._comm["id"], self._comm["used_by_op_id"], strict=True):
            if used_by >= 0:
                self._users.setdefault(used_by, []).append(number)
        self._callers: dict[int, list[int]] = {}
        for number, used_by in zip(self._comm["id"], self._comm["used_by_call_id"], strict=True):
            if used_by >= 0:
                self._callers.setdefault(used_by, []).append(number)
        issues = zip(self._comm["issue_ns"], self._comm["id"], strict=True)
        self._issues = sorted(pair for pair in issues if pair[0] >= 0)
        self._spans = self._by_chain(_threads(run, order, points), min(chains, default=0))

    def _by_chain(
        self, thread_chain: Mapping[int, int], main: int
    ) -> dict[int, list[tuple[int, int, int]]]:
        """Return begin, end and place of the innermost operators of each chain, in order."""
        ops = self._ops
        has_inner = {*ops["parent"], *self._comm["op_id"]}
        spans: dict[int, list[tuple[int, int, int]]] = {}
        for place, number in enumerate(ops["id"]):
            start, duration = ops["start_ns"][place], ops["duration_ns"][place]
            if number in has_inner or start < 0 or duration < 0:
                continue
            chain = thread_chain.get(ops["thread"][place], main)
            begin = start - self._start_ns
            spans.setdefault(chain, []).append((begin, begin + duration, place))
        return {chain: sorted(of_chain) for chain, of_chain in spans.items()}

    def is_host(self, chain: int) -> bool:
        """Return whether a chain is a thread of the host."""
        return chain in self._chains

    def end_of(self, chain: int) -> int:
        """Return the end of the last operator of a chain, in ns since the start of the run."""
        spans = self._spans.get(chain)
        return max(end for _, end, _ in spans) if spans else _NOTHING

    def pieces(self, chain: int, begin: int, end: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield the parts of a stretch of work: an operator's place or -1, its begin and its end.

        The last item is True if the begin of the operator is before the stretch.
        """
        spans = self._spans.get(chain, [])
        place = max(bisect_right(spans, (begin, 1 << 62, 0)) - 1, 0)
        at = begin
        for start, stop, operator in spans[place:]:
            if start >= end:
                break
            stop = min(stop, end)
            if stop <= at:
                continue
            if start > at:
                yield _NOTHING, at, start, False
            yield operator, max(start, at), stop, start < begin
            at = stop
        if at < end:
            yield _NOTHING, at, end, False

    def ran(self, number: int, node: int) -> None:
        """Note the last node of an operator, which is the last of the operators around it, too."""
        while number >= 0 and (place := self._place.get(number)) is not None:
            self._node[number] = node
            parent = self._ops["parent"][place]
            number = parent if parent < number else _NOTHING

    def needs(self, place: int, node_of_call: Mapping[int, int]) -> tuple[int, ...]:
        """Return the nodes whose results an operator used, or the operators that begin with it."""
        found: set[int] = set()
        latest = _NOTHING
        while place >= 0:
            number = self._ops["id"][place]
            if number in self._begun:
                break
            self._begun.add(number)
            if latest < 0:
                latest = self._latest_call(self._ops["start_ns"][place])
            for each in filter(None, self._ops["needs"][place].split(",")):
                if each[0] == "c":
                    node = node_of_call.get(latest - int(each[1:]))
                else:
                    node = self._node.get(number - int(each))
                found |= {node} if node is not None else set()
            found |= {
                node_of_call[call] for call in self._users.get(number, ()) if call in node_of_call
            }
            parent = self._ops["parent"][place]
            place = self._place.get(parent, _NOTHING) if parent < number else _NOTHING
        return tuple(found)

    def data_of(self, place: int, node_of_call: Mapping[int, int]) -> tuple[int, ...]:
        """Return the nodes whose results a call sent."""
        comm = self._comm
        found = {
            self._node.get(comm["data_op_id"][place]),
            node_of_call.get(comm["data_call_id"][place]),
            *(node_of_call.get(call) for call in self._callers.get(comm["id"][place], ())),
        }
        return tuple(node for node in found if node is not None)

    def _latest_call(self, start_ns: int) -> int:
        """Return the last call that was issued before an instant."""
        place = bisect_right(self._issues, (start_ns, 1 << 62)) - 1
        return self._issues[place][1] if place >= 0 else _NOTHING


def _host_chains(order: list[int], points: Points) -> set[int]:
    own = np.asarray(order, dtype="int64")
    is_host = np.isin(points.sort[own], _ON_HOST) & (points.chain[own] >= 0)
    return {int(chain) for chain in np.unique(points.chain[own][is_host])}


def _threads(run: Frames, order: list[int], points: Points) -> dict[int, int]:
    """Return the chain of each thread of a rank."""
    own = np.asarray(order, dtype="int64")
    found: dict[int, int] = {}
    for sort, name in _THREADS.items():
        of_sort = own[points.sort[own] == sort]
        threads = getattr(run, name)["thread"].loc[points.row[of_sort]]
        found |= dict(zip(threads.tolist(), points.chain[of_sort].tolist(), strict=True))
    return found
