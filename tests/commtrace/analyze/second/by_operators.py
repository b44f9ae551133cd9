"""Second computation of the rules that follow data through operators, call by call."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.commtrace.analyze.second.each_step import most_steps
from tests.commtrace.analyze.second.lost import chances
from tests.commtrace.analyze.second.run import Run

_TRAINS = ("forward", "backward", "recompute", "optimizer")
_DECIDING = ("isnan", "isinf", "isfinite", "any", "all", "eq", "ne", "lt", "le", "gt", "ge")


class Operators:
    """The operators of a run by rank and id, with what each has read and who has read it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_id = {(each.rank, each.id): each for each in run.ops}
        self.read: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self.users: dict[tuple[int, str, int], list[Any]] = {}
        for each in run.ops:
            for text in filter(None, each.needs.split(",")):
                source = "op", each.id - int(text.removeprefix("c"))
                if text[0] == "c":
                    issued = [
                        (call.issue_ns, call.id)
                        for call in run.comm
                        if call.rank == each.rank and 0 <= call.issue_ns <= each.start_ns
                    ]
                    latest = max(issued)[1] if issued else -1
                    source = "call", latest - int(text[1:])
                if source[1] >= 0:
                    self.read.setdefault((each.rank, each.id), []).append(source)
                    self.users.setdefault((each.rank, *source), []).append(each)

    def last(self, call: Any, phase: str) -> int:
        starts = [
            each.start_ns
            for each in self.run.ops
            if (each.rank, each.phase) == (call.rank, phase) and each.start_ns < call.issue_ns
        ]
        return max(starts, default=-1)


def _name(op: str) -> str:
    return op.split(".")[1] if "." in op else op


def _begins_backward(ops: Operators, loss: Any) -> bool:
    """Return whether the first gradient is that of a loss, or of what was computed of it."""
    todo = [loss]
    while todo:
        users = ops.users.get((loss.rank, "op", todo.pop().id), [])
        if any(_name(each.op) == "ones_like" for each in users):
            return True
        todo += [each for each in users if each.phase not in _TRAINS]
    return False


def _is_metric(ops: Operators, call: Any) -> bool:
    """Return whether a value is older than the last backward pass, and is not read by training."""
    backward, todo = ops.last(call, "backward"), [("op", call.data_op_id)]
    made = [
        each.start_ns
        for each in ops.run.ops
        if (each.rank, each.op, each.phase) == (call.rank, "aten.lift_fresh.default", "other")
        and backward < each.start_ns < call.issue_ns
    ]
    if backward < 0 or call.used_by_call_id >= 0 or made:
        return False
    while todo:
        sort, number = todo.pop()
        one = ops.by_id.get((call.rank, number))
        decides = one is not None and _name(one.op).rstrip("_") in _DECIDING
        if sort == "call" or one is None or one.phase in _TRAINS[1:] or decides:
            return False
        if one.start_ns >= backward or not _begins_backward(ops, one):
            more = ops.read.get((call.rank, number), [])
            if one.phase == "forward" or not more:
                return False
            todo += more
    readers = [*ops.users.get((call.rank, "call", call.id), [])]
    while readers:
        one = readers.pop()
        if one.phase in _TRAINS:
            return False
        readers += ops.users.get((call.rank, "op", one.id), [])
    own = [each for each in ops.run.ops if each.rank == call.rank]
    later = [each.start_ns for each in own if each.phase == "optimizer"]
    until = min([at for at in later if at > call.issue_ns], default=math.inf)
    is_read = any(
        (each.op, each.phase) == ("aten._local_scalar_dense.default", "other")
        and call.issue_ns < each.start_ns < until
        for each in own
    )
    return ops.last(call, "optimizer") > backward or not is_read


def metrics(run: Run) -> list[list[Any]]:
    """Values that a line collects in most steps, although training does not need them."""
    calls = [
        call
        for call in run.comm
        if call.kind in ("all_reduce", "all_gather", "reduce", "gather")
        and call.dtype in ("float64", "float32", "bfloat16", "float16")
        and 0 < call.payload_bytes <= 1024 * (
            1 if call.kind == "all_reduce" or call.group not in run.groups
            else max(run.groups[call.group].size, 1)
        )
        and call.phase not in _TRAINS
        and not call.carries
        and not call.source_spec
        and call.blocked_ns >= 0
    ]  # fmt: skip
    found, ops = [], Operators(run)
    for line in most_steps(run, calls):
        for kind in sorted({call.kind for call in line}):
            own = [call for call in line if call.kind == kind]
            known = [
                _is_metric(ops, call)
                for call in own
                if (one := ops.by_id.get((call.rank, call.data_op_id))) and one.bytes >= 0
            ]
            lost = sum(call.blocked_ns for call in own if run.is_steady(call.step))
            if known and all(known) and lost >= max(0.05 * run.counted_ns, 1):
                found.append(own)
    return found


