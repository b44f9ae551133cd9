"""Calls from NCCL's log, `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=INIT,COLL`.

A line is a call as a process issued it. The lines of creation (INIT) state which rank the process
is in a communicator, and the communicator's id, equal on all ranks; a part that a split made has
the id of its parent. The ranks of processes are determined as for NCCL Inspector.

Calls of a communicator are numbered in the order of the lines, if each of its members' logs begins
with its first call. The numbers that lines have (`opCount`) also count sends and receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.device_kernels import UNKNOWN
from commtrace.event import CommEvent
from commtrace.importers.input_files import Document
from commtrace.importers.inspector.importer import part_bytes
from commtrace.importers.inspector.lines import Communicator, InspectorFile
from commtrace.importers.inspector.ranks import (
    CommunicatorGroup,
    Members,
    members_of_files,
)
from commtrace.importers.log_lines import NcclCall, NcclInit
from commtrace.importers.rank_record import RankRecord, group_row
from commtrace.torch_names import NOT_KNOWN, ROOTED, TRANSFERS, dtype_of, kind_of

_DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_REDUCTIONS = ("sum", "product", "max", "min", "avg")
"""Types and reductions by NCCL's numbers, `ncclDataType_t` and `ncclRedOp_t`."""

_SEQ = CommEvent._fields.index("seq")
_SHARED = slice(NcclCall._fields.index("count"), NcclCall._fields.index("root") + 1)

_Process = tuple[str, int]


@dataclass(slots=True)
class _Held:
    """A communicator of a process, and the calls on it."""

    init: NcclInit | None
    pointer: str
    name: str = ""
    size: int = NOT_KNOWN
    calls: list[tuple[int, NcclCall]] = field(default_factory=list)
    """With the place of each among the calls of the process."""


@dataclass(slots=True)
class NcclLog:
    """Lines of NCCL in several files, by process."""

    processes: dict[_Process, list[_Held]] = field(default_factory=dict)
    documents: dict[_Process, Document] = field(default_factory=dict)
    global_ranks: dict[_Process, set[int]] = field(default_factory=dict)
    num_calls: int = 0

    def add(self, document: Document, line: NcclCall | NcclInit) -> None:
        """Add a line of a file."""
        process = line.host, line.pid
        held = self.processes.setdefault(process, [])
        self.documents.setdefault(process, document)
        newest = next((each for each in reversed(held) if each.pointer == line.communicator), None)
        if isinstance(line, NcclInit):
            # The address may be that of one that was destroyed.
            if newest is None or newest.init != line:
                name = self._name(held, line)
                held.append(_Held(line, line.communicator, name, line.num_ranks))
            return
        if newest is None:
            newest = _Held(None, line.communicator, size=line.num_ranks)
            held.append(newest)
        newest.calls.append((self.num_calls, line))
        self.num_calls += 1
        if line.global_rank >= 0:
            self.global_ranks.setdefault(process, set()).add(line.global_rank)

    def _name(self, held: Sequence[_Held], init: NcclInit) -> str:
        if init.name or not init.split[0]:
            return init.name
        pointer, count, color = init.split
        parent = next((each for each in reversed(held) if each.pointer == pointer), None)
        return f"{parent.name}/{count}/{color}" if parent is not None and parent.name else ""


def add_nccl(records: dict[int, RankRecord], log: NcclLog) -> tuple[str, list[str]]:
    """Add the calls to ranks' records; return the source of the ranks and missing information."""
    processes = list(log.processes)
    _name_the_rest(log)
    files = [_as_file(log, process) for process in processes]
    stated = {process: ranks for process, ranks in log.global_ranks.items() if len(ranks) == 1}
    known = {process: min(ranks) for process, ranks in stated.items()}
    is_stated = len(set(known.values())) == len(processes)
    documents = [log.documents[process] for process in processes]
    members = members_of_files(documents, files, known if is_stated else {})
    source = "stated by the lines of calls, globalrank" if is_stated else members.source
    num_left = 0
    for process, of_file in zip(processes, members.of_files, strict=True):
        rows: dict[int, list[tuple[int, int, Any]]] = {}
        for held, member in zip(log.processes[process], of_file, strict=True):
            if member is None:
                num_left += len(held.calls)
                continue
            group = members.groups[member.group]
            record = records.setdefault(
                member.rank,
                RankRecord(
                    member.rank, documents[processes.index(process)].path, device="cuda",
                    host=process[0], pid=process[1], start_ns=0, end_ns=0,
                ),
            )  # fmt: skip
            record.world_size = max(record.world_size, members.world_size)
            ranks = group.ranks or _all_ranks(group)
            row = group_row(group.name, "", ranks, "nccl")
            record.groups[group.name] = row._replace(size=group.size)
            numbers = _numbers(held)
            alike: dict[tuple[Any, ...], Any] = {}
            own = rows.setdefault(record.rank, [])
            for (place, call), number in zip(held.calls, numbers, strict=True):
                key = call.function, *call[_SHARED]
                row = alike.get(key)
                if row is None:
                    row = alike[key] = _row(record.rank, group, ranks, call)
                own.append((place, number, row))
        for rank, own in rows.items():
            before = len(records[rank].comm)
            own.sort(key=itemgetter(0))
            records[rank].comm += [
                CommEvent._make((row[0], before + n, *row[2:_SEQ], number, *row[_SEQ + 1 :]))
                for n, (_, number, row) in enumerate(own)
            ]
    return source, _lacks(records, members, num_left)


