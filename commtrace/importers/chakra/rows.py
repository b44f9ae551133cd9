"""Rows of the tables of a rank, made of the nodes of its file.

A node that commtrace wrote has the columns of its row as attributes. Of other nodes, those of
communication become calls, work of the device becomes kernels, and work of the host operators.
Their dependencies become the columns `needs`, `data_op_id` and `data_call_id`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commtrace.chakra_messages import (
    COMM_COLL_NODE,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    ENUMS,
    KIND_OF_TYPE,
    OWN,
    OWN_KERNELS,
    OWN_STEPS,
    OWN_TABLE,
)
from commtrace.errors import InvalidTraceError
from commtrace.event import ROWS, CommEvent, KernelRow, OpEvent, StepRow
from commtrace.importers.chakra.files import ChakraNode, ChakraTrace, invalid, listed_groups
from commtrace.importers.rank_record import RankRecord, group_row, members_of
from commtrace.schema import COMPUTE, MAX_RANKS, TABLES, Column
from commtrace.torch_names import NOT_KNOWN, wire_of
from commtrace.tracefile.reading import is_int
from commtrace.tracefile.trace import table_of

ALL_RANKS = "0"
"""Name of the group of all ranks, which a node means without a name, too."""

_OWN_TABLES = ("comm", "ops", "kernels", "syncs", "later_waits")
_TRANSFERS = {COMM_SEND_NODE: ("send", "comm_dst"), COMM_RECV_NODE: ("recv", "comm_src")}
_PARTS = frozenset({"all_gather", "gather"})
"""Kinds whose `comm_size` is the size of a rank's part of the payload."""
_NAMES = {"ops": "op", "kernels": "name"}
"""Columns that are the names of nodes."""
_MOST = (1 << 62) - 1
_MOST_BYTES = 1 << 58


@dataclass(slots=True)
class ReadRank:
    """A rank's rows, and facts about its file.

    Attributes:
        record: The rows.
        stated_rank: The rank that the file states; -1 if none.
        is_own: commtrace wrote the file.
        left_out: Number of nodes that no table has, by their type.
        has_times: Some node states its begin.
    """

    record: RankRecord
    stated_rank: int
    is_own: bool
    left_out: Counter[str] = field(default_factory=Counter)
    has_times: bool = False


def read_rank(trace: ChakraTrace, members: Mapping[str, tuple[int, ...]], in_name: int) -> ReadRank:
    """Return the rows of a file.

    Args:
        trace: Its contents.
        members: Ranks of groups that the file does not list, by the names that nodes state.
        in_name: The rank in the file's name.

    Raises:
        InvalidTraceError: names the node with an impossible value.
    """
    stated = _number(trace.about, f"{OWN}rank")
    rank = stated if stated >= 0 else max(in_name, 0)
    reader = _NodeReader(trace, rank, members)
    return reader.read(stated)


