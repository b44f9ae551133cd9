"""Second computation of what most steps communicate for nothing, and of serial receives."""

from __future__ import annotations

from typing import Any

from tests.commtrace.analyze.by_hand import EVERYONE
from tests.commtrace.analyze.second.run import Run


def most_steps(run: Run, calls: list[Any]) -> list[list[Any]]:
    """Lists of calls, each of a single line, of the ranks on which most steps have some."""
    found: dict[Any, list[Any]] = {}
    for call in calls:
        line = call.group, call.source_file, call.source_line
        alike = {
            each.step
            for each in calls
            if each.step >= 0
            and (each.rank, each.group, each.source_file, each.source_line) == (call.rank, *line)
        }
        num_steps = sum(each.rank == call.rank for each in run.steps)
        if call.step >= 0 and len(alike) >= max(3, num_steps / 2):
            found.setdefault(line, []).append(call)
    return [*found.values()]


def carried_objects(run: Run) -> list[list[Any]]:
    return most_steps(run, [call for call in run.comm if call.carries == "objects"])


def barriers(run: Run) -> list[list[Any]]:
    found = []
    for call in run.comm:
        later = [
            each
            for each in run.comm
            if (each.rank, each.thread) == (call.rank, call.thread) and each.id > call.id
        ]
        after = sorted(later, key=lambda each: each.id)[:1]
        is_awaited = any(each.kind in EVERYONE and each.group == call.group for each in after)
        if call.kind == "barrier" and is_awaited:
            found.append(call)
    return most_steps(run, found)


def broadcasts(run: Run) -> list[list[Any]]:
    return most_steps(run, _unchanged(run))


def buffers(run: Run) -> list[list[Any]]:
    unchanged = [(call.rank, call.id) for call in _unchanged(run)]
    own = [
        call
        for call in run.comm
        if (call.kind, call.phase) == ("broadcast", "forward")
        and call.module_class == "DistributedDataParallel"
        and call.blocked_ns >= 0
        and (call.rank, call.id) not in unchanged
    ]
    return [
        calls
        for calls in most_steps(run, own)
        if sum(call.blocked_ns for call in calls if run.is_steady(call.step))
        >= max(0.05 * run.counted_ns, 1)
    ]


def _unchanged(run: Run) -> list[Any]:
    calls = [
        (call, number)
        for call, number in zip(run.comm, run.numbers, strict=True)
        if call.kind == "broadcast" and number >= 0
    ]
    before: dict[tuple[str, int], list[int]] = {}
    for call, number in calls:
        key = call.rank, call.group, call.root, call.dtype, call.payload_bytes
        wrote = [
            earlier
            for each, earlier in calls
            if (each.rank, each.group, each.root, each.dtype, each.payload_bytes) == key
            and each.complete_ns == call.data_ready_ns >= 0
            and earlier < number
        ]
        before.setdefault((call.group, number), []).extend(wrote[:1])
    unchanged = [
        call
        for call, number in calls
        if len(before[call.group, number]) == len(run.members(call.group))
        and len(set(before[call.group, number])) == 1
    ]
    return unchanged


def serial_receives(run: Run) -> list[list[Any]]:
    """Receives of each rank that let other sends wait, with these sends."""
    sends: dict[tuple[Any, ...], list[Any]] = {}
    for call in sorted(run.comm, key=lambda call: call.id):
        if call.kind == "send" and call.peer >= 0:
            sends.setdefault((call.group, call.rank, call.peer), []).append(call)
    found: dict[int, tuple[list[Any], dict[tuple[int, int], float]]] = {}
    for rank in run.ranks:
        last: list[tuple[Any, Any]] = []
        for call in sorted((c for c in run.comm if c.rank == rank), key=lambda c: (c.thread, c.id)):
            ends = sends.get((call.group, call.peer, rank), [])
            sent = ends.pop(0) if call.kind == "recv" and ends else None
            thread = last[-1][0].thread if last else call.thread
            if sent is None or call.stage >= 0 or thread != call.thread:
                last = []
            if sent is None or call.stage >= 0:
                continue
            if call.peer in {each.peer for each, _ in last}:
                last = []
            for before, other in last:
                late = other.issue_ns - max(sent.issue_ns, before.issue_ns)
                if call.issue_ns >= other.issue_ns and late > 0:
                    receives, delays = found.setdefault(rank, ([], {}))
                    receives += [before] if before not in receives else []
                    key = sent.rank, sent.id
                    delays[key] = delays.get(key, 0.0) + late
            last.append((call, sent))
    results = []
    by_id = {(call.rank, call.id): call for call in run.comm}
    for receives, delays in found.values():
        costs = {
            key: min(delay, wait[0])
            for key, delay in delays.items()
            if (wait := run.wait_of[key]) is not None and wait[0] > 0
        }
        if len(costs) >= 3 and sum(costs.values()) * 50 >= run.counted_ns:
            calls = [*receives, *(by_id[key] for key in costs)]
            results.append(calls)
    return results