def _name_the_rest(log: NcclLog) -> None:
    """Name communicators whose lines of creation have no id, or are missing.

    A communicator of all processes, each with a single rank, is the same on all of them.
    """
    unnamed = [
        (process, held)
        for process, of_process in log.processes.items()
        for held in of_process
        if not held.name
    ]
    of_all = [
        (process, held)
        for process, held in unnamed
        if held.init is not None and held.size == len(log.processes)
    ]
    ranks = {held.init.rank for _, held in of_all if held.init is not None}
    is_one = len(of_all) == len(ranks) == len(log.processes)
    for process, held in unnamed:
        is_of_all = is_one and (process, held) in of_all
        held.name = "all processes" if is_of_all else f"{held.pointer} of process {process[1]}"


def _as_file(log: NcclLog, process: _Process) -> InspectorFile:
    communicators = [
        Communicator(
            held.name, max(held.size, 1), held.init.rank if held.init is not None else 0, ""
        )
        for held in log.processes[process]
    ]
    path = log.documents[process].path
    return InspectorFile(path, process[0], process[1], communicators)


def _all_ranks(group: CommunicatorGroup) -> tuple[int, ...]:
    """Return the ranks of a group with some silent ranks, if the others have their own ranks."""
    has_own = all(place == rank for place, rank in group.known.items()) and len(group.known) > 1
    return tuple(range(group.size)) if has_own else ()


def _numbers(held: _Held) -> list[int]:
    """Return the number of each collective, from 1; -1 if unknown, and for transfers."""
    if held.init is None or not held.calls or held.calls[0][1].op_count != 0:
        return [NOT_KNOWN] * len(held.calls)
    numbers, next_number = [], 1
    for _, call in held.calls:
        is_transfer = kind_of(call.function) in TRANSFERS
        numbers.append(NOT_KNOWN if is_transfer else next_number)
        next_number += not is_transfer
    return numbers


def _row(rank: int, group: CommunicatorGroup, ranks: tuple[int, ...], call: NcclCall) -> Any:
    """Return what the rows of alike calls share: all but their ids and numbers."""
    kind = kind_of(call.function)
    kind = kind if kind in KINDS else UNKNOWN
    dtype = _DTYPES[call.dtype] if call.dtype < len(_DTYPES) else ""
    itemsize = dtype_of(dtype)[1] if dtype else NOT_KNOWN
    size = call.count * itemsize if itemsize > 0 else NOT_KNOWN
    payload, wire = part_bytes(call.function, size, group.size)
    reduces = kind in ("all_reduce", "reduce_scatter", "reduce")
    known = reduces and call.reduction < len(_REDUCTIONS)
    other = ranks[call.root] if 0 <= call.root < len(ranks) else NOT_KNOWN
    return CommEvent(
        rank=rank,
        kind=kind,
        native_op=f"nccl:{call.function}",
        group=group.name,
        reduce_op=_REDUCTIONS[call.reduction] if known else "",
        root=other if kind in ROOTED else NOT_KNOWN,
        peer=other if kind in TRANSFERS else NOT_KNOWN,
        dtype=dtype,
        payload_bytes=payload,
        wire_bytes=wire,
    )


def _lacks(records: Mapping[int, RankRecord], members: Members, num_left: int) -> list[str]:
    lacks = [
        "times of calls, their ends and blocked times: lines have none",
        "shapes, modules, operators and source lines",
        *members.notes,
    ]
    calls = [call for record in records.values() for call in record.comm]
    unnumbered = sum(call.seq < 0 and call.kind not in TRANSFERS for call in calls)
    if unnumbered:
        lacks.append(
            "the numbers of collectives on communicators whose creation or first call the log "
            f"does not have: {unnumbered:,} of {len(calls):,}"
        )
    if num_left:
        lacks.append(f"calls of processes with several ranks, which are left out: {num_left:,}")
    return lacks