class _NodeReader:
    """Makes rows of nodes in their order."""

    def __init__(
        self, trace: ChakraTrace, rank: int, members: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._trace, self._rank = trace, rank
        self._has_start = any(node.start_us for node in trace.nodes)
        self._rows: dict[str, list[Any]] = {name: [] for name in _OWN_TABLES}
        self._left_out: Counter[str] = Counter()
        self._call: dict[int, int] = {}
        self._op: dict[int, int] = {}
        about = trace.about
        self._record = RankRecord(
            rank, trace.path,
            host=_text(about, f"{OWN}host"), pid=_number(about, f"{OWN}pid"),
            device=_text(about, f"{OWN}device"),
            world_size=max(_number(about, f"{OWN}world_size"), 1),
            is_aligned=f"{OWN}rank" in about,
            clock_error_ns=_number(about, f"{OWN}clock_error_ns"),
        )  # fmt: skip
        self._names = self._groups(members)

    def _groups(self, members: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Add the groups that are listed, and return their names by the names that nodes state."""
        names: dict[str, str] = {}
        listed = {str(each["pg_name"]): each for each in listed_groups(self._trace)}
        for number, ranks in members.items():
            listed.setdefault(number, {"ranks": list(ranks)})
        for number, about in listed.items():
            name = _text(about, f"{OWN}name") or number
            names[number] = name
            ranks = about["ranks"] or list(members.get(number, ()))
            description, backend = _text(about, "pg_desc"), _text(about, "backend_config")
            row = group_row(name, description, ranks, backend)
            self._record.groups[name] = row._replace(
                mesh_axis=_text(about, f"{OWN}mesh_axis") or row.mesh_axis
            )
        return names

    def read(self, stated: int) -> ReadRank:
        """Return the rows of all nodes."""
        is_own = any(OWN_TABLE in node.attributes for node in self._trace.nodes) or stated >= 0
        for node in self._trace.nodes:
            self._add(node, is_own)
        record, rows = self._record, self._rows
        record.comm = sorted(rows["comm"], key=lambda call: call.id)
        record.later_waits = rows["later_waits"]
        for name in ("ops", "kernels", "syncs"):
            ordered = sorted(rows[name], key=lambda row: row.id)
            setattr(record, name, table_of(name, ordered, record.strings))
        record.steps = self._steps()
        starts = [node.start_us for node in self._trace.nodes if node.start_us]
        ends = [node.start_us + node.duration_us for node in self._trace.nodes if node.start_us]
        about = self._trace.about
        record.start_ns = _number(about, f"{OWN}start_ns", min(starts, default=0) * 1000)
        record.end_ns = _number(about, f"{OWN}end_ns", max(ends, default=0) * 1000)
        return ReadRank(record, stated, is_own, self._left_out, bool(starts))

    def _steps(self) -> list[Any]:
        values = self._trace.about.get(OWN_STEPS, ())
        if not isinstance(values, tuple) or not all(map(is_int, values)):
            return []
        found = zip(values[::3], values[1::3], values[2::3], strict=False)
        return [StepRow(self._rank, *step) for step in found]

    def _add(self, node: ChakraNode, is_own: bool) -> None:
        """Add the row of a node, if it has one."""
        table = node.attributes.get(OWN_TABLE)
        if table is not None:
            row = self._own_row(node, str(table))
            self._rows[str(table)].append(row)
            if table == "comm":
                self._call[node.number] = row.id
                self._rows["kernels"] += self._kernels_of_call(node)
        elif node.type in (COMM_COLL_NODE, *_TRANSFERS):
            self._call[node.number] = len(self._call)
            self._rows["comm"].append(self._foreign_call(node))
        elif node.type == COMP_NODE and not is_own:
            if node.attributes.get("is_cpu_op") is True:
                self._rows["ops"].append(self._operator(node))
            else:
                self._rows["kernels"].append(self._kernel(node))
        elif node.type != COMP_NODE and not (node.groups or is_own):
            self._left_out[ENUMS["NodeType"][node.type]] += 1

    def _own_row(self, node: ChakraNode, table: str) -> Any:
        """Return the row whose columns a node has as attributes."""
        if table not in _OWN_TABLES:
            why = f"nodes have rows of {', '.join(_OWN_TABLES)}"
            raise invalid(self._trace, node, f"a row of table {table[:40]!r}", why)
        values: dict[str, Any] = {"rank": self._rank}
        for column in TABLES[table]:
            value = node.attributes.get(f"{OWN}{column.name}")
            if value is not None:
                values[column.name] = self._checked(node, column, value)
        if table in _NAMES:
            values[_NAMES[table]] = node.name
        if values.get("id", NOT_KNOWN) < 0:
            raise invalid(self._trace, node, f"a row of table {table} without id", "rows have ids")
        if table != "comm":
            return ROWS[table](**values)
        row = CommEvent(**values)
        self._know(row.group)
        return row

    def _kernels_of_call(self, node: ChakraNode) -> Iterator[Any]:
        """Yield the kernels that the attributes of a call list, column by column."""
        lists = {
            column: node.attributes.get(f"{OWN_KERNELS}{column.name}", ())
            for column in TABLES["kernels"]
        }
        num = max(len(each) if isinstance(each, tuple) else 1 for each in lists.values())
        for place in range(num):
            values: dict[str, Any] = {"rank": self._rank}
            for column, listed in lists.items():
                if listed == ():
                    continue
                if not isinstance(listed, tuple) or len(listed) != num:
                    why = f"a call lists each column of its {num} kernels"
                    raise invalid(self._trace, node, f"{column.name} of some kernels", why)
                values[column.name] = self._checked(node, column, listed[place])
            yield KernelRow(**values)

    def _checked(self, node: ChakraNode, column: Column, value: Any) -> Any:
        if type(value) is not column.type:
            found = f"{column.name} is {str(value)[:40]!r}"
            raise invalid(self._trace, node, found, f"it is of type {column.type.__name__}")
        return value

    def _know(self, name: str) -> None:
        """Add a group that no list has, whose ranks are unknown but for the group of all."""
        if name and name not in self._record.groups:
            description = "default_pg" if name == ALL_RANKS else ""
            self._record.groups[name] = group_row(name, description, (), "")

    def _wire(self, row: Any) -> int:
        group = self._record.groups.get(row.group)
        ranks = members_of(group) if group is not None else ()
        wire = wire_of(row.kind, row.payload_bytes, ranks, self._rank, row.root)
        return wire if wire <= _MOST_BYTES else NOT_KNOWN

    def _foreign_call(self, node: ChakraNode) -> Any:
        """Return the call of a node of communication that commtrace did not write."""
        peer = NOT_KNOWN
        if node.type in _TRANSFERS:
            kind, end = _TRANSFERS[node.type]
            peer = self._int(node, end, MAX_RANKS - 1)
        else:
            number = self._int(node, "comm_type", _MOST)
            if number not in KIND_OF_TYPE and "comm_type" in node.attributes:
                found, why = f"comm_type {number}", f"types are {', '.join(map(str, KIND_OF_TYPE))}"
                raise invalid(self._trace, node, found, why)
            kind = KIND_OF_TYPE.get(number, "unknown")
        pg_name = node.attributes.get("pg_name", "")
        group = self._names.get(str(pg_name), str(pg_name)) or ALL_RANKS
        self._know(group)
        size = self._int(node, "comm_size", _MOST_BYTES)
        ranks = members_of(self._record.groups[group])
        number = len(self._call) - 1
        if kind in _PARTS and size >= 0:
            if not ranks:
                self._record.messages[number] = (size, NOT_KNOWN, 1)
            size = size * len(ranks) if ranks else NOT_KNOWN
            if size > _MOST_BYTES:
                found = f"comm_size of {len(ranks)} ranks: {size:,} bytes"
                raise invalid(self._trace, node, found, f"calls have at most {_MOST_BYTES:,}")
        begin, end = self._times(node)
        op, call = self._results_used(node)
        row = CommEvent(
            rank=self._rank, id=number, kind=kind, native_op=node.name, group=group, peer=peer,
            payload_bytes=size, issue_ns=begin, complete_ns=end,
            device_ns=node.duration_us * 1000 if node.duration_us else NOT_KNOWN,
            tag=self._int(node, "comm_tag", _MOST) if node.type in _TRANSFERS else NOT_KNOWN,
            data_op_id=op, data_call_id=call,
        )  # fmt: skip
        return row._replace(wire_bytes=self._wire(row))

    def _times(self, node: ChakraNode) -> tuple[int, int]:
        """Return begin and end; a begin of 0 is unknown if no node has another."""
        if not self._has_start:
            return NOT_KNOWN, NOT_KNOWN
        end = node.start_us + node.duration_us
        return node.start_us * 1000, end * 1000 if node.duration_us else NOT_KNOWN

    def _results_used(self, node: ChakraNode) -> tuple[int, int]:
        """Return the last operator and the last call whose results a node uses; -1 if none."""
        ops = [self._op[each] for each in node.needs if each in self._op]
        calls = [self._call[each] for each in node.needs if each in self._call]
        return max(ops, default=NOT_KNOWN), max(calls, default=NOT_KNOWN)

    def _operator(self, node: ChakraNode) -> Any:
        number = self._op[node.number] = len(self._op)
        num_calls = len(self._call)
        needs = [number - self._op[each] for each in node.needs if each in self._op]
        of_calls = [num_calls - self._call[each] for each in node.needs if each in self._call]
        return OpEvent(
            rank=self._rank, id=number, op=node.name, level="local", start_ns=self._times(node)[0],
            duration_ns=self._duration(node), thread=self._int(node, "tid", _MOST),
            needs=",".join([*map(str, needs), *(f"c{each}" for each in of_calls)]),
            flops=self._int(node, "num_ops", 1 << 62),
            bytes=self._int(node, "tensor_size", _MOST_BYTES),
        )  # fmt: skip

    def _kernel(self, node: ChakraNode) -> Any:
        return KernelRow(
            rank=self._rank, id=len(self._rows["kernels"]), category=COMPUTE, name=node.name,
            stream=self._int(node, "stream", _MOST), start_ns=self._times(node)[0],
            duration_ns=self._duration(node),
        )  # fmt: skip

    def _duration(self, node: ChakraNode) -> int:
        return node.duration_us * 1000 if node.duration_us else NOT_KNOWN

    def _int(self, node: ChakraNode, name: str, most: int) -> int:
        """Return a number that a node has as an attribute; -1 if it has none.

        Raises:
            InvalidTraceError: it is no number, or not between 0 and `most`.
        """
        value = node.attributes.get(name)
        if value is None:
            return NOT_KNOWN
        if not is_int(value) or not 0 <= value <= most:
            raise self._invalid_number(node, name, value, most)
        return value

    def _invalid_number(
        self, node: ChakraNode, name: str, value: Any, most: int
    ) -> InvalidTraceError:
        return invalid(
            self._trace, node, f"{name} is {str(value)[:40]}", f"it is between 0 and {most}"
        )


def _number(values: Mapping[str, Any], name: str, otherwise: int = NOT_KNOWN) -> int:
    value = values.get(name)
    return value if is_int(value) and value >= 0 else otherwise


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""