def gathered_logits(run: Run, layout: Any) -> list[tuple[list[Any], list[float]]]:
    """Gathers of logits for a loss by module, layout and axis, with the part that is saved."""
    ops, of_loss = Operators(run), set[tuple[Any, ...]]()
    moving = ("cat", "clone", "copy", "_to_copy", "contiguous", "_unsafe_view")
    gathers = {}
    for call in run.comm:
        source, target = layout(call.source_spec), layout(call.target_spec)
        if call.kind == "all_gather" and source and target and source[1] and target[2] == "R":
            left = 24 / (source[1][-1] * {"f32": 4, "bf16": 2}[source[0]])
            if source[2] == f"S({len(source[1]) - 1})" and run.axis(call.group) and left <= 0.1:
                gathers[call.rank, call.id] = call, 1 - left
    for loss in run.ops:
        todo = [loss] if _name(loss.op) in ("_log_softmax", "log_softmax") else []
        while todo:
            one = todo.pop()
            for sort, number in ops.read.get((one.rank, one.id), []):
                if sort == "call" and (one.rank, number) in gathers:
                    of_loss.add(_place_of_logits(gathers[one.rank, number][0]))
                before = ops.by_id.get((one.rank, number)) if sort == "op" else None
                if before is not None and _name(before.op).rstrip("_") in (
                    *moving,
                    "mul",
                    "div",
                    "tanh",
                ):
                    todo.append(before)
    found: dict[Any, tuple[list[Any], list[float]]] = {}
    for call, part in gathers.values():
        if _place_of_logits(call) in of_loss:
            key = call.module, call.source_spec, run.axis(call.group)
            calls, parts = found.setdefault(key, ([], []))
            calls.append(call)
            parts.append(part)
    return [*found.values()]


def _place_of_logits(call: Any) -> tuple[Any, ...]:
    place = call.group, call.module, call.source_file, call.source_line
    return (*place, call.source_spec, call.target_spec)


def sums_apart(run: Run) -> list[list[Any]]:
    """All but the largest of reductions whose results only an addition reads."""
    ops = Operators(run)
    added: dict[Any, list[Any]] = {}
    for call in run.comm:
        is_sum = call.kind in ("all_reduce", "reduce_scatter") and call.reduce_op in ("sum", "avg")
        if is_sum and call.used_by_op_id >= 0 and call.payload_bytes > 0:
            size = call.payload_bytes if call.kind == "reduce_scatter" else 0
            alike = call.group, call.kind, call.reduce_op, call.dtype, size
            added.setdefault((call.rank, call.used_by_op_id, *alike), []).append(call)
    verdicts: dict[Any, list[bool]] = {}
    others: list[tuple[Any, Any]] = []
    for calls in added.values():
        first, *rest = sorted(calls, key=lambda call: (-call.payload_bytes, call.id))
        known = [
            len({each.id for each in users}) == 1 and _is_addition(users[0])
            for call in calls
            if (users := ops.users.get((call.rank, "call", call.id)))
        ]
        for call in rest:
            where = call.group, call.kind, call.module, call.phase
            place = *where, call.source_file, call.source_line
            others.append((call, (place, (first.module, call.module, call.group, call.phase))))
            verdicts.setdefault(place, []).extend([all(known)] if known else [])
    found: dict[Any, list[Any]] = {}
    for call, (place, (module, other, group, phase)) in others:
        if verdicts[place] and all(verdicts[place]):
            found.setdefault((module, other, run.axis(group), phase), []).append(call)
    return [*found.values()]


def _is_addition(op: Any) -> bool:
    """Return whether an operator adds tensors, of which one has the shape of the sum."""
    given = [json.loads(text) for text in op.shapes.split(";") if text]
    most = max(map(len, given), default=0)
    padded = [[1] * (most - len(shape)) + shape for shape in given]
    whole = [max(sizes) for sizes in zip(*padded, strict=True)]
    return _name(op.op) in _ADDITIONS and (not given or whole in padded)


_ADDITIONS = ("add", "add_", "sub", "sub_")


def dependent(run: Run) -> list[list[Any]]:
    """Transfers of most steady steps that nothing could hide, by axis and kind."""
    moved: dict[tuple[int, int], float] = {}
    calls = []
    for each in chances(run):
        call = each["call"]
        wait = run.wait_of[call.rank, call.id]
        if (
            each["reason"] == "dependent"
            and call.kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
            and call.phase in ("forward", "backward", "recompute")
            and not call.carries
            and call.payload_bytes > 0
            and run.is_steady(call.step)
        ):
            calls.append(call)
            time = call.blocked_ns - wait[0] if wait is not None else math.nan
            moved[call.rank, call.id] = time
    cells: dict[Any, list[Any]] = {}
    for call in (call for line in most_steps(run, calls) for call in line):
        cells.setdefault((run.axis(call.group), call.kind), []).append(call)
    found = []
    for own in cells.values():
        times = [moved[call.rank, call.id] for call in own]
        known = [time for time in times if not math.isnan(time)]
        is_much = sum(known) >= max(0.15 * run.counted_ns, 1)
        if is_much and len(known) >= 0.9 * len(own):
            found.append(own)
    return found
