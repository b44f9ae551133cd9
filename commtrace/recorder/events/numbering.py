"""Numbers and names of a recording, relative to the process's own.

Numbers start at 0 where the recording began. A group keeps its name, unless an earlier group of the
recording has the same name.
"""

from __future__ import annotations

from collections.abc import Mapping

from commtrace.recorder.events.groups import Group

_UNKNOWN = -1


class Numbering:
    """Numbering and naming of a recording.

    A group may share its name with groups of other ranks, and with a group that this rank has
    destroyed since: all but the first then get a number. Threads that play the ranks of a group
    each have their own object for it.
    """

    def __init__(
        self, calls: Mapping[int, int], groups: Mapping[Group, int], ops: int | None
    ) -> None:
        self._first_calls = calls
        self._first_seqs = groups
        self.first_op = ops
        self._names: dict[Group, str] = {}
        self._ranks_by_name: dict[str, tuple[tuple[int, ...], dict[int, Group]]] = {}

    def of(self, number: int, seq: int, op_id: int, group: Group) -> tuple[int, int, int]:
        """Return a call's number on its rank, its number in its group, and its operator's number.

        The last is -1 if this recording does not have the operator.
        """
        return (
            number - self._first_calls.get(group.rank, 0),
            seq - self._first_seqs.get(group, 0),
            self.of_operator(op_id),
        )

    def of_operator(self, number: int) -> int:
        """Return the number of an operator; -1 if this recording does not have it."""
        return _UNKNOWN if self.first_op is None else max(number - self.first_op, _UNKNOWN)

    def of_call(self, number: int, group: Group) -> int:
        """Return the number of another call of the rank; -1 if it is earlier than the recording."""
        return _UNKNOWN if number < 0 else max(number - self._first_calls.get(group.rank, 0), -1)

    def name(self, group: Group) -> str:
        """Return the name of a group, unique within this recording."""
        name = self._names.get(group)
        if name is None:
            name, number = group.row.name, 1
            while not self._claim(name, group):
                number += 1
                name = f"{group.row.name}#{number}"
            self._names[group] = name
        return name

    def _claim(self, name: str, group: Group) -> bool:
        """Claim a name for a group; return whether it was free."""
        ranks, members = self._ranks_by_name.setdefault(name, (group.ranks, {}))
        return ranks == group.ranks and members.setdefault(group.rank, group) is group
