"""Losses that ranks collect in most steps, for which all of them wait.

The trace shows that training does not need the result: the loss, at which the backward pass began,
was computed before that pass and is collected after it, and no pass and no optimizer reads what was
collected. Gradients, their norms, and numbers that a loss is divided by are other values.

    forward ── loss ── backward ── optimizer ── all_reduce(loss) ── next step
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.findings.each_step import by_line
from commtrace.analyze.findings.finding import (
    REMOVE,
    Evidence,
    Finding,
    Rule,
    Selected,
    calls_in,
    calls_that,
    selected,
)
from commtrace.analyze.findings.needs import DURATION, ORIGINS, SIZES, STEPS
from commtrace.analyze.findings.origins import Details
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.measures import counted_ns
from commtrace.analyze.measures.selections import is_value
from commtrace.analyze.measures.steady_steps import is_counted
from commtrace.analyze.run.frame import Frames
from commtrace.units import text_of_bytes, text_of_duration

_TRAINING = ("forward", "backward", "recompute", "optimizer")
_OF_DECISIONS = frozenset(
    ("isnan", "isinf", "isfinite", "any", "all", "eq", "ne", "lt", "le", "gt", "ge")
)
"""Operators whose results let ranks decide together, such as to skip a step."""
_FROM_PYTHON, _BEGIN_OF_BACKWARD = "aten.lift_fresh.default", "ones_like"
_TO_PYTHON = "aten._local_scalar_dense.default"
_NEVER = 1 << 62
_MOST_BYTES = 1024
"""Largest message of a rank: a few numbers, that cost nothing but the wait for all ranks."""
_MOST_OPERATORS = 64
"""Operators behind a value, or in front of a result, from which on it is no simple metric."""


def metrics_each_step(frames: Frames) -> list[Finding]:
    """Losses that a line collects in most steps, and whose sum or list training does not need."""
    least = max(frames.settings.threshold("metric_share") * counted_ns(frames), 1)
    return [
        Finding(_title(frames, str(kind), calls), _ADVICE, calls)
        for (kind, *_), calls in selected(frames, _metrics)
        if calls.lost_ns >= least
    ]


_ADVICE = (
    "If the loss is only logged: collect it every N steps; or add it up on each rank, and collect "
    "the sum when it is logged; or use async_op=True, and read the result in the next step. "
    "`.item()` in each step waits for the device as well."
)


def _title(frames: Frames, kind: str, calls: Evidence) -> str:
    num = len(calls.rows)
    own = frames.timed_steps["step"]
    num_steps = max(own[is_counted(frames, own)].nunique(), 1)
    each = max(frames.num_ranks, 1) * num_steps
    waited = f", {text_of_duration(calls.share / each)} of it for the last rank to arrive"
    return (
        f"In most steps, {calls_that(frames, num, f' of {kind}', 'carry')} "
        f"{text_of_bytes(calls.payload_bytes / num)} of a loss that training does not need: it is "
        f"collected after the backward pass{calls.at_place}. Ranks are blocked for "
        f"{text_of_duration(calls.lost_ns / each)} of a step by it{waited * (calls.share > 0)}."
    )


def _metrics(part: Frames) -> Selected:
    """Return such calls by kind and line; their share is the wait for the last rank, in ns."""
    comm = part.comm
    small = comm[is_value(comm) & (comm["step"] >= 0) & (comm["blocked_ns"] >= 0)]
    sizes = dict(zip(part.groups["name"], part.groups["size"], strict=True))
    num = small["group"].astype(object).map(sizes).fillna(1).clip(lower=1)
    own_bytes = small["payload_bytes"] / num.where(small["kind"] != "all_reduce", 1)
    small = small[own_bytes <= _MOST_BYTES]
    if small.empty:
        return {}
    found: Selected = {}
    details = Details(part)
    waited = arrivals(part)["wait_ns"].clip(lower=0).astype("float64")
    for line, of_line in by_line(part, small):
        for kind, rows in of_line.groupby("kind", observed=True):
            if _is_unneeded(details, rows):
                own = waited[rows.index][is_counted(part, rows["step"])]
                lost = rows["blocked_ns"].astype("float64")
                evidence = calls_in(part, rows, lost_ns=lost, share=float(own.sum()))
                found[(kind, *line)] = evidence
    return found


def _is_unneeded(details: Details, rows: pd.DataFrame) -> bool:
    """Return whether training needs none of some calls' results, as far as is known of any."""
    known = [
        _is_old(details, each) and _is_unused(details, each)
        for each in rows.sort_values(["rank", "id"]).itertuples()
        if details.has(each.rank, each.data_op_id)
    ]
    return bool(known) and all(known)


