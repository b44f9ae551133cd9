"""Second computation of the checks and the rules of findings, call by call."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from statistics import median
from typing import Any

from tests.commtrace.analyze.by_hand import EVERYONE, TRANSFERS
from tests.commtrace.analyze.second import by_operators, each_step, trends
from tests.commtrace.analyze.second.fingerprinted import replicas
from tests.commtrace.analyze.second.late import reasons
from tests.commtrace.analyze.second.lost import losses
from tests.commtrace.analyze.second.piped import piped
from tests.commtrace.analyze.second.routed import imbalance
from tests.commtrace.analyze.second.run import Run
from tests.commtrace.analyze.second.snapshots import unlike_progress
from tests.commtrace.analyze.second.waited import delayed_calls

Row = dict[str, Any]


def _texts(ranks: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ranks)))


_PARTED = ("missing call", "extra call", "kind", "reduce_op", "root", "dtype", "size")


def divergences(run: Run) -> list[Row]:
    """Faults before which ranks parted, and both sides; of no cycle of waits, see tests/hangs."""
    found: list[Row] = []
    calls = _by_number(run)
    for row in consistency(run):
        members = sorted(rank for rank in run.members(row["group"]) if rank in run.ranks)
        blamed = [int(rank) for rank in row["ranks"].split(",") if rank and int(rank) in run.ranks]
        if row["is_one_of_ranks"]:
            blamed = []
        if row["problem"] not in _PARTED or row["number"] < 0 or not members:
            continue
        made = calls[row["group"]].get(row["number"], {})
        column = {"size": "payload_bytes"}.get(row["problem"], row["problem"])
        by_value: dict[Any, list[int]] = {}
        for rank in members:
            value = getattr(made[rank], column, made[rank].kind) if rank in made else None
            if blamed or "call" in row["problem"] or value not in (None, "", -1):
                by_value.setdefault(value, []).append(rank)
        pairs = [([rank for rank in side if rank in blamed], []) for side in by_value.values()]
        if blamed:
            rest = [rank for rank in members if rank not in blamed]
            pairs = [(own, rest) for own, _ in pairs]
        elif len(by_value) > 1:
            most = max(by_value.values(), key=len)
            pairs = [(side, most) for side in by_value.values() if side is not most]
        else:
            pairs = [(members[1:], members[:1])]
        for own, others in pairs:
            if own and others:
                sides = {"ranks": _texts(own), "others": _texts(others)}
                found.append({name: row[name] for name in _OF_FAULT} | sides)
    return found


_OF_FAULT = ("problem", "group", "mesh_axis", "number")


def _by_number(run: Run) -> dict[str, dict[int, dict[int, Any]]]:
    """Each rank's call, by group and sequence number."""
    found: dict[str, dict[int, dict[int, Any]]] = {}
    for call, number in zip(run.comm, run.numbers, strict=True):
        if call.kind not in TRANSFERS and call.seq >= 0:
            found.setdefault(call.group, {}).setdefault(number, {})[call.rank] = call
    return found


def _compared(calls: dict[int, Any]) -> dict[str, dict[int, Any]]:
    """Values of each field that must be equal, by rank, where they are known."""
    kinds = {rank: call.kind for rank, call in calls.items()}
    known = {
        "kind": kinds,
        "reduce_op": {rank: call.reduce_op for rank, call in calls.items() if call.reduce_op},
        "root": {rank: call.root for rank, call in calls.items() if call.root >= 0},
        "dtype": {rank: call.dtype for rank, call in calls.items() if call.dtype},
        "size": {
            rank: call.payload_bytes
            for rank, call in calls.items()
            if call.payload_bytes >= 0 and call.kind not in ("all_to_all", "gather", "scatter")
        },
    }
    return {"kind": kinds} if len(set(kinds.values())) > 1 else known


