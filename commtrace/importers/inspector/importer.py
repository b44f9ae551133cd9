"""Importer of NCCL Inspector's logs, one file per process.

    a file ─> InspectorFile (`lines`) ─> `ranks` of its communicators
           ─> tables `comm` and `kernels`

The lines are samples: Inspector leaves out small messages, and may drop others. No rank is blamed
for a call that has no line. NCCL numbers the operations of each function separately, while a call
is numbered among all calls of its group:

    seq = number of the operation * number of functions in the group + place of its function

It has gaps, but is equal on all ranks, which is what calls are matched by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from commtrace.collective_table import KINDS, busbw_factor, wire_bytes
from commtrace.device_kernels import UNKNOWN
from commtrace.event import CommEvent, KernelRow
from commtrace.importers.device_times.timings import KnownGroup, Timing, Timings
from commtrace.importers.input_files import Document
from commtrace.importers.inspector.lines import InspectorFile, Sample
from commtrace.importers.inspector.ranks import (
    CommunicatorGroup,
    Members,
    Processes,
    members_of_files,
)
from commtrace.importers.rank_record import Imported, RankRecord, group_row
from commtrace.schema import COMMUNICATION
from commtrace.torch_names import NOT_KNOWN, ROOTED, TRANSFERS, kind_of
from commtrace.tracefile.trace import table_of

_BY_PART = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Kinds for which NCCL is given the size of a single rank's part."""

_TOLERANCE = 0.02
"""Relative difference of a stated bus bandwidth that rounding explains."""

LACKS = (
    "small messages (below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES) and operations that it dropped",
    "element types, shapes, reductions, roots, modules, operators and source lines",
    "blocked times",
)
_NO_TIMES = (
    "the times at which calls began: a call had completed by the time at which its line was "
    "written (NCCL_INSPECTOR_DUMP_VERBOSE=1 writes times)"
)


def read_inspector(documents: Sequence[Document], processes: Processes | None = None) -> Imported:
    """Import files rank by rank, and list the missing information.

    The contents of the documents are those that `inspector_file_of` returns.

    Args:
        documents: The files.
        processes: Ranks by host and process id, of a recording of the same run.
    """
    files: list[InspectorFile] = [document.content for document in documents]
    members = members_of_files(documents, files, processes or {})
    samples = [
        _distinct(file, of_file) for file, of_file in zip(files, members.of_files, strict=True)
    ]
    functions = _functions(members, samples)
    records: dict[int, RankRecord] = {}
    of_ranks: dict[int, list[tuple[CommunicatorGroup, Sample]]] = {}
    for file, of_file, found in zip(files, members.of_files, samples, strict=True):
        for place, member in enumerate(of_file):
            if member is None:
                continue
            record = _record(records, member.rank, file, members.world_size)
            group = members.groups[member.group]
            row = group_row(group.name, group.description, group.ranks, "nccl")
            record.groups[group.name] = row._replace(size=group.size)
            of_ranks.setdefault(member.rank, []).extend(
                [(group, sample) for sample in found.get(place, ())]
            )
    doubted: Counter[str] = Counter()
    for rank, record in records.items():
        _fill(record, of_ranks[rank], functions, doubted)
    ordered = [records[rank] for rank in sorted(records)]
    ranks = [record.rank for record in ordered]
    facts = {"partial_dumps": ranks, "unsure_ranks": ranks}
    lacks = _lacks(files, members, ordered, doubted)

    def timings() -> Timings:
        operations = (_timing(rank, *each) for rank, own in of_ranks.items() for each in own)
        groups = members.groups.values()
        return Timings(
            {each.name: KnownGroup(each.size, each.known) for each in groups}, operations
        )

    return Imported(ordered, members.source, lacks, facts=facts, timings=timings)


def _timing(rank: int, group: CommunicatorGroup, sample: Sample) -> Timing:
    kind = _kind(sample.function)
    return Timing(
        rank,
        group.name,
        kind if kind in TRANSFERS else sample.function,
        sample.number,
        "",
        part_bytes(sample.function, sample.size, group.size)[0],
        sample.lasts_ns,
        group.known.get(sample.peer, NOT_KNOWN),
        sample.launch_ns,
        sample.end_ns if sample.end_ns >= 0 else sample.dumped_ns,
        sample.algorithm,
        sample.protocol,
        sample.channels,
    )


def _record(
    records: dict[int, RankRecord], rank: int, file: InspectorFile, world_size: int
) -> RankRecord:
    if rank not in records:
        facts: dict[str, Any] = {"host": file.host, "pid": file.pid, "device": "cuda"}
        records[rank] = RankRecord(rank, file.path, world_size=world_size, **facts)
    return records[rank]


def _distinct(file: InspectorFile, members: Sequence[Any]) -> dict[int, list[Sample]]:
    """Return the samples of each communicator, only the first if several have the same number."""
    found: dict[int, dict[Any, Sample]] = {}
    for sample in file.samples:
        if members[sample.communicator] is None:
            file.left_out["operations of processes with several ranks, of unknown rank"] += 1
            continue
        of_one = found.setdefault(sample.communicator, {})
        kept = of_one.setdefault((sample.function, sample.number), sample)
        if kept is not sample:
            file.left_out["operations with the number of an earlier operation"] += 1
    return {place: list(of_one.values()) for place, of_one in found.items()}


