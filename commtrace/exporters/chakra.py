"""Exporter for execution traces of MLCommons Chakra, as simulators such as ASTRA-sim read them.

    FOLDER/NAME.0.et, NAME.1.et, ...    a file per rank: its nodes and their dependencies
    FOLDER/comm_group.json              the ranks of each group, by the number that `pg_name` states

Simulators differ in the dependencies that they follow: some read `data_deps` alone, others both
lists. So `data_deps` has every node that must have ended before, and `ctrl_deps` those of them that
are before it on the same thread or stream. Attributes `commtrace.*` have the columns of a row, from
which the importer restores it. docs/exchange.md describes all fields.
Source: the feeders of github.com/mlcommons/chakra and github.com/astra-sim.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.run.frame import Frames
from commtrace.atomic_write import atomic_write, output_folder
from commtrace.chakra_messages import (
    COLLECTIVES,
    COMM_COLL_NODE,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    METADATA_NODE,
    OWN,
    OWN_KERNELS,
    OWN_STEPS,
    OWN_TABLE,
    SIMULATED,
    Messages,
    messages,
)
from commtrace.escaping import encodable
from commtrace.exporters.chakra_nodes import (
    CALL,
    DEVICE,
    HOST_WORK,
    ISSUED,
    OPERATOR,
    SYNC,
    WAITED,
    WorkNode,
    nodes_of_ranks,
    ranks_of,
)
from commtrace.exporters.chakra_operators import RankColumns, tables_of_rank
from commtrace.schema import TABLES
from commtrace.units import counted

VERSION = "1.0.0"
"""Version of the definition, in `GlobalMetadata`."""
GROUPS_FILE = "comm_group.json"
PG_NODE = "## process_group:init ##"
"""Name of torch's node that lists the process groups."""
_FIRST_NODE = 1
_MOST_TAG = (1 << 31) - 1

_TABLES = {CALL: "comm", OPERATOR: "ops", DEVICE: "kernels", SYNC: "syncs"}


def _columns_of(table: str, *left_out: str) -> tuple[str, ...]:
    return tuple(each.name for each in TABLES[table] if each.name not in ("rank", *left_out))


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "comm": (
        "id", "kind", "group", "seq", "reduce_op", "root", "peer", "dtype", "payload_bytes",
        "wire_bytes", "is_async", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step",
        "phase", "module", "thread", "op_id", "input_splits", "output_splits", "device", "stream",
        "tag", "wait_begin_ns", "first_wait_ns", "wait_thread", "data_op_id", "data_call_id",
        "used_by_op_id", "used_by_call_id",
    ),
    "ops": (
        "id", "parent", "level", "start_ns", "duration_ns", "step", "phase", "module", "thread",
        "needs", "shapes", "flops", "bytes",
    ),
    "kernels": _columns_of("kernels", "name"),
    "syncs": _columns_of("syncs"),
    "later_waits": _columns_of("later_waits"),
}  # fmt: skip
"""RankColumns that are written as attributes `commtrace.*` where they are known."""

_ABOUT = ("start_ns", "end_ns", "clock_error_ns", "pid", "device", "host")
"""RankColumns of table `ranks` that are attributes of `GlobalMetadata`."""
_SIZE_OF_A_RANK = frozenset({"all_gather", "gather"})
"""Kinds whose payload has the parts of all ranks, while `comm_size` is the size of one."""
_NOT_SIMULATED = frozenset({"reduce", "gather", "scatter", "barrier"})
"""Kinds that Chakra has and ASTRA-sim refuses."""


@dataclass(slots=True)
class _Counts:
    """Facts that the notes of an export state."""

    dependencies: int = 0
    inferred: int = 0
    lacking: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """Return the sentences."""
        found = [
            f"{self.dependencies:,} dependencies between nodes, {self.inferred:,} of them inferred"
        ]
        return found + [f"{counted(num, 'call')} {text}" for text, num in self.lacking.items()]