def _differing(calls: dict[int, Any]) -> dict[str, str]:
    """Fields in which calls differ, and the ranks outside of the majority.

    On a tie, these are all ranks.
    """
    found = {}
    for field, values in _compared(calls).items():
        votes = Counter(values.values()).most_common(2)
        if len(votes) == 2:
            is_tie = votes[0][1] == votes[1][1]
            blamed = [rank for rank, value in values.items() if value != votes[0][0]]
            found[field] = _texts([*values] if is_tie else blamed)
    apart = _unlike_ends(calls)
    if apart and "kind" not in found:
        found["size"] = _texts(set.intersection(*apart)) if len(apart) > 1 else ""
    return found


def _unlike_ends(calls: dict[int, Any]) -> list[set[int]]:
    """Pairs of ranks where the receiver does not expect what the sender sends."""
    ranks, found = sorted(calls), []
    for sender in ranks:
        for receiver in ranks:
            sent = calls[sender].input_splits.split(",")
            expected = calls[receiver].output_splits.split(",")
            if len(sent) == len(expected) == len(ranks) > 1:
                place, other = ranks.index(receiver), ranks.index(sender)
                if int(sent[place]) != int(expected[other]):
                    found.append({sender, receiver})
    return found


def _are_awaited(run: Run, absent: set[int], calls: Any) -> bool:
    """True if all who arrived wait, and those who did not had not ended their recording."""
    return (
        "imported_from" not in run.facts
        and all(call.complete_ns < 0 for call in calls.values())
        and all(not run.ranks[rank].complete or run.ranks[rank].end_ns < 0 for rank in absent)
    )


def consistency(run: Run) -> list[Row]:
    """Mismatches, missing calls and transfers; for deadlock cycles see `has_cycle`."""
    found: list[Row] = []

    def add(
        problem: str, group: str, number: int, ranks: str, *, is_fault: bool = True,
        is_one_of_ranks: bool = False,
    ) -> None:  # fmt: skip
        row = {"problem": problem, "is_fault": is_fault, "group": group, "number": number}
        row["is_one_of_ranks"] = is_one_of_ranks
        found.append(row | {"ranks": ranks, "mesh_axis": run.axis(group)})

    for group, numbers in _by_number(run).items():
        differing = next((n for n in sorted(numbers) if _differing(numbers[n])), None)
        if differing is not None:
            for field, ranks in _differing(numbers[differing]).items():
                values = _compared(numbers[differing]).get(field, {}).values()
                votes = [num for _, num in Counter(values).most_common(2)]
                add(field, group, differing, ranks, is_one_of_ranks=len({*votes}) < len(votes))
        members = [rank for rank in run.members(group) if rank in run.ranks]
        missed = [n for n in sorted(numbers) if set(members) - numbers[n].keys()]
        if members and missed and (differing is None or missed[0] <= differing):
            arrived = set(members) & numbers[missed[0]].keys()
            absent = set(members) - arrived
            blamed = (
                absent
                if len(absent) < len(arrived)
                else arrived
                if len(arrived) < len(absent)
                else absent
                if _are_awaited(run, absent, numbers[missed[0]])
                else {*absent, *arrived}
                if len(absent) == len(arrived) == 1
                else ()
            )
            problem = "extra call" if len(absent) > len(arrived) else "missing call"
            of_two = len(arrived) == 1 and blamed == {*absent, *arrived}
            add(problem, group, missed[0], _texts(blamed), is_one_of_ranks=of_two)
    uneven = {
        (group, *sorted((source, target)), len(sent) != len(received))
        for (group, source, target), (sent, received) in _transfers(run).items()
        if len(sent) != len(received)
        or (min([*sent, *received], default=0) >= 0 and sum(sent) != sum(received))
    }
    for group, low, high, _ in uneven:
        add("transfer", group, -1, _texts((low, high)), is_one_of_ranks=True)
    apart = min(replicas(run), key=lambda row: row["order"], default=None)
    if apart is not None:
        add("replicas differ", "", -1, apart["ranks"])
    for problem, is_fault, group, ranks in unlike_progress(run):
        add(problem, group, -1, _texts(ranks), is_fault=is_fault)
    return found