def serial_sends(run: Run) -> list[list[Any]]:
    """Sends of each group behind receives that their data precedes, and who waits for them."""
    receives: dict[tuple[Any, ...], list[Any]] = {}
    for call in sorted(run.comm, key=lambda call: call.id):
        if call.kind == "recv" and call.peer >= 0:
            receives.setdefault((call.group, call.peer, call.rank), []).append(call)
    taken: dict[tuple[Any, ...], int] = {}
    found: dict[str, tuple[list[Any], dict[tuple[int, int], float]]] = {}
    for call in sorted(run.comm, key=lambda call: (call.rank, call.thread, call.id)):
        if call.kind != "send" or call.peer < 0:
            continue
        key = call.group, call.rank, call.peer
        number = taken[key] = taken.get(key, -1) + 1
        since = _could_be_issued(run, call)
        if since is None:
            continue
        sends, delays = found.setdefault(call.group, ([], {}))
        sends.append(call)
        others = receives.get(key, [])
        if number < len(others):
            other = others[number]
            wait = run.wait_of[other.rank, other.id]
            late = call.issue_ns - max(since, other.issue_ns)
            if wait is not None and min(wait[0], late) > 0:
                delays[other.rank, other.id] = float(min(wait[0], late))
    by_id = {(call.rank, call.id): call for call in run.comm}
    return [
        [*sends, *(by_id[key] for key in delays)]
        for sends, delays in found.values()
        if len(delays) >= 3 and sum(delays.values()) * 50 >= run.counted_ns
    ]


def _could_be_issued(run: Run, send: Any) -> int | None:
    """Return when the first receive was issued that the send follows and whose data it had."""
    if send.data_ready_ns < 0:
        return None
    earlier = [c for c in run.comm if (c.rank, c.thread) == (send.rank, send.thread)]
    before = []
    for call in sorted((c for c in earlier if c.id < send.id), key=lambda c: -c.id):
        if call.kind != "recv" or call.stage >= 0:
            break
        before.append(call)
    waited = [
        c.issue_ns
        for c in reversed(before)
        if send.data_ready_ns <= c.issue_ns <= c.complete_ns <= send.issue_ns
    ]
    return waited[0] if waited else None


def reduced_to_root(run: Run) -> list[list[tuple[Any, Any]]]:
    """Broadcasts of most steps with the reduction of as much to their root, by line."""
    before: dict[tuple[int, int], Any] = {}
    large = [c for c in run.comm if c.payload_bytes >= 64_000 and c.step >= 0 and c.root >= 0]
    cells: dict[Any, dict[str, list[Any]]] = {}
    for call in sorted(large, key=lambda call: call.id):
        key = call.rank, call.group, call.step, call.root, call.dtype, call.payload_bytes
        cells.setdefault(key, {}).setdefault(call.kind, []).append(call)
    for cell in cells.values():
        for reduce, call in zip(cell.get("reduce", []), cell.get("broadcast", []), strict=False):
            is_used = 0 <= reduce.result_used_ns <= call.issue_ns
            if reduce.id < call.id and (is_used or call.rank != call.root):
                before[call.rank, call.id] = reduce
    lines = most_steps(run, [call for call in large if (call.rank, call.id) in before])
    return [
        [(call, before[call.rank, call.id]) for call in calls]
        for calls in lines
        if any(call.rank == call.root for call in calls)
    ]


def single_units(run: Run) -> list[list[Any]]:
    """Calls of parameters and gradients, of groups with one and the same unit of several blocks."""
    found: dict[Any, list[Any]] = {}
    for group in {call.group for call in run.comm}:
        own = [
            call
            for call in run.comm
            if call.group == group
            and (call.kind, call.carries)
            in (("all_gather", "parameters"), ("reduce_scatter", "gradients"))
            and call.parameters
        ]
        for rank in {call.rank for call in own}:
            units = [call for call in own if call.rank == rank]
            names = units[0].parameters.split(",")
            numbered = {_up_to_number(name) for name in names} - {""}
            is_one = len({call.parameters for call in units}) == 1
            if is_one and len(numbered) > 1 and any(c.kind == "all_gather" for c in units):
                key = run.axis(group) or group, len(numbered)
                found[key] = found.get(key, []) + units
    return [
        calls
        for calls in found.values()
        if sum(max(c.blocked_ns, 0) for c in calls if run.is_steady(c.step))
        >= max(0.05 * run.counted_ns, 1)
    ]


def _up_to_number(name: str) -> str:
    parts = name.split(".")
    first = next((n for n, part in enumerate(parts[:-1]) if part.isdigit()), None)
    return "" if first is None else ".".join(parts[: first + 1])


def copies(run: Run) -> list[list[Any]]:
    """Buckets of models whose largest pass has 64 MB of them."""
    by: dict[Any, list[Any]] = {}
    for call in run.comm:
        if "gradient_as_bucket_view=False" in call.reason:
            by.setdefault((call.module, call.group), []).append(call)
    passes = {
        key: max(
            sum(c.payload_bytes for c in calls if (c.rank, c.module_call) == each)
            for each in {(c.rank, c.module_call) for c in calls}
        )
        for key, calls in by.items()
    }
    return [calls for key, calls in by.items() if passes[key] >= 64_000_000]
