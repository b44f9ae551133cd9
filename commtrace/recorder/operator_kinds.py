"""Kinds of operators: what the recorder keeps once for all operators that differ in numbers only.

An operator runs `Where` its thread is: in a place and a phase. A thread stays there for several
operators, so each of them only compares what has not changed, and finds its kind in the
dictionaries of its `Where`. Programs may make new operators and regions without end, so a thread
forgets all kinds once there are many, and learns anew those that occur again.
"""

from __future__ import annotations

from typing import Any

from commtrace.recorder.module_place import ModuleCall, Place

DTENSOR, LOCAL = "dtensor", "local"
"""Levels of operators."""
_MAX_KINDS = 1 << 16
"""Bound on the kinds and places of a thread."""


class Where:
    """Rank, phase, regions, place and thread of operators.

    Attributes:
        call: the latest module call here.
        local: kinds of operators on plain tensors, by the operator's identity. Hashing an operator
            runs Python code; the kind keeps it alive.
        on_dtensors: kinds of operators on distributed tensors, by the identities of the operator
            and of the last local operator that it ran.
    """

    __slots__ = (
        "_kinds", "call", "local", "on_dtensors", "phase", "place", "rank", "regions", "thread",
    )  # fmt: skip

    def __init__(
        self,
        kinds: OperatorKinds,
        rank: int,
        phase: str,
        regions: tuple[str, ...],
        place: Place | None,
        thread: int,
    ) -> None:
        self._kinds = kinds
        self.rank = rank
        self.phase = phase
        self.regions = regions
        self.place = place
        self.thread = thread
        self.call: ModuleCall | None = None
        self.local: dict[int, OperatorKind] = {}
        self.on_dtensors: dict[tuple[int, int], OperatorKind] = {}

    def learn_local(self, op: Any) -> OperatorKind:
        """Return a new kind of operators on plain tensors."""
        self._kinds.make_room(self)
        self.local[id(op)] = kind = OperatorKind(self, op, LOCAL, None)
        return kind

    def learn_on_dtensors(self, op: Any, last_local: Any) -> OperatorKind:
        """Return a new kind of operators on distributed tensors."""
        self._kinds.make_room(self)
        kind = OperatorKind(self, op, DTENSOR, last_local)
        self.on_dtensors[id(op), id(last_local)] = kind
        return kind

    @property
    def key(self) -> tuple[Any, ...]:
        """Identification among those of one thread."""
        return self.rank, self.phase, self.regions, self.place


class OperatorKind:
    """An operator, where it ran, its level, and the last local operator that it ran, or None."""

    __slots__ = ("last_local", "level", "op", "where")

    def __init__(self, where: Where, op: Any, level: str, last_local: Any) -> None:
        self.where = where
        self.op = op
        self.level = level
        self.last_local = last_local


class OperatorKinds:
    """Kinds of operators that one thread has run, by where it ran them."""

    __slots__ = ("_num_known", "_wheres")

    def __init__(self) -> None:
        self._wheres: dict[tuple[Any, ...], Where] = {}
        self._num_known = 0

    def where(
        self, rank: int, phase: str, regions: tuple[str, ...], place: Place | None, thread: int
    ) -> Where:
        """Return where the thread, whose number is `thread`, runs an operator."""
        where = self._wheres.get((rank, phase, regions, place))
        if where is None:
            where = Where(self, rank, phase, regions, place, thread)
            self.make_room(where)
            self._wheres[where.key] = where
        return where

    def make_room(self, where: Where) -> None:
        """Count a new kind at `where`; of too many, forget all."""
        self._num_known += 1
        if self._num_known > _MAX_KINDS:
            for each in (where, *self._wheres.values()):
                each.local.clear()
                each.on_dtensors.clear()
            self._wheres = {where.key: where}
            self._num_known = 1


NOWHERE = Where(OperatorKinds(), -1, "", (), None, -1)
"""Where a thread is before its first operator."""