def _transfers(run: Run) -> dict[tuple[str, int, int], tuple[list[int], list[int]]]:
    """Payload sizes sent and received, by group, sender and receiver."""
    ways: dict[tuple[str, int, int], tuple[list[int], list[int]]] = {}
    for call in run.comm:
        if call.kind in TRANSFERS and call.peer in run.ranks:
            ends = (call.rank, call.peer) if call.kind == "send" else (call.peer, call.rank)
            cell = ways.setdefault((call.group, *ends), ([], []))
            cell[call.kind == "recv"].append(call.payload_bytes)
    return ways


def has_cycle(run: Run) -> bool:
    """Return whether the collectives before the first mismatch have a cyclic order.

    Repeatedly removes the calls that come first on all of their ranks (Kahn's algorithm).
    """
    made = _by_number(run)
    until = {
        group: min((n for n in numbers if _differing(numbers[n])), default=len(run.comm))
        for group, numbers in made.items()
    }
    queues: dict[tuple[int, int], list[tuple[int, tuple[str, int]]]] = {}
    for group, numbers in made.items():
        for number, calls in numbers.items():
            for call in calls.values() if number < until[group] else ():
                queue = queues.setdefault((call.rank, call.thread), [])
                queue.append((call.id, (group, number)))
    left = [[node for _, node in sorted(queue, reverse=True)] for queue in queues.values()]
    while any(left):
        blocked = {node for queue in left for node in queue[:-1]}
        free = {queue[-1] for queue in left if queue} - blocked
        if not free:
            return True
        for queue in left:
            if queue and queue[-1] in free:
                queue.pop()
    return False


_LAYOUT = re.compile(r"(\w+)\[([\d,]*)\] (\w+):(\S+)$")
_BYTES = {"f32": 4, "bf16": 2}


def _layout(text: str) -> tuple[str, tuple[int, ...], str] | None:
    """Parse the dtype, shape and placement of a layout on a mesh of a single axis."""
    found = _LAYOUT.match(text)
    return found and (found[1], tuple(int(n) for n in found[2].split(",") if n), found[4])


def findings(run: Run) -> list[Row]:
    """Apply every rule to every call; a rule that needs data the trace lacks finds nothing."""
    if not run.comm:
        return []
    return [
        _row(run, name, *found)
        for name, rule in RULES.items()
        for found in rule(run)
    ]  # fmt: skip


Found = tuple[list[Any], float, str]
"""Calls, their bytes over all ranks, and a module if the rule names any."""


def _row(run: Run, rule: str, calls: list[Any], size: float, module: str) -> Row:
    calls = sorted(calls, key=lambda call: (call.id, call.rank))

    def common(values: list[str]) -> str:
        return values[0] if len(set(values)) == 1 else ""

    first = calls[0]
    script = str(run.trace.run.get("command", "")).partition(" ")[0]
    folder = f"{script.rpartition('/')[0]}/"
    place = f"{first.source_file}:{first.source_line}"
    return {
        "rule": rule,
        "concerns": "machine" if rule in ("shared_cores", "slow_link") else "program",
        "module": module or common([call.module for call in calls]),
        "op": common([call.op for call in calls]),
        "kind": common([call.kind for call in calls]),
        "mesh_axis": common([run.axis(call.group) for call in calls]),
        "source": place.removeprefix(folder) if first.source_file else "",
        "num_calls": len(calls) / run.num_ranks,
        "cost_bytes": size / run.num_ranks,
        "evidence": ",".join(f"{call.rank}:{call.id}" for call in calls[:20]),
    }


