"""Global ranks of the members of NCCL's communicators.

NCCL numbers the ranks of each communicator from 0. Which global ranks these are follows from the
processes: a rank is a process, known by host and process id. The ranks of processes are taken,
in this order, from

    a recording of the same run
    the largest communicator, if every process is a member of it
    the names of the files
    the order of hosts and process ids

A process that holds several ranks, as a program with a GPU per thread does, is several ranks of the
largest communicator. Which of these its other communicators have is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commtrace.importers.input_files import Document
from commtrace.importers.inspector.lines import Communicator, InspectorFile
from commtrace.schema import MAX_RANKS
from commtrace.torch_names import NOT_KNOWN

ProcessKey = tuple[str, int]
Processes = Mapping[ProcessKey, int]
"""Rank of each process, by host and process id."""

_GroupKey = tuple[str, int]


class CommunicatorMember(NamedTuple):
    """A rank as a member of a communicator: the key of its group, and the global rank."""

    group: _GroupKey
    rank: int


class CommunicatorGroup(NamedTuple):
    """A communicator.

    Attributes:
        known: Global ranks by rank in the communicator, as far as they are known.
        ranks: Global ranks in order; empty unless all of them are known.
    """

    name: str
    size: int
    description: str
    known: Mapping[int, int]
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Members:
    """Members of the communicators in several files.

    Attributes:
        of_files: By file, the member of each of its communicators; None if its rank is unknown.
        groups: The communicators.
        source: The source of the ranks, in a clause.
    """

    of_files: list[list[CommunicatorMember | None]]
    groups: dict[_GroupKey, CommunicatorGroup]
    source: str
    world_size: int
    notes: list[str] = field(default_factory=list)


def members_of_files(
    documents: Sequence[Document], files: Sequence[InspectorFile], processes: Processes
) -> Members:
    """Determine the global rank of each member of each communicator."""
    largest = _largest(files)
    ranks, source = _ranks(documents, files, processes, largest)
    of_files = [
        [_member(file, communicator, ranks, largest) for communicator in file.communicators]
        for file in files
    ]
    groups = _groups(files, of_files)
    known = [member.rank for of_file in of_files for member in of_file if member is not None]
    sizes = [size for _, size in groups]
    found = Members(
        of_files, groups, source, min(max([1, *sizes, 1 + max(known, default=0)]), MAX_RANKS)
    )
    partial = [group.name for group in groups.values() if not group.ranks]
    if partial:
        more = f" and {len(partial) - 3} more" if len(partial) > 3 else ""
        found.notes.append(
            f"the ranks of group {', '.join(partial[:3])}{more}: some members have no file"
        )
    return found


def _process(file: InspectorFile) -> ProcessKey:
    return file.host, file.pid


def _key(communicator: Communicator) -> _GroupKey:
    return communicator.name, communicator.size


def _largest(files: Sequence[InspectorFile]) -> _GroupKey | None:
    """Return the largest communicator that has a rank in every file, each rank in a single file."""
    found: dict[_GroupKey, list[tuple[int, int]]] = {}
    for place, file in enumerate(files):
        for each in file.communicators:
            found.setdefault(_key(each), []).append((place, each.rank))
    fitting = [
        key
        for key, members in found.items()
        if len({place for place, _ in members}) == len(files)
        and len({rank for _, rank in members}) == len(members)
    ]
    # By name if several are of one size, so that the order of the files does not matter.
    return min(fitting, key=lambda key: (-key[1], key[0]), default=None)


_Ranks = Mapping[tuple[ProcessKey, int], int]
"""Global rank by process and rank in the largest communicator, or -1 if that has none."""


def _ranks(
    documents: Sequence[Document],
    files: Sequence[InspectorFile],
    processes: Processes,
    largest: _GroupKey | None,
) -> tuple[_Ranks, str]:
    own = [_process(file) for file in files]
    if own and all(each in processes for each in own):
        return {(each, NOT_KNOWN): processes[each] for each in own}, "as in the recording"
    if largest is not None:
        found = {
            (_process(file), each.rank): each.rank
            for file in files
            for each in file.communicators
            if _key(each) == largest
        }
        return found, f"as in communicator {largest[0]}, which has every process"
    named = [document.rank_in_name for document in documents]
    if min(named, default=NOT_KNOWN) >= 0 and len(set(named)) == len(named):
        return dict(zip([(each, NOT_KNOWN) for each in own], named, strict=True)), (
            "read from the file names"
        )
    order = {(each, NOT_KNOWN): place for place, each in enumerate(sorted(set(own)))}
    return order, (
        "no communicator has every process, so processes are numbered by host and process id"
    )


def _member(
    file: InspectorFile, communicator: Communicator, ranks: _Ranks, largest: _GroupKey | None
) -> CommunicatorMember | None:
    process, key = _process(file), _key(communicator)
    rank = ranks.get((process, NOT_KNOWN))
    if rank is None:
        own = [each.rank for each in file.communicators if _key(each) == largest]
        in_largest = communicator.rank if key == largest else own[0] if len(own) == 1 else NOT_KNOWN
        rank = ranks.get((process, in_largest), NOT_KNOWN)
    elif sum(_key(each) == key for each in file.communicators) > 1:
        return None
    return CommunicatorMember(key, rank) if rank >= 0 else None


def _groups(
    files: Sequence[InspectorFile], of_files: Sequence[Sequence[CommunicatorMember | None]]
) -> dict[_GroupKey, CommunicatorGroup]:
    """Return the communicators, with their ranks in order if all are known and distinct."""
    members: dict[_GroupKey, dict[int, int]] = {}
    descriptions: dict[_GroupKey, str] = {}
    for file, of_file in zip(files, of_files, strict=True):
        for communicator, member in zip(file.communicators, of_file, strict=True):
            key = _key(communicator)
            descriptions[key] = descriptions.get(key) or communicator.description
            of_group = members.setdefault(key, {})
            if member is not None:
                of_group.setdefault(communicator.rank, member.rank)
    sizes: dict[str, int] = {}
    for name, _ in members:
        sizes[name] = sizes.get(name, 0) + 1
    found = {}
    for key, of_group in members.items():
        name, size = key
        is_whole = len(of_group) == size == len(set(of_group.values()))
        ranks = tuple(of_group[place] for place in range(size)) if is_whole else ()
        own = name if sizes[name] == 1 else f"{name}/{size}"
        found[key] = CommunicatorGroup(own, size, descriptions[key], of_group, ranks)
    return found
