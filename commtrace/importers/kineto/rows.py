"""A rank's torch.profiler (Kineto) trace, as rows of the tables.

If the trace has a call's work, the call's times are taken from it. On a device that is the span of
its kernels; the call is blocked while no kernel computes on the device, and `call_ns` is the part
of that before the first kernel, so that waits appear where they occur. On gloo it is the time
from the issue to the end of the work. Otherwise only the time and duration of the issue are known.
Source: torch/csrc/profiler/util.cpp (saveNcclMeta), kineto's output_json.cpp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.device_kernels import Kernel, device_type
from commtrace.errors import InvalidTraceError
from commtrace.event import CommEvent, OpEvent, StepRow, SyncRow
from commtrace.importers.input_files import Document
from commtrace.importers.intervals import NOTHING, Intervals
from commtrace.importers.kineto import arguments
from commtrace.importers.kineto.calls import HostCall, calls_of
from commtrace.importers.kineto.events import Events
from commtrace.importers.kineto.issued_work import give_work, with_kernels
from commtrace.importers.kineto.kernel_rows import kernel_rows, works_of
from commtrace.importers.kineto.spans import (
    CommunicationWork,
    Gathered,
    Work,
    gather,
    require_profile,
)
from commtrace.importers.kineto.sync_rows import Syncs
from commtrace.importers.rank_record import RankRecord, group_row, members_of
from commtrace.schema import COMPUTE, EVENT_RECORD, MAX_RANKS, STREAM
from commtrace.torch_names import NOT_KNOWN, TRANSFERS, dtype_of, payload_of, wire_of
from commtrace.tracefile.reading import is_int
from commtrace.tracefile.trace import table_of


@dataclass(frozen=True, slots=True)
class Found:
    """Facts about a rank's file that outlive it.

    Attributes:
        stated_rank: The rank that it states; -1 if none.
        matched: Number of kernels by the way in which their calls were found.
        num_invalid: Number of events with invalid times.
        has_modules: True if calls or operators are located in modules.
        num_waits: Number of waits for streams, events and devices.
        num_unplaced: Number of those whose device is unknown.
    """

    stated_rank: int
    matched: Counter[str]
    num_invalid: int
    has_modules: bool
    num_waits: int
    num_unplaced: int


_GROUP_NAME = "Process Group Name"


class Profile:
    """A rank's trace.

    Args:
        path: The file.
        found: Its events.
        about: Its other facts, as in traces of torch.profiler.
        num_bytes: Size of the file.
        has_times: The times of events are times; otherwise only their order.
    """

    def __init__(
        self,
        path: Path,
        found: Gathered,
        about: Mapping[str, Any],
        num_bytes: int,
        *,
        has_times: bool = True,
    ) -> None:
        self.path = path
        self._found, self._about, self._has_times = found, about, has_times
        self._distributed: Mapping[str, Any] = self._about.get("distributedInfo") or {}
        self._epoch = int(self._about.get("baseTimeNanoseconds") or 0)
        self._backend = _backend(str(self._distributed.get("backend") or ""))
        self.rank = _stated_rank(self._distributed, path)
        # A group described only by start, stride and size must not use more memory than the file.
        self._most_members = max(num_bytes, MAX_RANKS)

    @classmethod
    def of_chrome_trace(
        cls, document: Document, recognized: Callable[[str], Kernel | None]
    ) -> Profile:
        """Read a trace of torch.profiler.

        Raises:
            NotATraceError: another program has written it.
        """
        events = Events(document)
        found = gather(events, recognized)
        require_profile(found, events.about, f"cannot import {document.path}")
        # Not the document: its text is as large as all that is kept of it.
        return cls(document.path, found, events.about, len(document.content))

    def record(self, rank: int) -> tuple[RankRecord, Found]:
        """Return the whole trace as rows, and facts about it."""
        found, epoch = self._found, self._epoch
        self._device = self._type_of_devices()
        shown = calls_of(found)
        found.take(shown.executing, shown.by_id.keys())
        joined = with_kernels(found.kernels, shown)
        calls = joined.calls
        record = RankRecord(
            rank,
            self.path,
            backend=self._backend,
            host=str(self._about.get("host_name") or ""),
            pid=min(found.pids, default=-1),
            device=self._device,
            start_ns=found.start + epoch if self._has_times else 0,
            end_ns=found.end + epoch if self._has_times else 0,
            world_size=int(self._distributed.get("world_size") or 1),
            groups=self._groups(calls),
        )
        self._steps = sorted((start, end, number) for number, (start, end) in found.steps.items())
        self._step_starts = [start for start, *_ in self._steps]
        record.steps = [
            StepRow(rank, number, self._instant(start), self._instant(end))
            for number, (start, end) in sorted(found.steps.items())
        ]
        ops = [self._op_row(rank, op) for op in shown.ops]
        record.ops = table_of("ops", ops, record.strings)
        names = [name for name, row in record.groups.items() if rank in members_of(row)]
        self._only_group = names[0] if len(names) == 1 else ""
        size = len(members_of(record.groups[self._only_group])) if self._only_group else 1
        give_work(calls, found, size)
        computing: dict[int, list[tuple[int, int]]] = {}
        for work in found.other_work:
            if work.category == COMPUTE:
                computing.setdefault(work.device, []).append((work.start, work.end))
        busy = {device: Intervals(intervals) for device, intervals in computing.items()}
        record.comm = [self._row(record, number, call, busy) for number, call in enumerate(calls)]
        works = works_of(found)
        kernels = kernel_rows(rank, found, works, joined, shown.ops, epoch, self._device_name)
        record.kernels = table_of("kernels", kernels, record.strings)
        syncs = self._sync_rows(rank, works)
        record.syncs = table_of("syncs", syncs, record.strings)
        waits = [row for row in syncs if row.kind != EVENT_RECORD]
        return record, Found(
            self.rank,
            joined.ways,
            found.num_invalid,
            any(row.module for rows in (ops, record.comm) for row in rows),
            len(waits),
            sum(not row.device for row in waits),
        )

    def _instant(self, ns: int) -> int:
        return ns + self._epoch if self._has_times else NOT_KNOWN

    def _type_of_devices(self) -> str:
        has_device = bool(self._found.kernels or self._found.other_work)
        if not has_device and not self._about.get("deviceProperties"):
            return "cpu"
        groups = self._distributed.get("pg_config") or ()
        backends = [self._distributed.get("backend")]
        backends += [about.get("backend_config") for about in groups]
        return device_type(self._found.launchers, [str(each) for each in backends if each])

    def _groups(self, calls: Sequence[HostCall]) -> dict[str, Any]:
        groups = {}
        for about in self._distributed.get("pg_config") or ():
            name, description = str(about.get("pg_name")), str(about.get("pg_desc") or "")
            ranks = about.get("ranks")
            ranks = ranks if isinstance(ranks, list) else self._ranks_in(str(ranks), about)
            own = _backend(str(about.get("backend_config") or self._backend))
            groups[name] = _group(name, description, ranks, about.get("pg_size"), own)
        for call in calls:
            args = call.described or call.noted or {}
            name = str(args.get(_GROUP_NAME) or "")
            listed = groups.get(name)
            if name and (listed is None or not listed.ranks):
                ranks = self._ranks_in(str(args.get("Process Group Ranks") or ""), args)
                description = str(args.get("Process Group Description") or "")
                row = _group(name, description, ranks, args.get("Group size"), self._backend)
                groups[name] = row if listed is None else _with_gaps_filled(listed, row)
        return groups

    def _ranks_in(self, text: str, about: Mapping[str, Any]) -> list[int]:
        ranks = arguments.ranks_in(text, about, self._most_members)
        self._most_members -= len(ranks)
        return ranks

    def _step_of(self, instant: int) -> int:
        place = bisect_right(self._step_starts, instant) - 1
        if place < 0 or instant >= self._steps[place][1]:
            return NOT_KNOWN
        return self._steps[place][2]

    def _op_row(self, rank: int, op: Any) -> Any:
        number, parent, name, start, end, place, thread = op
        return OpEvent(
            rank=rank,
            id=number,
            parent=parent,
            op=name.replace("::", "."),
            level="local",
            start_ns=self._instant(start),
            duration_ns=end - start if self._has_times else NOT_KNOWN,
            step=self._step_of(start),
            phase=place["phase"],
            module=place.get("module", ""),
            module_class=place.get("module_class", ""),
            thread=thread,
        )

    def _row(
        self, record: RankRecord, number: int, call: HostCall, busy: Mapping[int, Intervals]
    ) -> Any:
        kind, args = call.kind, call.described
        noted = call.noted or {}
        group = str(args.get(_GROUP_NAME) or noted.get(_GROUP_NAME) or self._only_group)
        work = call.kernel_work
        if not group and work is not None and work.stream >= 0 and not record.groups:
            group = f"{STREAM}{work.stream}"
        row = record.groups.get(group)
        ranks = members_of(row) if row is not None else ()
        size = len(ranks) or (row.size if row is not None else NOT_KNOWN)
        sent, received, dtype, shapes = arguments.message_of(call, kind)
        name, itemsize = dtype_of(dtype) if dtype else ("", NOT_KNOWN)
        if dtype == arguments.BYTES:
            name, itemsize = "", 1
        payload = payload_of(kind, sent, received, itemsize, size)
        if payload < 0 <= max(sent, received) and itemsize > 0:
            record.messages[number] = sent, received, itemsize
        splits = arguments.splits_of(call, kind, (sent, received), itemsize, size)
        root = arguments.root_of(call, kind, ranks)
        source = call.place.get("source", ("", NOT_KNOWN, ""))
        return CommEvent(
            rank=record.rank,
            id=number,
            kind=kind,
            native_op=f"c10d::{call.name}" if call.args else call.name,
            group=group,
            seq=arguments.seq_of(args) if kind not in TRANSFERS else NOT_KNOWN,
            reduce_op=arguments.reduction_of(call, kind),
            root=root,
            peer=arguments.peer_of(call, kind, ranks),
            dtype=name if kind != "barrier" else "",
            input_shapes=shapes[0],
            output_shapes=shapes[1],
            payload_bytes=payload,
            wire_bytes=wire_of(kind, payload, ranks, record.rank, root, splits[0]),
            is_async=arguments.is_async(call),
            step=self._step_of(call.start),
            phase=call.place.get("phase", ""),
            module=call.place.get("module", ""),
            module_class=call.place.get("module_class", ""),
            thread=call.thread,
            op=call.op.replace("::", "."),
            op_id=call.op_id,
            source_file=source[0],
            source_line=source[1],
            source_function=source[2],
            input_splits=",".join(map(str, splits[0])),
            output_splits=",".join(map(str, splits[1])),
            **self._times(call, busy),
            **(self._device_facts(work) if work is not None else {}),
        )

    def _device_facts(self, work: CommunicationWork) -> dict[str, Any]:
        return {
            "device": self._device_name(work.device),
            "stream": work.stream,
            "algorithm": work.kernel.algorithm,
            "protocol": work.kernel.protocol,
            "channels": arguments.channels_of(work),
        }

    def _device_name(self, device: int) -> str:
        return f"{self._device}:{device}" if device >= 0 else ""

    def _sync_rows(self, rank: int, works: Sequence[Work]) -> list[Any]:
        return [
            SyncRow(
                rank=rank,
                id=number,
                kind=sync.kind,
                at_ns=sync.start + self._epoch,
                duration_ns=sync.end - sync.start,
                thread=sync.thread,
                device=self._device_name(sync.device),
                stream=sync.stream,
                kernel_id=sync.kernel,
            )
            for number, sync in enumerate(Syncs(self._found, works).rows())
        ]

    def _times(self, call: HostCall, busy: Mapping[int, Intervals]) -> dict[str, int]:
        epoch = self._epoch
        if not self._has_times:
            return {}
        if call.work is None:
            return {"issue_ns": call.start + epoch, "call_ns": call.end - call.start}
        start, end = call.work
        if call.kernel_work is not None:
            of_device = busy.get(call.kernel_work.device, NOTHING)
            return {
                "issue_ns": start + epoch,
                "call_ns": of_device.free_from(start, end),
                "blocked_ns": of_device.free_in(start, end),
                "complete_ns": end + epoch,
                "device_ns": end - start,
            }
        end = max(end, call.end)
        return {
            "issue_ns": call.start + epoch,
            "call_ns": call.end - call.start,
            "blocked_ns": NOT_KNOWN if arguments.is_async(call) else end - call.start,
            "complete_ns": end + epoch,
        }


def _with_gaps_filled(row: Any, other: Any) -> Any:
    """Return a group's row with the facts of another row for those that it lacks."""
    unknown = (NOT_KNOWN, "")
    return type(row)(*(b if a in unknown else a for a, b in zip(row, other, strict=True)))