def _wire(run: Run, calls: list[Any], parts: list[float] | None = None) -> float:
    """Sum of the known sizes, or of a part of each, without steps that are left out."""
    pairs = zip(calls, parts or [1.0] * len(calls), strict=True)
    counted = [pair for pair in pairs if pair[0].step < 0 or run.is_steady(pair[0].step)]
    if not counted:
        return 0.0
    return _known_sum([call.wire_bytes for call, _ in counted], [part for _, part in counted])


def _known_sum(values: list[int], parts: list[float] | None = None) -> float:
    pairs = zip(values, parts or [1.0] * len(values), strict=True)
    known = [value * part for value, part in pairs if value >= 0]
    return float(sum(known)) if known else math.nan


def _grouped(calls: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for call in calls:
        found.setdefault(key(call), []).append(call)
    return found


def _repeated_all_gather(run: Run) -> list[Found]:
    seen: set[Any] = set()
    again = []
    for call in sorted(run.comm, key=lambda call: call.id):
        if (
            call.kind == "all_gather"
            and call.carries == "parameters"
            and call.parameters
            and call.phase != "optimizer"
            and call.step >= 0
        ):
            key = call.rank, call.group, call.step, call.parameters
            again += [call] if key in seen else []
            seen.add(key)
    same = [call for call in _same_again(run) if call not in again]
    groups = [*_grouped(again, lambda call: (call.parameters, call.phase == "forward")).values()]
    where = _grouped(same, lambda c: (c.module, c.op, c.source_file, c.source_line))
    groups += where.values()
    return [(calls, _wire(run, calls), "") for calls in groups]


def _same_again(run: Run) -> list[Any]:
    """Gathers whose members all last sent the same tensors in the same earlier gather."""
    found = []
    for numbers in _by_number(run).values():
        last: dict[tuple[int, int], int] = {}
        for number in sorted(numbers):
            calls = [call for call in numbers[number].values() if call.kind == "all_gather"]
            if {last.get((c.rank, c.sent_id), -1) for c in calls if c.sent_id >= 0} - {-1}:
                before = {
                    last.get((c.rank, c.sent_id), -1) if c.sent_id >= 0 else -1 for c in calls
                }
                found += calls if len(before) == 1 else []
            last |= {(call.rank, call.sent_id): number for call in calls}
    return found


def _in_a_row(run: Run) -> list[tuple[Any, Any]]:
    """Pairs of consecutive calls with known layouts, on the same rank, group, step and thread."""
    last: dict[Any, Any] = {}
    pairs = []
    for call in sorted(run.comm, key=lambda call: call.id):
        if call.source_spec and call.target_spec:
            key = call.rank, call.group, call.step, call.thread
            pairs += [(last[key], call)] if key in last else []
            last[key] = call
    return pairs


def _ping_pong(run: Run) -> list[Found]:
    pairs = [(a, b) for a, b in _in_a_row(run) if a.phase == b.phase]
    undone = [
        b for a, b in pairs if (b.source_spec, b.target_spec) == (a.target_spec, a.source_spec)
    ]
    shards = _own_shards(run)
    again = [
        b
        for a, b in pairs
        if a.kind == b.kind == "all_gather"
        and b.phase == "forward"
        and b.data_ready_ns > a.complete_ns >= 0
        and not _padding(b, b.source_spec)
        and (a.source_spec, a.target_spec) == (b.source_spec, b.target_spec)
        and (b.rank, b.id) not in shards
    ]  # fmt: skip
    found = [
        (calls, _wire(run, calls), module)
        for rows in (undone, again)
        for (module, *_), calls in _grouped(
            rows, lambda call: (call.module, call.source_spec, call.target_spec)
        ).items()
    ]
    cells: dict[Any, list[tuple[Any, float]]] = {}
    for call in run.comm:
        dim = shards.get((call.rank, call.id))
        if call.kind == "all_gather" and dim is not None:
            spec = _layout(call.source_spec)
            is_same = bool(spec and run.axis(call.group)) and spec[2] == f"S({dim})"
            part = 1.0 if is_same else 1 - 1 / run.groups[call.group].size
            key = call.module, call.source_spec, dim, is_same
            cells.setdefault(key, []).append((call, part))
    for (module, *_), pairs_of in cells.items():
        calls, parts = [call for call, _ in pairs_of], [part for _, part in pairs_of]
        found.append((calls, _wire(run, calls, parts), module))
    return found


def _own_shards(run: Run) -> dict[tuple[int, int], int]:
    """The dim along which all members of a collective use their own shard only, by rank and id."""
    found = {}
    for numbers in _by_number(run).values():
        for members in numbers.values():
            used = {call.used_shard for call in members.values()}
            if len(used) == 1 and max(used) > 0:
                dim = used.pop() - 1
                found |= dict.fromkeys(((c.rank, c.id) for c in members.values()), dim)
    return found


def _all_reduce_then_shard(run: Run) -> list[Found]:
    shards = _own_shards(run)
    reduces = [c for c in run.comm if c.kind == "all_reduce" and (c.rank, c.id) in shards]
    by = _grouped(reduces, lambda c: (c.module, c.target_spec, shards[c.rank, c.id]))
    return [(calls, _wire(run, calls) / 2, module) for (module, *_), calls in by.items()]


def _small_messages(run: Run) -> list[Found]:
    small = [
        call
        for call in run.comm
        if 0 < call.payload_bytes < 64_000 and call.step >= 0 and call.stage < 0
        if call.carries not in ("flags", "activations")
    ]
    of_steps = _grouped(small, lambda c: (c.group, c.kind, c.phase, c.carries, c.rank, c.step))
    many = {}
    for key, calls in of_steps.items():
        bundles: list[list[Any]] = []
        for call in sorted(calls, key=lambda call: call.id):
            used = bundles[-1][-1].result_used_ns if bundles else -1
            if not bundles or 0 <= used <= call.data_ready_ns:
                bundles.append([])
            bundles[-1].append(call)
        several = [bundle for bundle in bundles if len(bundle) > 1]
        if sum(map(len, several)) >= 16:
            many[key] = several
    found: list[Found] = []
    for name in {key[:4] for key in many}:
        own = [bundle for key, of_step in many.items() if key[:4] == name for bundle in of_step]
        calls = [call for bundle in own for call in bundle]
        found.append((calls, 0.0, ""))
    return found


def _unused_parameter_flags(run: Run) -> list[Found]:
    found: list[Found] = []
    by = _grouped(
        [call for call in run.comm if call.carries == "flags"], lambda c: (c.module, c.group)
    )
    for calls in by.values():
        message = {call.reason.partition(", and ")[2] for call in calls}
        is_known = "no parameter was unused" in message
        recurs = len(calls) > run.num_ranks
        if is_known and recurs and "some parameters were unused" not in message:
            found.append((calls, _wire(run, calls), ""))
    return found


def _float32_messages(run: Run) -> list[Found]:
    def top(call: Any) -> str:
        return ".".join(call.module.split(".")[:2])

    def is_computed(call: Any) -> bool:
        return call.data_ready_ns >= 0 and call.carries != "parameters"

    halves = {
        top(c)
        for c in run.comm
        if c.dtype in ("bfloat16", "float16") or (c.carries == "parameters" and c.cast_dtype)
    } - {""}
    wide = [
        call
        for call in run.comm
        if call.dtype == "float32"
        and call.payload_bytes >= 64_000
        and call.module
        and (call.cast_dtype or (top(call) in halves and not is_computed(call)))
        and call.carries != "gradients"
        and call.phase != "optimizer"
    ]
    by = _grouped(wide, lambda call: (top(call), call.kind, call.phase, call.cast_dtype))
    return [(calls, _wire(run, calls) / 2, key[0]) for key, calls in by.items()]


def _replication_fallback(run: Run) -> list[Found]:
    fell = []
    for call in run.comm:
        source, target = _layout(call.source_spec), _layout(call.target_spec)
        is_operator = call.op not in ("", "redistribute", "redistribute.backward")
        if is_operator and source and target and source[2][0] == "S" and target[2] == "R":
            fell.append(call)
    by = _grouped(fell, lambda c: (c.op, c.module, c.argument, c.source_spec, c.target_spec))
    return [(calls, _wire(run, calls), "") for calls in by.values()]


def _outside_modules(run: Run) -> list[Found]:
    if not any(call.module or call.module_class for call in run.comm):
        return []
    passes = ("forward", "backward", "recompute")
    calls = [
        call for call in run.comm if call.phase in passes and not (call.module or call.module_class)
    ]
    by = _grouped(calls, lambda call: (call.kind, call.phase, call.source_file, call.source_line))
    return [(calls, 0.0, "") for calls in by.values()]


def _padded_shards(run: Run) -> list[Found]:
    cells: dict[Any, list[tuple[Any, float]]] = {}
    for call in run.comm:
        if call.kind not in ("all_gather", "reduce_scatter") or call.payload_bytes <= 0:
            continue
        spec = call.source_spec if call.kind == "all_gather" else call.target_spec
        if waste := _padding(call, spec):
            key = call.kind, spec, call.module
            cells.setdefault(key, []).append((call, waste / call.payload_bytes))
    return [
        (
            calls,
            _wire(run, calls, parts),
            "",
        )
        for pairs in cells.values()
        for calls, parts in [([call for call, _ in pairs], [part for _, part in pairs])]
    ]


def _padding(call: Any, spec: str) -> int:
    known = _layout(spec)
    if known is None or known[2][0] != "S":
        return 0
    return max(call.payload_bytes - prod(known[1]) * _BYTES[known[0]], 0)


def _repeated_reduction(run: Run) -> list[Found]:
    seen: set[Any] = set()
    scattered: set[Any] = set()
    again: list[Any] = []
    sizes: dict[Any, int] = {}
    others: list[Any] = []
    for call in sorted(run.comm, key=lambda call: call.id):
        if call.kind not in ("all_reduce", "reduce_scatter") or call.step < 0:
            continue
        where = call.rank, call.group, call.step
        if call.carries == "gradients" and call.parameters and not _is_too_small(run, call):
            if call.kind == "reduce_scatter":
                scattered.add((call.rank, call.step, call.parameters))
            key = where, call.kind, call.parameters, call.payload_bytes
            if key in seen:
                again.append(call)
            else:
                sizes[where] = sizes.get(where, 0) + call.payload_bytes
            seen.add(key)
        elif call.kind == "all_reduce" and not call.carries and call.phase != "forward":
            others.append(call)
    lines = _grouped(others, lambda c: ((c.rank, c.group, c.step), (c.source_file, c.source_line)))
    once_more: dict[Any, list[Any]] = {}
    for (where, line), calls in lines.items():
        if 0 < sum(call.payload_bytes for call in calls) == sizes.get(where, -1):
            once_more.setdefault(line, []).extend(calls)

    def sort(call: Any) -> str:
        if call.kind == "reduce_scatter" or call.target_spec:
            return "sharded"
        is_scattered = (call.rank, call.step, call.parameters) in scattered
        return "between replicas" if is_scattered else "replicated"

    groups = [*_grouped(again, sort).values(), *once_more.values()]
    return [(calls, _wire(run, calls), "") for calls in groups]


def _is_too_small(run: Run, call: Any) -> bool:
    """Less than the share of the same gradients that a reduce-scatter leaves a rank."""
    shares = [
        each.payload_bytes / run.groups[each.group].size
        for each in run.comm
        if (each.rank, each.carries, each.parameters) == (call.rank, "gradients", call.parameters)
        and each.kind == "reduce_scatter"
    ]
    return 0 <= call.payload_bytes < max(shares, default=0)


def _all_delays(run: Run) -> list[tuple[Any, int, int]]:
    """Delayed collectives of all members: the last call, the delay, and the number that wait."""
    first = min((step.step for step in run.steps), default=-1)
    warm_up = first if first >= 0 and not run.is_steady(first) else None
    return [
        (last, min(wait for _, wait in others), len(others))
        for last, others in delayed_calls(run)
        if last.kind in EVERYONE and (last.step >= 0 or not run.steps) and last.step != warm_up
    ]


def _delays(run: Run) -> list[tuple[Any, int, int]]:
    """Delays not for lack of a core; of a known reason, where the run states who had no core."""
    states_cores = any(call.run_delay_ns >= 0 for call in run.comm)
    unsure = {"no free core", "" if states_cores else "no free core"}
    return [event for event in _all_delays(run) if _reason(run, event[0]) not in unsure]


def _reason(run: Run, late: Any) -> str:
    return reasons(run)[late.rank, late.id][0]


def _cost(events: list[tuple[Any, int, int]]) -> float:
    return float(sum(delay * num for _, delay, num in events))


def _always_late(run: Run) -> set[int]:
    found = set()
    events = _delays(run)
    for rank in run.ranks:
        own = [event for event in events if event[0].rank == rank]
        cost, squares = _cost(own), sum((delay * num) ** 2 for _, delay, num in own)
        rest = _cost(events) - cost
        is_dear = cost > 0 and cost * 50 >= run.counted_ns
        if is_dear and cost * (run.num_ranks - 1) >= 5 * rest and cost**2 >= 4 * squares:
            found.add(rank)
    return found


def _stalled(run: Run) -> list[tuple[Any, int, int]]:
    events = _delays(run)
    steps = sorted({step.step for step in run.steps})
    usual = median([delay for _, delay, _ in _all_delays(run)] or [0])
    numbers = {
        (call.rank, call.id): number for call, number in zip(run.comm, run.numbers, strict=True)
    }
    return [
        (last, delay, num)
        for last, delay, num in events
        if numbers[last.rank, last.id] > 0
        and last.step != (steps[0] if len(steps) > 1 else -1)
        and delay * num * 50 >= run.counted_ns
        and delay >= 10 * usual
        and last.rank not in _always_late(run)
    ]


def _place(call: Any) -> tuple[Any, ...]:
    return call.kind, call.phase, call.module, call.source_file, call.source_line


def _straggler(run: Run) -> list[Found]:
    found: list[Found] = []
    for rank in _always_late(run):
        own = [event for event in _delays(run) if event[0].rank == rank]
        places = _grouped(own, lambda event: _place(event[0]))
        most = max(places.values(), key=_cost)
        found.append(([last for last, *_ in most], 0.0, ""))
    return found


def _stall(run: Run) -> list[Found]:
    by = _grouped(_stalled(run), lambda event: event[0].rank)
    return [([last for last, *_ in own], 0.0, "") for own in by.values()]


def _load_imbalance(run: Run) -> list[Found]:
    """Delays by changing ranks."""
    out = {(last.rank, last.id) for last, *_ in _stalled(run)}
    out |= {
        (call.rank, call.id)
        for call, number in zip(run.comm, run.numbers, strict=True)
        if number == 0
    }
    late = _always_late(run)
    rest = [
        event
        for event in _delays(run)
        if event[0].rank not in late
        and (event[0].rank, event[0].id) not in out
        and (event[0].step < 0 or run.is_steady(event[0].step))
    ]
    squares = sum((delay * num) ** 2 for _, delay, num in rest)
    is_much = _cost(rest) >= max(0.15 * run.counted_ns, 1) and _cost(rest) ** 2 >= 4 * squares
    several = len({last.rank for last, *_ in rest}) > 1
    if not (is_much and several):
        return []
    return [([last for last, *_ in rest], 0.0, "")]


def _shared_cores(run: Run) -> list[Found]:
    """Time without a core, no earlier than its step; threads without a core at once count once."""
    begins = {
        (step.rank, step.step): step.start_ns
        for step in reversed(run.steps)
        if 0 <= step.start_ns < step.end_ns
    }
    calls, cost = [], 0.0
    for rank, spans in run.without_core.items():
        until = -math.inf
        of_steps = [
            (max(begin, begins.get((rank, call.step), math.inf) if run.steps else begin), end, call)
            for (begin, end), call in spans
        ]
        for begin, end, call in sorted(of_steps, key=lambda each: each[:2]):
            if max(begin, until) < end:
                calls.append(call)
                if call.step < 0 or run.is_steady(call.step):
                    cost += end - max(begin, until)
                until = end
    return [(calls, 0.0, "")] if cost >= max(0.05 * run.counted_ns, 1) else []


def _overlap_lost(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in losses(run)]


def _object_collectives(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in each_step.carried_objects(run)]


def _redundant_barrier(run: Run) -> list[Found]:
    every = each_step.barriers(run)
    return [(calls, _wire(run, calls), "") for calls in every]


def _unchanged_broadcast(run: Run) -> list[Found]:
    every = each_step.broadcasts(run)
    return [(calls, _wire(run, calls), "") for calls in every]


def _reduce_then_broadcast(run: Run) -> list[Found]:
    every = each_step.reduced_to_root(run)
    return [([call for call, _ in pairs], 0.0, "") for pairs in every]


def _serial_receives(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in each_step.serial_receives(run)]


def _serial_sends(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in each_step.serial_sends(run)]


def _metrics_each_step(run: Run) -> list[Found]:
    return [(calls, _wire(run, calls), "") for calls in by_operators.metrics(run)]


def _gathered_logits(run: Run) -> list[Found]:
    return [
        (calls, _wire(run, calls, parts), calls[0].module)
        for calls, parts in by_operators.gathered_logits(run, _layout)
    ]


def _dependent_communication(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in by_operators.dependent(run)]


def _sums_apart(run: Run) -> list[Found]:
    return [(calls, _wire(run, calls), "") for calls in by_operators.sums_apart(run)]


def _growing_steps(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in trends.growing(run)]


def _slow_link(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in trends.slow_groups(run)]


def _broadcast_buffers(run: Run) -> list[Found]:
    return [(calls, _wire(run, calls), "") for calls in each_step.buffers(run)]


def _single_unit(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in each_step.single_units(run)]


def _copied_gradients(run: Run) -> list[Found]:
    return [(calls, 0.0, "") for calls in each_step.copies(run)]


RULES: dict[str, Callable[[Run], list[Found]]] = {
    "repeated_all_gather": _repeated_all_gather,
    "ping_pong": _ping_pong,
    "all_reduce_then_shard": _all_reduce_then_shard,
    "small_messages": _small_messages,
    "unused_parameter_flags": _unused_parameter_flags,
    "float32_messages": _float32_messages,
    "replication_fallback": _replication_fallback,
    "outside_modules": _outside_modules,
    "padded_shards": _padded_shards,
    "repeated_reduction": _repeated_reduction,
    "straggler": _straggler,
    "stall": _stall,
    "load_imbalance": _load_imbalance,
    "shared_cores": _shared_cores,
    "overlap_lost": _overlap_lost,
    "imbalance": imbalance,
    "pipeline_bubbles": piped,
    "object_collectives": _object_collectives,
    "redundant_barrier": _redundant_barrier,
    "unchanged_broadcast": _unchanged_broadcast,
    "reduce_then_broadcast": _reduce_then_broadcast,
    "serial_receives": _serial_receives,
    "serial_sends": _serial_sends,
    "metrics_each_step": _metrics_each_step,
    "gathered_logits": _gathered_logits,
    "dependent_communication": _dependent_communication,
    "sums_apart": _sums_apart,
    "broadcast_buffers": _broadcast_buffers,
    "growing_steps": _growing_steps,
    "slow_link": _slow_link,
    "single_unit": _single_unit,
    "copied_gradients": _copied_gradients,
}
