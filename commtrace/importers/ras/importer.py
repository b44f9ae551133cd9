"""Importer of snapshots of NCCL RAS: how far each member of each communicator is.

A snapshot has no calls, only their number by member and kind. These counts and the
states of the members become table `communicators`; table `comm` stays empty. Several snapshots show
progress: the counts of a rank that hangs stay as they are.

The ranks of the job are taken from the largest communicator that has every device, else from the
order of the devices by host, process and number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from commtrace.errors import EmptyTraceError, TraceError
from commtrace.event import CommunicatorRow
from commtrace.importers.input_files import Document
from commtrace.importers.rank_record import Imported, RankRecord, group_row
from commtrace.importers.ras.snapshots import RasDevice, RasMember, RasSnapshot, SeenCommunicator
from commtrace.schema import MAX_RANKS
from commtrace.torch_names import kind_of

LACKS: tuple[str, ...] = (
    "calls: each rank states how many it has launched of each kind, not when, where and how large",
    "sends and receives, and the kinds that NCCL runs by them",
    "the time zone of the snapshots, whose times are read as UTC",
)

_Key = tuple[str, str]


def read_snapshots(documents: Sequence[Document]) -> Imported:
    """Import snapshots of a job.

    The contents of the documents are as returned by `snapshot_of`.

    Raises:
        EmptyTraceError: they have no communicator.
        TraceError: two snapshots are of the same time.
    """
    snapshots = _in_order([document.content for document in documents])
    ranks, source = _ranks(snapshots)
    names = _names(snapshots)
    records: dict[int, RankRecord] = {}
    unknown = 0
    for snapshot in snapshots:
        for communicator in snapshot.communicators:
            name = names[communicator.name, communicator.second_name]
            members = _members(communicator, ranks)
            unknown += len(communicator.members) - len(members)
            of_group = (
                [members.get(place, -1) for place in range(communicator.size)]
                if len(members) == communicator.size
                else []
            )
            row = group_row(name, "", of_group, "nccl")._replace(size=communicator.size)
            for member in communicator.members:
                if member.rank in members:
                    rank = members[member.rank]
                    if rank not in records:
                        records[rank] = _record(rank, member, snapshot)
                    record = records[rank]
                    record.groups[name] = row
                    record.communicators += _rows(rank, name, snapshot.at_ns, member)
    if not records:
        raise EmptyTraceError(
            "cannot import the snapshots",
            found="no communicator with a process",
            why="the job had none at the time, or RAS knew none of its processes",
            attempt="another snapshot, once the job communicates",
        )
    for record in records.values():
        record.start_ns, record.end_ns = snapshots[0].at_ns, snapshots[-1].at_ns
        record.world_size = 1 + max(records)
    lacks = list(LACKS)
    if unknown:
        lacks.append(f"the processes of members, which are left out: {unknown:,}")
    timeouts = sum(snapshot.num_timeouts for snapshot in snapshots)
    if timeouts:
        lacks.append(f"answers of peers: RAS timed out {timeouts:,} times while it collected them")
    facts = {"num_snapshots": len(snapshots), "nccl_version": snapshots[-1].version}
    return Imported([records[rank] for rank in sorted(records)], source, lacks, facts=facts)


def _in_order(snapshots: Sequence[RasSnapshot]) -> list[RasSnapshot]:
    found: dict[int, RasSnapshot] = {}
    for snapshot in snapshots:
        other = found.setdefault(snapshot.at_ns, snapshot)
        if other is not snapshot:
            raise TraceError(
                "cannot import the snapshots as one trace",
                found=f"two of the same time: {other.path} and {snapshot.path}",
                why="snapshots of a job follow each other",
                attempt="import one of them",
            )
    return [found[at_ns] for at_ns in sorted(found)]


def _ranks(snapshots: Sequence[RasSnapshot]) -> tuple[Mapping[RasDevice, int], str]:
    """Return the rank of each device, and the source of the ranks."""
    every = [each for snapshot in snapshots for each in snapshot.communicators]
    devices = {member.device for each in every for member in each.members if member.device.pid >= 0}
    fitting = []
    for communicator in every:
        own = {member.device: member.rank for member in communicator.members}
        if devices <= own.keys() and len(own) == len(communicator.members):
            fitting.append((-communicator.size, communicator.name, own))
    if fitting:
        _, name, own = min(fitting, key=lambda each: each[:2])
        return own, f"as in communicator {name}, which has every device"
    order = {device: place for place, device in enumerate(sorted(devices)[:MAX_RANKS])}
    return order, "no communicator has every device, so devices are numbered by host and process"


def _names(snapshots: Sequence[RasSnapshot]) -> Mapping[_Key, str]:
    """Return names of communicators: their hash, with the second hash if several share it."""
    keys = {
        (each.name, each.second_name): None
        for snapshot in snapshots
        for each in snapshot.communicators
    }
    num = Counter(name for name, _ in keys)
    return {key: key[0] if num[key[0]] == 1 else ":".join(key) for key in keys}


def _members(communicator: SeenCommunicator, ranks: Mapping[RasDevice, int]) -> dict[int, int]:
    """Return the global rank of each member whose process is known."""
    found = {each.rank: ranks[each.device] for each in communicator.members if each.device in ranks}
    return found if len(set(found.values())) == len(found) else {}


def _record(rank: int, member: RasMember, snapshot: RasSnapshot) -> RankRecord:
    device = member.device
    return RankRecord(rank, snapshot.path, host=device.host, pid=device.pid, device="cuda")


def _rows(rank: int, name: str, at_ns: int, member: RasMember) -> list[object]:
    counts: Counter[str] = Counter()
    for function, count in member.counts.items():
        counts[kind_of(function)] += count
    known = dict(counts) or {"": -1}
    return [
        CommunicatorRow(rank, name, at_ns, member.state, member.error, kind, num)
        for kind, num in known.items()
    ]
