"""Recorder sink of CommDebugMode: counts calls and lists operators.

Everything is keyed by place (a module as reached by a path, None outside all modules) and pass,
which is `forward`, `backward` or `recompute`. Calls are only counted, so that memory does not grow
with them. Operators are listed up to a bound and counted beyond it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commtrace.comm_mode.counts import Counts, overload_of, packet_of
from commtrace.recorder import CURRENT, RECORDER, Call, OperatorSpan
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.operator_kinds import DTENSOR

PASSES = ("forward", "backward", "recompute")
MAX_OPERATORS = 200_000
_SHARD_TO_SHARD = "_dtensor.shard_dim_alltoall.default"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator that ran, with its start order, place and DTensor arguments.

    Attributes:
        layouts: shape, placements and mesh of each argument that is a DTensor.
    """

    order: int
    overload: Any
    place: Any
    in_pass: str
    layouts: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """Qualified name, as in `aten.mm.default`."""
        return str(self.overload)


class Tally:
    """Recorder sink that counts calls and lists operators of a rank."""

    wants_spans = True
    wants_layouts = True
    wants_stacks = False
    wants_tensor_identity = False
    wants_details = False
    value_sink = None
    host_sink = None

    def __init__(self, rank: int | None, total: Counts) -> None:
        total.clear()
        self.rank = rank
        self.total = total
        self.at: dict[tuple[Any, str], Counts] = defaultdict(Counts)
        self.operators: list[Operator] = []
        self.num_not_listed = 0
        self._lock = threading.Lock()

    def add(self, call: Call) -> None:
        """Count a call, as the functional collective that issued it, if any."""
        if self.rank is not None and call.request.group.rank != self.rank:
            return
        native_op = call.functional_op or call.request.native_op
        kind = CURRENT.operators.span[2]
        operator = "" if kind is None else str(kind.op)
        if operator == _SHARD_TO_SHARD:
            native_op = operator.removesuffix(".default").replace(".", "::")
        place, in_pass = call.location.place, _pass_of(call.location.phase)
        packet = packet_of(native_op)
        # Calls come from several threads, and counting is not atomic.
        with self._lock:
            self.total.count(packet)
            self.at[place, in_pass].count(packet)
        self._list(Operator(RECORDER.num_ops, overload_of(native_op), place, in_pass))

    def add_action(self, action: PipelineAction) -> None:
        """Ignore computations of pipeline stages."""

    def add_later_wait(self, wait: LaterWait) -> None:
        """Ignore further waits for a call."""

    def keep_span(self, span: OperatorSpan) -> None:
        """List an operator."""
        number, _, _, _, _, kind = span
        place, in_pass = kind.where.place, _pass_of(kind.where.phase)
        layouts = _layouts(CURRENT.operators.span[4]) if kind.level == DTENSOR else ()
        self._list(Operator(number, kind.op, place, in_pass, layouts))

    def _list(self, operator: Operator) -> None:
        if len(self.operators) < MAX_OPERATORS:
            self.operators.append(operator)
        else:
            self.num_not_listed += 1

    def end_step(self, rank: int) -> None:
        """Ignore steps."""

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Ignore calls that may end a step."""


def _pass_of(phase: str) -> str:
    """Return the pass of a phase; optimizer and other count as forward, as in torch's mode."""
    return phase if phase in PASSES else PASSES[0]


def _layouts(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return shape, placements and mesh of the distributed arguments, except those in lists."""
    return tuple(
        (arg.shape, arg.placements, arg.device_mesh)
        for arg in args
        if hasattr(type(arg), "placements") and hasattr(type(arg), "device_mesh")
    )