@dataclass(frozen=True, slots=True)
class _NumberedGroups:
    """Groups of a run: number, ranks and description by name.

    Attributes:
        numbers: Number of each group whose ranks are known.
        sizes: Number of ranks of each of these.
        members: Ranks by number.
        listed: Groups as torch lists them.
    """

    numbers: dict[str, int]
    sizes: dict[str, int]
    members: dict[str, list[int]]
    listed: list[dict[str, Any]]

    @classmethod
    def of(cls, run: Frames) -> _NumberedGroups:
        """Return the groups of a run."""
        found = cls({}, {}, {}, [])
        for row in run.groups.astype(object).to_dict("records"):
            ranks = [int(rank) for rank in filter(None, row["ranks"].split(","))]
            if not ranks:
                continue
            # 0 is the group of all ranks, which simulators do not look up.
            number = len(found.numbers) + 1
            found.numbers[row["name"]], found.sizes[row["name"]] = number, len(ranks)
            found.members[str(number)] = ranks
            found.listed.append(
                {
                    "pg_name": str(number), "pg_desc": row["description"],
                    "backend_config": row["backend"], "ranks": ranks, "group_size": len(ranks),
                    f"{OWN}name": row["name"], f"{OWN}mesh_axis": row["mesh_axis"],
                }
            )  # fmt: skip
        return found


def write_chakra(run: Frames, folder: Path) -> list[str]:
    """Write a file per rank into `folder`, and return sentences on what they have and lack.

    Raises:
        UsageError: protobuf is not installed.
    """
    if run.whole is not run:  # build the graph of these rows alone
        run = run.in_memory()
    classes = messages("cannot write execution traces of Chakra")
    groups, counts = _NumberedGroups.of(run), _Counts()
    with output_folder(folder):
        written = set()
        for rank, nodes in nodes_of_ranks(run, work_graph(run)):
            path = folder / f"trace.{rank}.et"
            written.add(path)
            rank_file = _RankFile(run, rank, classes, groups, counts)
            with atomic_write(path) as unfinished, unfinished.open("wb") as stream:
                for message in rank_file.messages(nodes):
                    classes.proto.serialize_length_prefixed(message, stream)
        with atomic_write(folder / GROUPS_FILE) as unfinished:
            unfinished.write_text(json.dumps(groups.members) + "\n")
        for path in set(folder.glob("trace.*.et")) - written:
            path.unlink()  # of a run with more ranks, whose nodes would be simulated, too
    members = {rank for ranks in groups.members.values() for rank in ranks}
    notes = counts.notes() + _notes_on_details(run.ops)
    if missing := members.difference(ranks_of(run)):
        num = counted(len(missing), "rank")
        notes.append(f"groups have {num} without a file; a simulator waits for them")
    return notes


def _notes_on_details(ops: pd.DataFrame) -> list[str]:
    """Return a sentence if only some steps have details of operators."""
    is_in_step = ops["step"] >= 0
    num_steps = ops["step"][is_in_step].nunique()
    detailed = ops["step"][is_in_step & (ops["bytes"] >= 0)].unique()
    if len(detailed) in (0, num_steps):
        return []
    return [
        f"operators have FLOPs, bytes and dependencies on data in {len(detailed):,} of "
        f"{counted(num_steps, 'step')}; --steps {max(detailed)} exports one of these alone"
    ]