def _is_old(details: Details, call: Any) -> bool:
    """Return whether a call sends losses of before the last backward pass that precedes it.

    What Python made of a number since then may have the memory of a loss, which no operator writes.
    """
    until = _last(details.starts_ns(call.rank, "backward"), call.issue_ns)
    if _last(details.starts_ns(call.rank, "other", _FROM_PYTHON), call.issue_ns) > until:
        return False
    queue, seen = [call.data_op_id], 0
    while queue and seen < _MOST_OPERATORS:
        op, seen = queue.pop(), seen + 1
        phase, name = details.phase(call.rank, op), details.name(call.rank, op)
        if phase in _TRAINING[1:] or name.rstrip("_") in _OF_DECISIONS:
            return False
        if details.start_ns(call.rank, op) < until and _is_loss(details, call.rank, op):
            continue
        sources = [*details.sources(call.rank, op)]
        if phase == "forward" or not sources or any(is_call for is_call, _ in sources):
            return False
        queue += [source for _, source in sources]
    return until >= 0 and not queue


def _is_loss(details: Details, rank: int, op: int) -> bool:
    """Return whether a backward pass began with the gradient of an operator's result, or of a
    number that was computed from it outside of passes.
    """
    queue, seen = [op], set[int]()
    while queue and len(seen) < _MOST_OPERATORS:
        users = details.users(rank, queue.pop(), is_call=False)
        if any(details.name(rank, each) == _BEGIN_OF_BACKWARD for each in users):
            return True
        seen |= (fresh := {each for each in users if each not in seen})
        queue += [each for each in fresh if details.phase(rank, each) not in _TRAINING]
    return False


def _is_unused(details: Details, call: Any) -> bool:
    """Return whether no pass, no optimizer and no call reads what was computed of a result.

    A number that Python reads may scale gradients, unless the optimizer has used them before.
    """
    queue, seen = [*details.users(call.rank, call.id, is_call=True)], set[int]()
    while queue and len(seen) < _MOST_OPERATORS:
        op = queue.pop()
        if details.phase(call.rank, op) in _TRAINING:
            return False
        seen.add(op)
        queue += [each for each in details.users(call.rank, op, is_call=False) if each not in seen]
    updates = details.starts_ns(call.rank, "optimizer")
    reduced = _last(details.starts_ns(call.rank, "backward"), call.issue_ns)
    is_updated = _last(updates, call.issue_ns) > reduced
    later = updates[updates > call.issue_ns]
    until = int(later[0]) if len(later) else _NEVER
    numbers = details.starts_ns(call.rank, "other", _TO_PYTHON)
    is_read = _last(numbers, until) > call.issue_ns
    return call.used_by_call_id < 0 and not queue and (is_updated or not is_read)


def _last(starts_ns: np.ndarray, before_ns: int) -> int:
    """Return the last instant before another; -1 if there is none."""
    place = int(np.searchsorted(starts_ns, before_ns))
    return int(starts_ns[place - 1]) if place else -1


METRICS_EACH_STEP = Rule(
    "metrics_each_step",
    "a loss that is collected in most steps, while all ranks wait",
    metrics_each_step,
    (STEPS, SIZES, ORIGINS, DURATION),
    cure=REMOVE,
)