def _stated_rank(about: Mapping[str, Any], path: Path) -> int:
    """Return the rank that a trace states, checked against its world size."""
    rank, size = about.get("rank", NOT_KNOWN), about.get("world_size")
    if not is_int(rank) or not -1 <= rank < MAX_RANKS or (is_int(size) and 0 < size <= rank):
        raise InvalidTraceError(
            f"cannot import {path}",
            place="distributedInfo",
            found=f"rank {str(rank)[:40]} of {str(size)[:40]}",
            why=f"a rank is an integer below the world size and below {MAX_RANKS:,}",
            attempt="record it again, or copy it again",
        )
    return rank


def _backend(config: str) -> str:
    """Return the backend of `cuda:nccl`; a configuration of several stays as it is.

    >>> _backend("cuda:nccl"), _backend("cpu:gloo,cuda:nccl")
    ('nccl', 'cpu:gloo,cuda:nccl')
    """
    backends = {part.rpartition(":")[2] for part in config.split(",")}
    return backends.pop() if len(backends) == 1 else config


def _group(name: str, description: str, ranks: list[int], size: Any, backend: str) -> Any:
    row = group_row(name, description, ranks, backend)
    known = int(size) if isinstance(size, (int, float)) and size > 0 else NOT_KNOWN
    return row if ranks else row._replace(size=known)