class _RankFile:
    """Messages of a rank's file."""

    def __init__(
        self, run: Frames, rank: int, classes: Messages, groups: _NumberedGroups, counts: _Counts
    ) -> None:
        self._run, self._rank, self._classes = run, rank, classes
        self._groups, self._counts = groups, counts
        places = {
            name: (getattr(run, name)["rank"] == rank).to_numpy().nonzero()[0] for name in _COLUMNS
        }
        self._tables = tables_of_rank(run, places)
        self._steps = run.steps[run.steps["rank"] == rank]
        waits = self._tables["later_waits"]
        keys = zip(waits["call_id"], waits["at_ns"], strict=True)
        self._later = {key: place for place, key in enumerate(keys)}
        kernels = self._tables["kernels"]
        self._main_kernel = _main_kernels(kernels)
        self._of_call: dict[int, list[int]] = {}
        for place, call in enumerate(kernels["call_id"]):
            self._of_call.setdefault(call, []).append(place)
        self._call_ids = {*self._tables["comm"]["id"]}
        ops = self._tables["ops"]
        self._op = {number: place for place, number in enumerate(ops["id"])}
        self._on_device = {number for number in kernels["op_id"] if number >= 0}

    def messages(self, nodes: Sequence[WorkNode]) -> Iterable[Any]:
        """Yield the metadata, the node of the groups, and all nodes."""
        yield self._metadata()
        yield self._groups_node()
        for number, node in enumerate(nodes):
            yield self._message(number, node)

    def _metadata(self) -> Any:
        message = self._classes.metadata(version=VERSION)
        _add(message, f"{OWN}rank", self._rank)
        rows = self._run.ranks[self._run.ranks["rank"] == self._rank].to_dict("records")
        for name in _ABOUT if rows else ():
            _add(message, f"{OWN}{name}", rows[0][name])
        world_size = self._run.run.get("world_size")
        _add(message, f"{OWN}world_size", world_size if isinstance(world_size, int) else -1)
        steps = self._steps[["step", "start_ns", "end_ns"]].to_numpy("int64").ravel()
        if len(steps):
            message.attr.add(name=OWN_STEPS).int64_list.values.extend(steps.tolist())
        return message

    def _groups_node(self) -> Any:
        node = self._classes.node(id=_FIRST_NODE, name=PG_NODE, type=METADATA_NODE)
        # A list of texts as Python prints it; simulators cut off its first and last two characters.
        node.inputs.values = f"['{json.dumps(self._groups.listed)}']"
        node.inputs.types = "['String']"
        _simulated(node, is_cpu_op=True)
        return node

    def _message(self, number: int, node: WorkNode) -> Any:
        first = _FIRST_NODE + 1
        message = self._classes.node(id=first + number)
        after = [first + each for each in node.after]
        message.ctrl_deps.extend(after)
        message.data_deps.extend(sorted({*after, *(first + each for each in node.needs)}))
        if not message.data_deps:
            message.data_deps.append(_FIRST_NODE)
        else:
            self._counts.dependencies += len(message.data_deps)
        self._counts.inferred += node.num_inferred
        if node.begin >= 0:
            begin = self._run.start_ns + node.begin
            message.start_time_micros = begin // 1000
            # The sum of durations that follow each other is exact.
            message.duration_micros = (begin + max(node.duration, 0)) // 1000 - begin // 1000
        elif node.duration > 0:
            message.duration_micros = round(node.duration / 1000)
        self._fill(message, node)
        return message

    def _fill(self, message: Any, node: WorkNode) -> None:
        """Set name, type and attributes of a node."""
        message.type = COMP_NODE
        if node.sort == CALL:
            self._call(message, node)
        elif node.sort == DEVICE:
            message.name = encodable(self._tables["kernels"]["name"][node.row])
            operator = self._main_kernel.get(node.row, -1)
            _simulated(message, is_cpu_op=False, **self._work(operator))
        else:
            work = {}
            message.name = self._name_on_host(node)
            if node.sort == OPERATOR and not node.is_rest:
                number = self._tables["ops"]["id"][node.row]
                work = {} if number in self._on_device else self._work(number)
            _simulated(message, is_cpu_op=True, **work)
        if node.sort == DEVICE and self._tables["kernels"]["call_id"][node.row] in self._call_ids:
            return  # the node of the call lists it
        if node.sort in _TABLES and not node.is_rest:
            self._columns(message, _TABLES[node.sort], node.row)
        elif node.sort == WAITED:
            key = self._tables["comm"]["id"][node.row], self._run.start_ns + node.begin
            if key in self._later:
                self._columns(message, "later_waits", self._later[key])

    def _name_on_host(self, node: WorkNode) -> str:
        if node.sort == HOST_WORK:
            return "host"
        if node.sort == OPERATOR:
            return encodable(self._tables["ops"]["op"][node.row])
        if node.sort == SYNC:
            return self._tables["syncs"]["kind"][node.row]
        verb = "issue" if node.sort == ISSUED else "wait"
        return encodable(f"{verb}: {self._tables['comm']['kind'][node.row]}")

    def _work(self, operator: int) -> dict[str, int]:
        """Return floating-point operations and bytes of an operator, if known."""
        place = self._op.get(operator)
        if place is None:
            return {}
        ops = self._tables["ops"]
        found = {"num_ops": ops["flops"][place], "tensor_size": ops["bytes"][place]}
        return {name: value for name, value in found.items() if value >= 0}

    def _call(self, message: Any, node: WorkNode) -> None:
        comm, place = self._tables["comm"], node.row
        kind, group, size = (comm[name][place] for name in ("kind", "group", "payload_bytes"))
        peer, tag = comm["peer"][place], comm["tag"][place]
        message.name = encodable(kind)
        found: dict[str, Any] = {"is_cpu_op": False}
        if group in self._groups.numbers:
            found["pg_name"] = str(self._groups.numbers[group])
        if kind in _SIZE_OF_A_RANK and size >= 0:
            size = size // self._groups.sizes[group] if group in self._groups.sizes else -1
        if kind in COLLECTIVES:
            message.type = COMM_COLL_NODE
            found |= {"comm_type": COLLECTIVES[kind], "comm_priority": 0}
        elif kind in ("send", "recv"):
            is_send = kind == "send"
            message.type = COMM_SEND_NODE if is_send else COMM_RECV_NODE
            ends = (self._rank, peer) if is_send else (peer, self._rank)
            found |= {
                name: end
                for name, end in zip(("comm_src", "comm_dst"), ends, strict=True)
                if end >= 0
            }
            # Simulators refuse transfers without a tag.
            found["comm_tag"] = tag if 0 <= tag <= _MOST_TAG else 0
        if size >= 0 and message.type != COMP_NODE:
            found["comm_size"] = size
        self._count(message, kind, found)
        _simulated(message, **found)
        kernels = self._tables["kernels"]
        if places := self._of_call.get(comm["id"][place]):
            for name in (*_COLUMNS["kernels"], "name"):
                values = [kernels[name][each] for each in places]
                attribute = message.attr.add(name=f"{OWN_KERNELS}{name}")
                if isinstance(values[0], str):
                    attribute.string_list.values.extend(map(encodable, values))
                else:
                    attribute.int64_list.values.extend(values)

    def _count(self, message: Any, kind: str, found: Mapping[str, Any]) -> None:
        """Count what simulators lack of a call."""
        is_transfer = message.type in (COMM_SEND_NODE, COMM_RECV_NODE)
        lacking = {
            "of kinds that Chakra lacks, written as work of the device": message.type == COMP_NODE,
            "of kinds that ASTRA-sim refuses (barrier, reduce, gather, scatter)":
                kind in _NOT_SIMULATED,
            "of unknown size": message.type != COMP_NODE and "comm_size" not in found,
            "of groups with unknown ranks, which simulators take for all ranks":
                not is_transfer and "pg_name" not in found,
            "to or from an unknown rank":
                is_transfer and not {"comm_src", "comm_dst"} <= found.keys(),
        }  # fmt: skip
        self._counts.lacking.update(text for text, is_lacking in lacking.items() if is_lacking)

    def _columns(self, message: Any, table: str, place: int) -> None:
        """Add the known columns of a row as attributes."""
        message.attr.add(name=OWN_TABLE, string_val=table)
        values = self._tables[table]
        for name in _COLUMNS[table]:
            _add(message, f"{OWN}{name}", values[name][place])


def _simulated(message: Any, **values: Any) -> None:
    """Add attributes of the types that simulators expect."""
    for name, value in values.items():
        message.attr.add(name=name, **{SIMULATED[name]: value})


def _add(message: Any, name: str, value: Any) -> None:
    """Add an attribute, unless its value is unknown."""
    if isinstance(value, str):
        if value:
            message.attr.add(name=name, string_val=encodable(value))
    elif isinstance(value, bool):
        message.attr.add(name=name, bool_val=value)
    elif value >= 0 or name.endswith("step"):
        message.attr.add(name=name, int64_val=int(value))


def _main_kernels(kernels: RankColumns) -> dict[int, int]:
    """Return the operators of their longest kernels, by the places of these."""
    longest: dict[int, tuple[int, int]] = {}
    for place, (number, duration) in enumerate(
        zip(kernels["op_id"], kernels["duration_ns"], strict=True)
    ):
        if number >= 0 and duration > longest.get(number, (-1, 0))[0]:
            longest[number] = (duration, place)
    return {place: number for number, (_, place) in longest.items()}
