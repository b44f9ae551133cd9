"""Kinds of operators: what the recorder keeps once for all operators that differ in numbers only.

An operator runs `Where` its thread is: in a place and a phase. A thread stays there for several
operators, so each of them only compares what has not changed, and finds its kind in the
dictionaries of its `Where`.
"""

from __future__ import annotations

from typing import Any

from commtrace.recorder.module_place import ModuleCall, Place

DTENSOR, LOCAL = "dtensor", "local"
"""Levels of operators."""
NO_CALL: tuple[None, int] = (None, -1)
"""Stands for the module call of operators outside every module."""


class Where:
    """Rank, phase, regions, place and thread of operators.

    Attributes:
        call: the latest module call here.
        local: kinds of operators on plain tensors, by the operator's identity. Hashing an operator
            runs Python code; the kind keeps it alive.
        on_dtensors: kinds of operators on distributed tensors, by the identities of the operator
            and of the last local operator that it ran.
    """

    __slots__ = ("call", "local", "on_dtensors", "phase", "place", "rank", "regions", "thread")

    def __init__(
        self, rank: int, phase: str, regions: tuple[str, ...], place: Place | None, thread: int
    ) -> None:
        self.rank = rank
        self.phase = phase
        self.regions = regions
        self.place = place
        self.thread = thread
        self.call: ModuleCall | tuple[None, int] | None = None
        self.local: dict[int, OperatorKind] = {}
        self.on_dtensors: dict[tuple[int, int], OperatorKind] = {}

    def learn_local(self, op: Any) -> OperatorKind:
        """Return a new kind of operators on plain tensors."""
        self.local[id(op)] = kind = OperatorKind(self, op, LOCAL, None)
        return kind

    def learn_on_dtensors(self, op: Any, last_local: Any) -> OperatorKind:
        """Return a new kind of operators on distributed tensors."""
        kind = OperatorKind(self, op, DTENSOR, last_local)
        self.on_dtensors[id(op), id(last_local)] = kind
        return kind


class OperatorKind:
    """An operator, where it ran, its level, and the last local operator that it ran, or None."""

    __slots__ = ("last_local", "level", "op", "where")

    def __init__(self, where: Where, op: Any, level: str, last_local: Any) -> None:
        self.where = where
        self.op = op
        self.level = level
        self.last_local = last_local


NOWHERE = Where(-1, "", (), None, -1)
"""Where a thread is before its first operator."""
