"""Work of devices and of gloo, joined to the calls that issued it.

A kernel belongs to the call in which the host launched it; otherwise to the call whose operator
has the same id, or whose description has the same group, kind and number. A kernel without such a
call is a call of its own. Used by `rows`, which makes rows of the calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from commtrace.importers.kineto.arguments import number_of
from commtrace.importers.kineto.calls import Calls, HostCall
from commtrace.importers.kineto.spans import COLLECTIVE_NAME, CommunicationWork, Gathered, id_of
from commtrace.torch_names import NOT_KNOWN

WAYS = LAUNCH, OPERATOR, NUMBER, KERNEL = "launch", "operator", "number", "name alone"
"""Ways in which the call of a kernel is found, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Calls with the times of their kernels.

    Attributes:
        calls: The calls that the host shows and those that only kernels show, in order of issue.
        of_kernels: The call of each kernel; for a batch, its first call.
        ways: Number of kernels by the way in which their calls were found.
    """

    calls: list[HostCall]
    of_kernels: list[HostCall]
    ways: Counter[str]


def with_kernels(kernels: Sequence[CommunicationWork], found: Calls) -> Joined:
    """Join kernels to calls, which get their times."""
    joined = Joined(list(found.issued), [], Counter())
    issued = {id(call) for call in found.issued}
    by_number = {number_of(call.described): call for call in found.issued if call.described}
    # Calls without a number share the key None, which must match no kernel.
    by_number.pop(None, None)
    for work in kernels:
        launched = found.launched.get(work.correlation)
        way, call = KERNEL, None
        if launched is not None and (id(launched) in issued or launched.parts):
            way, call = LAUNCH, launched
        elif call := found.by_id.get(id_of(work.args)):
            way = OPERATOR
        elif call := by_number.get(number_of(work.args)):
            way = NUMBER
        if call is None:
            call = _call_of(work, launched)
            joined.calls.append(call)
            if (number := number_of(work.args)) is not None:
                by_number[number] = call
        parts = call.parts or [call]
        for part in parts:
            before = part.work or (work.start, work.end)
            part.work = min(before[0], work.start), max(before[1], work.end)
            # A kernel with a known name says more of its call than another one of it.
            if (
                part.kernel_work is None
                or work.kernel.pattern
                or not part.kernel_work.kernel.pattern
            ):
                part.kernel_work = work
        joined.ways[way] += 1
        joined.of_kernels.append(parts[0])
    joined.calls.sort(key=lambda call: call.start)
    return joined


def _call_of(work: CommunicationWork, launched: HostCall | None) -> HostCall:
    """Return the call of a kernel that no call on the host issued, where it was launched."""
    name = str(work.args.get(COLLECTIVE_NAME) or work.kernel.kind)
    described = work.args if COLLECTIVE_NAME in work.args else {}
    if launched is None:
        return HostCall(work.start, work.start, NOT_KNOWN, name, described=described)
    # A copy, since a graph launches several kernels at once.
    return replace(launched, name=name, described=described)


def give_work(calls: list[HostCall], found: Gathered, size: int) -> None:
    """Assign gloo's work to calls; works of the same kind run in the order of the calls.

    gloo has no reduce-scatter and runs an all-reduce instead; for a list, one per rank. Works
    that begin before the first call of their kind were issued before the profiled period, and
    become calls of their own.
    """
    waiting: dict[str, list[HostCall]] = {kind: [] for kind in found.workers}
    for call in calls:
        if call.work is None and not call.described:
            kind = "all_reduce" if call.kind == "reduce_scatter" else call.kind
            waiting.setdefault(kind, []).append(call)
    for kind, works in found.workers.items():
        works.sort(key=lambda work: work[0])
        of_kind = waiting[kind]
        begin = of_kind[0].start if of_kind else found.end + 1
        before = bisect_left(works, begin, key=lambda work: work[0])
        for start, end, args in works[:before]:
            own = HostCall(start, start, NOT_KNOWN, kind, noted=args, work=(start, end))
            calls.append(own)
        nums = [size if call.name == "reduce_scatter_" else 1 for call in of_kind]
        ends = list(accumulate(nums, initial=before))
        if ends[-1] != len(works):  # some end after the profiled period
            continue
        parts = [works[end - num : end] for num, end in zip(nums, ends[1:], strict=True)]
        # Work that begins before its call shows that the two lists do not correspond.
        if all(part[0][0] >= call.start for call, part in zip(of_kind, parts, strict=True) if part):
            for call, part in zip(of_kind, parts, strict=True):
                call.work = part[0][0], max(end for _, end, _ in part)
                call.worker_args = part[0][2]
    calls.sort(key=lambda call: call.start)