def _functions(
    members: Members, samples: Sequence[Mapping[int, list[Sample]]]
) -> Mapping[str, Any]:
    """Return the collective functions of each group, in order."""
    found: dict[str, set[str]] = {group.name: set() for group in members.groups.values()}
    for of_file, by_place in zip(members.of_files, samples, strict=True):
        for place, of_one in by_place.items():
            member = of_file[place]
            if member is None:
                continue
            names = {
                sample.function for sample in of_one if _kind(sample.function) not in TRANSFERS
            }
            found[members.groups[member.group].name] |= names
    return {
        name: {each: n for n, each in enumerate(sorted(names))} for name, names in found.items()
    }


@lru_cache(maxsize=1024)
def _kind(function: str) -> str:
    kind = kind_of(function)
    return kind if kind in KINDS else UNKNOWN


@lru_cache(maxsize=1 << 16)
def part_bytes(function: str, size: int, num_ranks: int) -> tuple[int, int]:
    """Return the payload and the bytes to send of an operation; -1 if unknown."""
    kind = _kind(function)
    if size < 0 or kind == UNKNOWN or function == "AllGatherV":  # of different sizes
        return NOT_KNOWN, NOT_KNOWN
    payload = size * num_ranks if kind in _BY_PART else size
    return payload, NOT_KNOWN if kind in ROOTED else wire_bytes(kind, payload, num_ranks)


def _row(
    rank: int, number: int, group: CommunicatorGroup, sample: Sample, places: Mapping[str, int]
) -> Any:
    """Return the call of a sample; it is issued at the start of its kernel."""
    kind = _kind(sample.function)
    payload, wire = part_bytes(sample.function, sample.size, group.size)
    place, peer = places.get(sample.function, NOT_KNOWN), sample.peer
    return CommEvent(
        rank=rank,
        id=number,
        kind=kind,
        native_op=f"nccl:{sample.function}",
        group=group.name,
        seq=sample.number * len(places) + place if place >= 0 else NOT_KNOWN,
        peer=group.ranks[peer] if 0 <= peer < len(group.ranks) else NOT_KNOWN,
        payload_bytes=payload,
        wire_bytes=wire,
        issue_ns=sample.start_ns,
        complete_ns=sample.end_ns if sample.end_ns >= 0 else sample.dumped_ns,
        algorithm=sample.algorithm,
        protocol=sample.protocol,
        channels=sample.channels,
        device_ns=sample.lasts_ns,
    )


def _is_doubtful(sample: Sample, num_ranks: int) -> bool:
    """Return whether a stated bus bandwidth contradicts the size and the time beside it."""
    payload, _ = part_bytes(sample.function, sample.size, num_ranks)
    if min(payload, sample.lasts_ns) <= 0 or not sample.busbw:
        return False
    own = payload / sample.lasts_ns * _factor(_kind(sample.function), num_ranks)  # bytes/ns: GB/s
    return abs(own - sample.busbw) > _TOLERANCE * max(own, sample.busbw) + 1e-5


_factor = lru_cache(maxsize=1024)(busbw_factor)


def _fill(
    record: RankRecord,
    samples: list[tuple[CommunicatorGroup, Sample]],
    functions: Mapping[str, Mapping[str, int]],
    doubted: Counter[str],
) -> None:
    """Set the calls of a rank, in order of time, their kernels, and the bounds of its record."""
    samples.sort(key=_time_of)
    record.comm = [
        _row(record.rank, number, group, sample, functions[group.name])
        for number, (group, sample) in enumerate(samples)
    ]
    kernels = [
        KernelRow(
            rank=record.rank,
            category=COMMUNICATION,
            name=" ".join(filter(None, (row.native_op, row.algorithm, row.protocol))),
            start_ns=row.issue_ns,
            duration_ns=row.device_ns,
            launch_ns=min(sample.launch_ns, row.issue_ns),
            call_id=row.id,
        )
        for row, (_, sample) in zip(record.comm, samples, strict=True)
        if min(row.issue_ns, row.device_ns) >= 0
    ]
    kernels.sort(key=lambda row: row.start_ns)
    kernels = [row._replace(id=place) for place, row in enumerate(kernels)]
    record.kernels = table_of("kernels", kernels, record.strings) if kernels else {}
    for group, sample in samples:
        if _is_doubtful(sample, group.size):
            name = f"{sample.function} {sample.number} of {group.name} on rank {record.rank}"
            doubted[name] += 1
    instants = [instant for row in record.comm for instant in (row.issue_ns, row.complete_ns)]
    known = [instant for instant in instants if instant >= 0]
    record.start_ns, record.end_ns = min(known, default=0), max(known, default=0)


def _time_of(pair: tuple[CommunicatorGroup, Sample]) -> tuple[int, int]:
    _, sample = pair
    return max(sample.start_ns, sample.launch_ns), sample.dumped_ns


def _lacks(
    files: Sequence[InspectorFile],
    members: Members,
    records: Sequence[RankRecord],
    doubted: Counter[str],
) -> list[str]:
    calls = [call for record in records for call in record.comm]
    lacks = [*LACKS, *members.notes]
    if num := sum(call.issue_ns < 0 for call in calls):
        lacks.append(f"{_NO_TIMES}: {num:,} of {len(calls):,}")
    if num := sum(call.device_ns < 0 for call in calls):
        lacks.append(
            f"times of kernels, which the host measured or nobody: {num:,} of {len(calls):,}"
        )
    dropped = sum(sum(file.dropped.values()) for file in files)
    if dropped:
        lacks.append(f"{dropped:,} operations that Inspector says it dropped")
    left_out = sum([file.left_out for file in files], Counter[str]())
    lacks += [f"{text}, which are left out: {num:,}" for text, num in left_out.items()]
    if doubted:
        first = next(iter(doubted))
        lacks.append(
            f"a bus bandwidth that fits size and time in {doubted.total():,} lines, such as "
            f"{first}: tables compute it from size and time"
        )
    return lacks
