"""Launches in a dump, and the numbers of collectives that several ranks have in common.

A launch is mostly a single entry. Coalesced calls are a launch of several entries without times,
closed by an entry that has the times but no tensors, `nccl:coalesced`. `collective_seq_id` and
`p2p_seq_id` together identify a launch on its group: each launch increases one of them, but which
depends on the release, and `is_p2p` is false in an entry that closes transfers.

    torch           a batch of transfers increases    entries of a batch of collectives
    2.4, 2.5        collective_seq_id                 the closing entry; further numbers are skipped
    2.6, 2.7        p2p_seq_id                        the closing entry
    2.8 and later   p2p_seq_id                        all

torchcomms has a single sequence for all calls of a process. Numbers that do not count the
collectives of a group are replaced by places, if all dumps begin with the first call.
Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, startCoalescing and endCoalescing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from commtrace.importers.flight_recorder.entries import Dump, Entry
from commtrace.torch_names import COALESCED, NO_COMMUNICATION, NOT_KNOWN

_FIRST_SOUND = (2, 7)
"""First version in which every number belongs to a collective of the group."""


_BATCH = "batch_op_issue"
"""Operation of torchcomms that starts several transfers, which are not entered."""


@dataclass(slots=True)
class CallLaunch:
    """Calls of a rank that were started together.

    Attributes:
        parts: Entries of the calls; empty if the dump does not have them.
        closing: Entry that closes a batch.
        number: Number of the collective on its group, as torch counts; -1 of transfers and if
            unknown.
    """

    parts: list[Entry]
    closing: Entry | None
    number: int = NOT_KNOWN

    @property
    def first(self) -> Entry:
        """The first entry."""
        return self.parts[0] if self.parts else self.last

    @property
    def last(self) -> Entry:
        """The entry with the times and the state of all."""
        return self.closing or self.parts[-1]

    @property
    def is_collective(self) -> bool:
        """It is a collective, and not transfers or something that sends nothing."""
        return not any(
            part.is_transfer or part.kind in NO_COMMUNICATION for part in self.parts
        ) and bool(self.parts or self.closing)

    @property
    def is_counted(self) -> bool:
        """All members of the group make it: a collective, but no batch of torchcomms."""
        return self.is_collective and self.first.operation != _BATCH

    @property
    def is_over(self) -> bool:
        """The dump shows that it has ended."""
        return self.last.complete_ns >= 0


def launches_of(dump: Dump, *, in_flight_only: bool) -> list[CallLaunch]:
    """Return the launches of a dump, in order.

    The entries of a batch may be interleaved with entries of other groups. The parts of a batch
    have no times, so a dump of calls in flight has parts of completed batches, too: without the
    closing entry they are left out. The total size of a batch cut by the ring buffer is unknown.
    """
    batches: dict[tuple[str, int, int], list[Entry]] = {}
    for entry in dump.entries:
        key = entry.group, entry.collective_seq, entry.p2p_seq
        batches.setdefault(key, []).append(entry)
    launches = [_launch(batch) for batch in batches.values()]
    if in_flight_only:
        launches = [each for each in launches if each.closing or len(each.parts) == 1]
    if launches and dump.entries[0].number:
        launches[0] = _cut(launches[0])
    return list(_without_strays(launches, dump))


def _launch(batch: list[Entry]) -> CallLaunch:
    return CallLaunch(batch[:-1], batch[-1]) if batch[-1].is_closing else CallLaunch(batch, None)


def _cut(launch: CallLaunch) -> CallLaunch:
    """Return the first launch of a ring buffer, which may have lost parts of it."""
    is_batch = launch.closing is not None and not any(part.is_transfer for part in launch.parts)
    return CallLaunch([], launch.closing) if is_batch else launch


def _without_strays(launches: Iterable[CallLaunch], dump: Dump) -> Iterator[CallLaunch]:
    """Leave out entries that close batches of transfers whose entries the ring has lost.

    Such an entry has the number of the collective before it. Alone, it closes a batch of
    collectives only in versions that do not enter these.
    """
    before: dict[str, int] = {}
    is_whole = dump.is_whole
    for launch in launches:
        group, seq = launch.first.group, launch.first.collective_seq
        is_alone = not launch.parts and launch.last.operation in COALESCED
        is_old = before.get(group, 0 if is_whole else seq) == seq
        if not (is_alone and (is_old or dump.version >= _FIRST_SOUND)):
            yield launch
        before[group] = seq


def number_collectives(
    dumps: Sequence[Dump],
    of_ranks: Sequence[Sequence[CallLaunch]],
    ambiguous: Collection[str],
    *,
    in_flight_only: bool,
) -> tuple[int, set[str], list[str]]:
    """Number the collectives of each group as torch does, `collective_seq_id`.

    Returns:
        The number of a first collective; the groups in which torch numbers other calls, too; and
        the groups whose calls stay without numbers.

    Args:
        dumps: The dumps.
        of_ranks: The launches of each.
        ambiguous: Names that stand for several groups.
        in_flight_only: The dumps list only calls that had not ended.
    """
    collectives = [[each for each in of_rank if each.is_counted] for of_rank in of_ranks]
    skewed = _skewed(dumps, of_ranks, in_flight_only=in_flight_only)
    are_whole = all(dump.is_whole for dump in dumps)
    first = 0 if any(dump.is_of_torchcomms for dump in dumps) else 1
    seqs = [each.first.collective_seq for of_rank in collectives for each in of_rank]
    first = min([first, *seqs])  # some backends count from 0
    unnumbered: dict[str, None] = {}
    for of_rank in collectives:
        places = Counter[str]()
        for launch in of_rank:
            group = launch.first.group
            if group in ambiguous or (group in skewed and not are_whole):
                unnumbered[group] = None
            else:
                seq = launch.first.collective_seq
                launch.number = first + places[group] if group in skewed else seq
            places[group] += 1
    return first, skewed, list(unnumbered)


def _skewed(
    dumps: Sequence[Dump], of_ranks: Sequence[Sequence[CallLaunch]], *, in_flight_only: bool
) -> set[str]:
    """Return the groups whose `collective_seq_id` does not count their collectives alone."""
    groups = {launch.first.group for of_rank in of_ranks for launch in of_rank}
    if any(dump.is_of_torchcomms for dump in dumps):
        is_single = len(groups) == 1 and all(
            launch.is_counted for of_rank in of_ranks for launch in of_rank
        )
        is_sound = is_single and not in_flight_only and _are_alike(of_ranks)
        return set() if is_sound else groups
    if all(dump.version >= _FIRST_SOUND for dump in dumps):
        return set()
    skipped: set[str] = set()
    are_counted_apart = False
    for dump, of_rank in zip(dumps, of_ranks, strict=True):
        for launch, took_a_number in _batches(dump, of_rank):
            if took_a_number:
                skipped.add(launch.first.group)
            are_counted_apart |= not took_a_number and not launch.is_collective
    if are_counted_apart or all(dump.is_whole for dump in dumps):
        return skipped
    return skipped | {group for group in groups if not _are_in_step(of_ranks, group)}


def _are_alike(of_ranks: Iterable[Iterable[CallLaunch]]) -> bool:
    """Return whether calls of the same number are alike, as far as they have ended."""
    found: dict[int, Any] = {}
    for of_rank in of_ranks:
        for launch in of_rank:
            if launch.is_collective and (launch.is_over or launch.last.is_retired):
                first = launch.first
                shapes = first.inputs if first.kind in _EQUAL else ()
                signature = first.kind, first.dtype, shapes
                if found.setdefault(first.collective_seq, signature) != signature:
                    return False
    return True


_EQUAL = frozenset({"all_reduce", "broadcast", "reduce"})
"""Kinds for which all ranks pass equal shapes."""


def _batches(dump: Dump, launches: Iterable[CallLaunch]) -> Iterator[tuple[CallLaunch, bool]]:
    """Yield each batch, and whether it has taken a number that no other collective has."""
    before: dict[str, tuple[int, int]] = {}
    is_whole = dump.is_whole
    for launch in launches:
        entry = launch.first
        known = before.get(entry.group, (0, 0) if is_whole else None)
        before[entry.group] = entry.collective_seq, entry.p2p_seq
        if launch.closing is None or known is None:
            continue
        if launch.is_collective:
            yield launch, entry.collective_seq > known[0] + 1
        else:
            yield launch, entry.p2p_seq == known[1]


def _are_in_step(of_ranks: Sequence[Sequence[CallLaunch]], group: str) -> bool:
    """Return whether the ranks have numbered equally many operations up to equal numbers.

    A batch of transfers that took a number of collectives is mostly several operations. If it is
    not, the calls of equal numbers may differ.
    """
    own = [[each for each in of_rank if each.first.group == group] for of_rank in of_ranks]
    excess: dict[int, int] = {}
    of_each: list[set[int]] = []
    for launches in own:
        last = [each.last for each in launches if each.is_collective]
        found = {each.collective_seq: each.op_id - each.p2p_seq for each in last}
        if any(excess.setdefault(seq, number) != number for seq, number in found.items()):
            return False
        of_each += [{number - seq for seq, number in found.items()}] if found else []
    return _are_alike(own) and (not of_each or bool(set.intersection(*of_each)))
