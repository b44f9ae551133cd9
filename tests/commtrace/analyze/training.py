"""A synthetic training run with realistic clocks and known answers.

Every rank executes the same model; a collective starts to move data when its last member has
arrived and ends for all at the same moment. Rank `late_rank` computes longer, so it arrives last at
every collective and the others wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from commtrace.collective_table import wire_bytes
from commtrace.event import CommEvent, GroupRow, OpEvent, RankRow, StepRow
from commtrace.tracefile import Trace, trace_of_rows

START_NS = 1_700_000_000_000_000_000
GROUP = "3"
HIDDEN_BYTES = 4 * 64 * 256 * 4
LATENCY_NS = 60_000
BYTES_PER_S = 4_000_000_000
LATE_NS = 150_000

TENSOR_PARALLEL = (
    # phase, module, class, operator, kinds of collectives
    ("forward", "attention.wq", "Linear", "aten.mm.default", ()),
    ("forward", "attention", "Attention", "aten.scaled_dot_product_attention.default", ()),
    ("forward", "attention.wo", "Linear", "aten.mm.default", ("all_reduce",)),
    ("forward", "feed_forward.w1", "Linear", "aten.addmm.default", ()),
    ("forward", "feed_forward.w2", "Linear", "aten.addmm.default", ("all_reduce",)),
    ("backward", "feed_forward.w2", "Linear", "aten.mm.default", ()),
    ("backward", "feed_forward.w1", "Linear", "aten.mm.default", ("all_reduce",)),
    ("backward", "attention.wo", "Linear", "aten.mm.default", ()),
    ("backward", "attention", "Attention", "aten.add.Tensor", ("all_reduce",)),
)

SEQUENCE_PARALLEL = (
    ("forward", "attention", "Attention", "redistribute", ("all_gather",)),
    ("forward", "attention.wo", "Linear", "aten.mm.default", ("reduce_scatter",)),
    ("forward", "feed_forward", "FeedForward", "redistribute", ("all_gather",)),
    ("forward", "feed_forward.w2", "Linear", "aten.addmm.default", ("reduce_scatter",)),
    ("backward", "feed_forward.w2", "Linear", "aten.mm.default", ("all_gather",)),
    ("backward", "feed_forward", "FeedForward", "redistribute", ("reduce_scatter",)),
    ("backward", "attention.wo", "Linear", "aten.mm.default", ("all_gather",)),
    ("backward", "attention", "Attention", "redistribute", ("reduce_scatter",)),
)


class _Run:
    def __init__(self, world_size: int, late_rank: int, detail: str, seed: int) -> None:
        self.world_size = world_size
        self.late_rank = late_rank
        self.detail = detail
        self.now = [START_NS + 1_000_000] * world_size
        self.comm: list[Any] = []
        self.ops: list[Any] = []
        self.steps: list[Any] = []
        self.num_calls = 0
        self.num_ops = [0] * world_size
        self._chance = random.Random(seed)

    def operator(self, op: str, where: dict[str, Any], kinds: tuple[str, ...] = ()) -> None:
        """Run an operator on all ranks, with its collectives."""
        began = list(self.now)
        for rank in range(self.world_size):
            late = LATE_NS if rank == self.late_rank and kinds else 0
            self.now[rank] += 40_000 + self._chance.randrange(30_000) + late
        for kind in kinds:
            self.collective(kind, op, where)
        if self.detail != "op":
            return
        for rank in range(self.world_size):
            self.ops.append(
                OpEvent(
                    rank=rank,
                    id=self.num_ops[rank],
                    op=op,
                    level="dtensor",
                    start_ns=began[rank],
                    duration_ns=self.now[rank] - began[rank],
                    **where,
                )
            )
            self.num_ops[rank] += 1

    def collective(self, kind: str, op: str, where: dict[str, Any], root: int = -1) -> None:
        """Run a collective: no rank leaves before the last has arrived and the data has moved."""
        arrival_ns = list(self.now)
        size = 0 if kind == "barrier" else HIDDEN_BYTES
        sent = wire_bytes(kind, size, self.world_size)
        left = max(arrival_ns) + LATENCY_NS + sent * 1_000_000_000 // BYTES_PER_S
        for rank, issued in enumerate(arrival_ns):
            self.comm.append(
                CommEvent(
                    rank=rank,
                    id=self.num_calls,
                    kind=kind,
                    native_op=f"c10d::{kind}_",
                    group=GROUP,
                    seq=self.num_calls,
                    reduce_op="sum" if "reduce" in kind else "",
                    root=root,
                    dtype="float32",
                    input_shapes="[4,64,256]",
                    output_shapes="[4,64,256]",
                    payload_bytes=size,
                    wire_bytes=sent,
                    issue_ns=issued,
                    call_ns=left - issued,
                    blocked_ns=left - issued,
                    complete_ns=left,
                    op=op,
                    op_id=self.num_ops[rank] if self.detail == "op" else -1,
                    source_file="/home/someone/train/examples/train_tp.py",
                    source_line=87,
                    source_function="forward",
                    reason=f"{op} needs self f32[4,64,256] tp:P(sum) -> f32[4,64,256] tp:R: "
                    f"{kind} on tp"
                    if op
                    else "",
                    argument="self" if op else "",
                    source_spec="f32[4,64,256] tp:P(sum)" if op else "",
                    target_spec="f32[4,64,256] tp:R" if op else "",
                    candidates='[["f32[4,64,256] tp:R",1.5e-05],["f32[4,64,256] tp:S(1)",4e-05]]'
                    if op
                    else "",
                    planned_bytes=size,
                    **where,
                )
            )
            self.now[rank] = left
        self.num_calls += 1

    def step(self, number: int, num_layers: int, plan: tuple[Any, ...]) -> None:
        began = list(self.now)
        for phase, module, op, kinds, of_class in _walk(num_layers, plan):
            where = _where(number, phase, module, of_class)
            self.operator(op, where, kinds)
        for _ in range(6):
            self.operator("aten._foreach_add_.List", _where(number, "optimizer", "", ""))
        for rank in range(self.world_size):
            self.steps.append(StepRow(rank, number, began[rank], self.now[rank]))


def _where(step: int, phase: str, module: str, of_class: str) -> dict[str, Any]:
    return {
        "step": step,
        "phase": phase,
        "module": module,
        "module_class": of_class,
        "module_call": max(step, 0),
        "thread": 7,
    }


def _walk(num_layers: int, plan: tuple[Any, ...]) -> Iterator[tuple[str, str, str, Any, str]]:
    yield "forward", "tok_embeddings", "aten.embedding.default", ("all_reduce",), "Embedding"
    for layer in range(num_layers):
        for phase, module, of_class, op, kinds in plan:
            if phase == "forward":
                yield phase, f"layers.{layer}.{module}", op, kinds, of_class
    yield "forward", "output", "aten.mm.default", ("all_gather",), "Linear"
    yield "backward", "output", "aten.mm.default", ("reduce_scatter",), "Linear"
    for layer in reversed(range(num_layers)):
        for phase, module, of_class, op, kinds in plan:
            if phase == "backward":
                yield phase, f"layers.{layer}.{module}", op, kinds, of_class


def training_trace(
    *,
    world_size: int = 4,
    num_steps: int = 3,
    num_layers: int = 2,
    late_rank: int = 2,
    sequence_parallel: bool = False,
    detail: str = "op",
    seed: int = 0,
    facts: dict[str, Any] | None = None,
) -> Trace:
    """A run that broadcasts a weight, trains, and ends with a barrier outside of the steps."""
    run = _Run(world_size, late_rank, detail, seed)
    run.collective("broadcast", "", _where(-1, "other", "", ""), root=0)
    for step in range(num_steps):
        run.step(step, num_layers, SEQUENCE_PARALLEL if sequence_parallel else TENSOR_PARALLEL)
    run.collective("barrier", "", _where(-1, "other", "", ""))
    ranks = [
        RankRow(
            rank,
            "node0",
            1000 + rank,
            "cpu",
            START_NS,
            run.now[rank] + 500_000,
            0,
            run.num_calls,
            0,
            True,
        )
        for rank in range(world_size)
    ]
    members = ",".join(map(str, range(world_size)))
    return trace_of_rows(
        {
            "world_size": world_size,
            "detail": detail,
            "torch": "2.13.0+cpu",
            "python": "3.11.7",
            "command": "examples/train_tp.py --steps 3",
            "created": "2023-11-14T22:13:20+00:00",
            "missing_ranks": [],
            "torn_ranks": [],
            "clock": "one clock",
            **(facts or {}),
        },
        {
            "comm": run.comm,
            "ops": run.ops,
            "steps": run.steps,
            "ranks": ranks,
            "groups": [GroupRow(GROUP, "mesh_tp", members, world_size, "tp", "gloo")],
        },
    )
