"""Runs of tensor parallelism whose operators have details: sums, logits and a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, group, op, step, trace_of

NUM_STEPS = 6
LENGTH = 10_000_000
SHARDED, WHOLE = "f32[16,256] tp:S(1)", "f32[16,256] tp:R"

OPERATORS: dict[str, tuple[float, str, str, str]] = {
    "embed": (0.5, "aten.embedding.default", "forward", ""),
    "add": (2.2, "aten.add.Tensor", "forward", "c0,c1"),
    "head": (2.5, "aten.mm.default", "forward", "1"),
    "cat": (4.1, "aten.cat.default", "forward", "c0"),
    "loss": (4.2, "aten._log_softmax.default", "forward", "1"),
    "more": (4.5, "aten.mul.Tensor", "forward", "1"),
    "gradient": (5.0, "aten.mm.default", "backward", "4"),
}
"""Start in ms of a step, operator, phase, and what it has read."""

CALLS: dict[str, dict[str, Any]] = {
    "tokens": {
        "at": 1.0, "until": 1.5, "kind": "all_reduce", "module": "tokens", "used": "add",
        "payload_bytes": 4096, "wire_bytes": 4096, "reduce_op": "sum", "ready": 0.9,
    },
    "positions": {
        "at": 1.6, "until": 2.1, "kind": "all_reduce", "module": "positions", "used": "add",
        "payload_bytes": 4096, "wire_bytes": 4096, "reduce_op": "sum", "ready": 0.9,
    },
    "logits": {
        "at": 3.0, "until": 4.0, "kind": "all_gather", "module": "output", "used": "cat",
        "payload_bytes": 16_384, "wire_bytes": 8_192, "source_spec": SHARDED,
        "target_spec": WHOLE, "ready": 2.9,
    },
}  # fmt: skip
"""Calls of a step; times in ms, and the operator that first uses the result."""


_DETAILS = ("needs", "shapes")


def _ns(ms: float) -> int:
    return round(1_000_000 * ms)


def flowing(
    operators: Mapping[str, Mapping[str, Any]] | None = None,
    calls: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    num_detailed: int = 2,
) -> Trace:
    """Return a run of two ranks that reduce two sums apart, and gather logits for a loss.

    Args:
        operators: Columns of some operators that are others.
        calls: Columns of some calls that are others.
        num_detailed: Number of steps whose operators have details.
    """
    ops: list[Any] = []
    comm: list[Any] = []
    places = {name: place for place, name in enumerate(OPERATORS)}
    for rank in range(2):
        for each in range(NUM_STEPS):
            begin, is_detailed = each * LENGTH, each < num_detailed
            for name, (at, text, phase, needs) in OPERATORS.items():
                known: dict[str, Any] = {
                    "op": text, "phase": phase, "needs": needs if is_detailed else "",
                    "shapes": "[8,128];[8,128]" if name == "add" and is_detailed else "",
                    "bytes": 4 if is_detailed else -1, "level": "local", "step": each,
                    "duration_ns": 1000, "at": begin + _ns(at),
                    "id": len(OPERATORS) * each + places[name], "rank": rank,
                }  # fmt: skip
                other = dict((operators or {}).get(name, {}))
                if not is_detailed:
                    other = {key: value for key, value in other.items() if key not in _DETAILS}
                ops.append(op(**(known | other)))
            for place, (name, columns) in enumerate(CALLS.items()):
                made = {**columns, **(calls or {}).get(name, {})}
                at, until = (begin + _ns(made.pop(end)) for end in ("at", "until"))
                used = made.pop("used")
                known = {
                    "rank": rank, "id": 3 * each + place, "seq": 3 * each + place, "step": each,
                    "at": at, "until": until, "call_ns": until - at, "blocked_ns": until - at,
                    "dtype": "float32", "source_file": "model.py", "source_line": 10 + place,
                    "data_ready_ns": START_NS + begin + _ns(made.pop("ready")),
                }  # fmt: skip
                if used:
                    known["used_by_op_id"] = len(OPERATORS) * each + places[used]
                    known["result_used_ns"] = START_NS + begin + _ns(OPERATORS[used][0])
                comm.append(call(**(known | made)))
    steps = [
        step(rank, n, n * LENGTH, (n + 1) * LENGTH) for rank in (0, 1) for n in range(NUM_STEPS)
    ]
    return trace_of(comm, ops=ops, steps=steps, groups=[group(ranks=(0, 1))])
