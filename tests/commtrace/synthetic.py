"""A synthetic run of a small tensor-parallel training, written by the real spool writer.

Tests of readers, analyses, figures and commands build on it.

    python -m tests.commtrace.synthetic run.json     writes it to a file
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commtrace.collective_table import wire_bytes
from commtrace.event import (
    ActionRow,
    CommEvent,
    FingerprintRow,
    GroupRow,
    HostEventRow,
    LaterWaitRow,
    OpEvent,
    StepRow,
)
from commtrace.schema import NUM_SKETCHES
from commtrace.tracefile import SpoolWriter, merge_spools, spool_name

START_NS = 1_700_000_000_000_000_000
TENSOR_BYTES = 8 * 16 * 4

# In this order in every layer: (phase, module, operator, kind).
_CALLS = (
    ("forward", "attention.wo", "aten.mm.default", "all_reduce"),
    ("forward", "feed_forward.w2", "aten.mm.default", "all_reduce"),
    ("backward", "feed_forward.w1", "aten.mm.default", "all_reduce"),
    ("backward", "attention", "aten.mm.default", "all_gather"),
    ("backward", "attention", "aten.mm.default", "reduce_scatter"),
)


def synthetic_facts(rank: int, world_size: int) -> dict[str, Any]:
    """First facts of a rank's spool."""
    return {
        "rank": rank,
        "host": "node0",
        "pid": 1000 + rank,
        "boot": "one",
        "epoch_ns": START_NS - rank,
        "device": "cpu",
        "start_ns": START_NS,
        "run": {
            "world_size": world_size,
            "detail": "op",
            "torch": "2.13.0",
            "python": "3.11.7",
            "command": "train.py --steps 3",
            "created": "2023-11-14T22:13:20+00:00",
        },
        "sources": [["train.py", 40, "for batch in batches:\n    train(batch)"]],
    }


class _Rank:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.now = START_NS
        self.comm: list[Any] = []
        self.ops: list[Any] = []
        self.fingerprints: list[Any] = []
        self._chance = random.Random(rank)

    def layer(self, step: int, layer: int) -> None:
        self._observe(step, layer)
        for phase, module, op, kind in _CALLS:
            where = {
                "step": step,
                "phase": phase,
                "module": f"layers.{layer}.{module}",
                "module_class": "Linear",
                "module_call": step,
                "thread": 7,
            }
            duration = self._chance.randrange(80_000, 400_000)
            compute = self._chance.randrange(50_000, 100_000)
            self.ops.append(
                OpEvent(
                    rank=self.rank,
                    id=len(self.ops),
                    op=op,
                    level="dtensor",
                    start_ns=self.now,
                    duration_ns=duration + compute,
                    **where,
                )
            )
            self.now += compute
            self.comm.append(self._event(kind, op, duration, where))
            self.now += duration

    def _observe(self, step: int, layer: int) -> None:
        """Note the output of a module, which is equal on all ranks."""
        members = ",".join(map(str, range(self.world_size)))
        self.fingerprints.append(
            FingerprintRow(
                rank=self.rank,
                id=len(self.fingerprints),
                role="output",
                at_ns=self.now,
                step=step,
                phase="forward",
                module=f"layers.{layer}",
                module_class="Layer",
                module_call=step,
                thread=7,
                dtype="float32",
                shape="[8,16]",
                mesh=f"tp={self.world_size}:{members}",
                placements="R",
                **{f"sketch_{number}": 0.5 * number + layer for number in range(NUM_SKETCHES)},
                total=1.0,
                norm=2.0,
                largest=1.5,
                num_nan=0,
                num_inf=0,
            )
        )

    def _event(self, kind: str, op: str, duration: int, where: dict[str, Any]) -> Any:
        return CommEvent(
            rank=self.rank,
            id=len(self.comm),
            kind=kind,
            native_op="c10d::allreduce_",
            group="1",
            seq=len(self.comm),
            reduce_op="" if kind == "all_gather" else "sum",
            dtype="float32",
            input_shapes="[8,16]",
            output_shapes="[8,16]",
            payload_bytes=TENSOR_BYTES,
            wire_bytes=wire_bytes(kind, TENSOR_BYTES, self.world_size),
            issue_ns=self.now,
            call_ns=duration,
            blocked_ns=duration,
            complete_ns=self.now + duration,
            op=op,
            op_id=len(self.ops) - 1,
            source_file="train.py",
            source_line=42,
            source_function="forward",
            reason=f"{op} needs self f32[8,16] tp:P(sum) -> f32[8,16] tp:R",
            argument="self",
            source_spec="f32[8,16] tp:P(sum)",
            target_spec="f32[8,16] tp:R",
            candidates='[["f32[8,16] tp:R",1.5e-05]]',
            planned_bytes=TENSOR_BYTES,
            **where,
        )


def write_synthetic_spools(
    folder: Path, *, world_size: int = 4, num_steps: int = 3, num_layers: int = 2
) -> Path:
    """Write a spool per rank into `folder`, a batch per step, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world_size):
        with (folder / spool_name(rank)).open("wb") as stream:
            writer = SpoolWriter(stream, synthetic_facts(rank, world_size))
            writer.write({"groups": [_group(world_size)]})
            for batch in _batches(rank, world_size, num_steps, num_layers):
                last = batch["steps"][0].end_ns
                writer.write(batch)
            writer.write({}, {"complete": True, "end_ns": last, "num_dropped": 0})
    return folder


def _group(world_size: int) -> Any:
    ranks = ",".join(map(str, range(world_size)))
    return GroupRow("1", "mesh_tp", ranks, world_size, "tp", "gloo")


def _batches(
    rank: int, world_size: int, num_steps: int, num_layers: int
) -> Iterator[dict[str, list[Any]]]:
    made = _Rank(rank, world_size)
    for step in range(num_steps):
        start, num_comm, num_ops = made.now, len(made.comm), len(made.ops)
        num_fingerprints = len(made.fingerprints)
        for layer in range(num_layers):
            made.layer(step, layer)
        yield {
            "comm": made.comm[num_comm:],
            "ops": made.ops[num_ops:],
            "fingerprints": made.fingerprints[num_fingerprints:],
            "host_events": [
                HostEventRow(
                    rank, step, "compile", start, 1_000, step, 7, "", "train.py", 12, "main"
                )
            ],
            "pipeline_actions": [ActionRow(rank, step, rank, 0, "forward", start, 1_000, step)],
            "later_waits": [LaterWaitRow(rank, step, num_comm, start + 1_000, 500, 7)],
            "steps": [StepRow(rank, step, start, made.now)],
        }


def write_synthetic_run(path: Path, **sizes: int) -> Path:
    """Write a merged run.json to `path` and return it; sizes as for `write_synthetic_spools`."""
    spools = write_synthetic_spools(path.with_name(f"{path.name}.spools"), **sizes)
    return merge_spools(spools, path)


if __name__ == "__main__":
    print(write_synthetic_run(Path(sys.argv[1])))
