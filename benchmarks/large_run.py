"""A made-up run of any size with known answers: a million calls over 64 ranks in a second or two.

    python -m benchmarks.large_run run.json --calls 1000000 --ranks 64

Ranks form a mesh of `dp` rows and `tp` columns and train a model of layers: all-reduces over tp in
forward and backward, one asynchronous reduce-scatter of gradients over dp a layer, which is waited
for at the step's end, and a barrier of all. Calls are timed like real ones: a collective moves
data once its last member has arrived, and ends for all at once. Injected are

    late_rank    computes `late_ns` longer before every all-reduce of the forward pass
    overlap      `hidden` of each step's reduce-scatters is over before anybody waits for it

The expected results of the analyses follow from this: see `tests/benchmarks/test_large_run.py`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.collective_table import busbw_factor
from commtrace.event import GroupRow, RankRow
from commtrace.schema import EVENT_TABLES, TABLES, Column
from commtrace.tracefile import StringColumn, Trace, trace_of_rows, write_trace
from commtrace.tracefile.dataset.layout import (
    SHARED_TABLES,
    Manifest,
    dataset_folder,
    table_path,
    write_manifest,
)
from commtrace.tracefile.dataset.parquet_format import Origin
from commtrace.tracefile.dataset.table_files import footer_digests
from commtrace.tracefile.dataset.table_writing import write_table
from commtrace.tracefile.spool import RANK_TABLES, SMALL_RANK_TABLES

START_NS = 1_700_000_000_000_000_000
LATENCY_NS = 20_000
BYTES_PER_S = 50_000_000_000
COMPUTE_NS = 100_000
IN_CALL_NS = 5_000
HIDDEN_BYTES, GRADIENT_BYTES = 1 << 20, 1 << 22

TP, DP, WORLD = "tp", "dp", ""
_LAYER = (
    # phase, module, kind, axis, payload, reduction, asynchronous, operator, line
    ("forward", "attention.wo", "all_reduce", TP, HIDDEN_BYTES, False, "aten.mm.default", 40),
    ("forward", "feed_forward.w2", "all_reduce", TP, HIDDEN_BYTES, False, "aten.mm.default", 52),
    ("backward", "feed_forward", "all_reduce", TP, HIDDEN_BYTES, False, "aten.mm.default", 70),
    ("backward", "attention", "all_gather", TP, HIDDEN_BYTES, False, "aten.add.Tensor", 70),
    ("backward", "", "reduce_scatter", DP, GRADIENT_BYTES, True, "", 70),
)
_NUM_SYNC = sum(not row[5] for row in _LAYER)


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the synthetic run: as many whole steps as fit into `num_calls`."""

    num_ranks: int = 64
    num_calls: int = 1_000_000
    tp: int = 8
    num_layers: int = 32
    late_rank: int = 5
    late_ns: int = 50_000
    seed: int = 0

    @property
    def calls_per_step(self) -> int:
        """Calls of a rank in a step: the layers' calls, and the barrier."""
        return len(_LAYER) * self.num_layers + 1

    @property
    def num_steps(self) -> int:
        """Number of whole steps that fit, at least one."""
        return max(1, self.num_calls // (self.num_ranks * self.calls_per_step))


class _Clocks:
    """Clock of every rank and times of its calls; the calls' arrays are `[calls, ranks]`."""

    def __init__(self, plan: Plan, num_calls: int, zeros: Any) -> None:
        shape = (num_calls, plan.num_ranks)
        self.now = np.zeros(plan.num_ranks, dtype=np.int64)
        self.issue, self.call, self.blocked, self.complete = (
            zeros(shape, dtype=np.int64) for _ in range(4)
        )
        self.rows = plan.num_ranks // plan.tp
        self.tp = plan.tp

    def arrival(self, axis: str) -> np.ndarray:
        """Time at which the last member of each rank's group arrives, `[ranks]`."""
        grid = self.now.reshape(self.rows, self.tp)
        if axis == TP:
            return np.repeat(grid.max(axis=1), self.tp)
        if axis == DP:
            return np.tile(grid.max(axis=0), self.rows)
        return np.full(self.now.shape, self.now.max())


def _size_of(axis: str, plan: Plan) -> int:
    sizes = {TP: plan.tp, DP: plan.num_ranks // plan.tp}
    return sizes.get(axis, plan.num_ranks)


def _duration_ns(kind: str, payload: int, size: int) -> int:
    return LATENCY_NS + int(payload * busbw_factor(kind, size) * 1e9 / BYTES_PER_S)


def _walk(plan: Plan) -> list[tuple[Any, ...]]:
    """Sequence of calls of a step: (layer, row of `_LAYER`)."""
    forward = [(layer, row) for layer in range(plan.num_layers) for row in _LAYER[:2]]
    backward = [(layer, row) for layer in reversed(range(plan.num_layers)) for row in _LAYER[2:]]
    barrier = (-1, ("other", "", "barrier", WORLD, 0, False, "", 90))
    return [*forward, *backward, barrier]


def large_trace(plan: Plan | None = None) -> Trace:
    """Build the trace that `commtrace run` would write: the events rank by rank."""
    plan = plan or Plan()
    clocks, bounds = _run(plan, np.zeros)
    small = _small_tables(plan, clocks, bounds)
    return Trace(small.run, {**small.tables, "comm": _comm(plan, clocks, range(plan.num_ranks))})


def write_dataset(plan: Plan, folder: Path) -> None:
    """Write the dataset of the run into the folder RUN.comm, rank by rank.

    The clocks of a run that is larger than memory are in a file meanwhile.
    """
    target = dataset_folder(folder)
    target.mkdir(parents=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        clocks, bounds = _run(plan, lambda shape, dtype: _on_disk(file, shape, dtype))
        small = _small_tables(plan, clocks, bounds)
        nothing = {name: small.tables[name] for name in EVENT_TABLES if name != "comm"}
        for rank in range(plan.num_ranks):
            of_rank = {"comm": _comm(plan, clocks, [rank]), **nothing}
            for name, columns in of_rank.items():
                path = table_path(target, name, rank)
                path.parent.mkdir(exist_ok=True)
                write_table(name, columns, path, Origin(""))
    for name in (*SMALL_RANK_TABLES, *SHARED_TABLES):
        write_table(name, small.tables[name], table_path(target, name), Origin(""))
    num_calls = plan.calls_per_step * plan.num_steps
    each = dict.fromkeys(RANK_TABLES, 0) | {"comm": num_calls, "steps": plan.num_steps}
    rows = {name: dict.fromkeys(range(plan.num_ranks), num) for name, num in each.items()}
    totals = {name: small.num_rows(name) for name in SHARED_TABLES}
    files = footer_digests(target, rows)
    write_manifest(Manifest((), small.run, rows, totals, files), target)


def _on_disk(file: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return zeros at the end of a file."""
    begin = file.seek(0, 2)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    file.truncate(begin + size)
    return np.memmap(file, dtype=dtype, mode="r+", offset=begin, shape=shape, order="F")


def _run(plan: Plan, zeros: Any) -> tuple[_Clocks, list[Any]]:
    """Return the clocks of all ranks, and their times at the edges of the steps."""
    walk = _walk(plan)
    clocks = _Clocks(plan, len(walk) * plan.num_steps, zeros)
    chance = np.random.default_rng(plan.seed)
    bounds = [clocks.now.copy()]
    for step in range(plan.num_steps):
        _step(plan, clocks, walk, step * len(walk), chance)
        bounds.append(clocks.now.copy())
    return clocks, bounds


def _step(plan: Plan, clocks: _Clocks, walk: list[Any], first: int, chance: Any) -> None:
    pending: list[int] = []
    for number, (_, row) in enumerate(walk, start=first):
        phase, _, kind, axis, payload, is_async, *_ = row
        if is_async:
            pending.append(number)
        else:
            clocks.now += COMPUTE_NS + chance.integers(0, 1000, plan.num_ranks)
        if phase == "forward":
            clocks.now[plan.late_rank] += plan.late_ns
        if kind == "barrier":  # calls still in flight at the end of the step are waited for
            for other in pending:
                rest = np.maximum(clocks.complete[other] - clocks.now, 0)
                clocks.blocked[other] += rest
                clocks.now += rest
        clocks.issue[number] = clocks.now
        done = clocks.arrival(axis) + _duration_ns(kind, payload, _size_of(axis, plan))
        clocks.complete[number] = done
        clocks.call[number] = IN_CALL_NS if is_async else done - clocks.now
        clocks.blocked[number] = clocks.call[number]
        clocks.now = clocks.now + clocks.call[number]


def _ints(values: Any) -> array[int]:
    column = array("q")
    column.frombytes(np.ascontiguousarray(values, dtype=np.int64).tobytes())
    return column


def _comm(plan: Plan, clocks: _Clocks, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the columns of table `comm` of some ranks."""
    walk, num_ranks = _walk(plan), len(ranks)
    num_calls = len(walk) * plan.num_steps
    program = np.tile(np.arange(len(walk)), plan.num_steps)
    steps = np.repeat(np.arange(plan.num_steps), len(walk))
    strings: dict[str, int] = {"": 0}

    def coded(texts: list[str]) -> np.ndarray:
        return np.array([strings.setdefault(text, len(strings)) for text in texts])

    def of_program(values: Any) -> np.ndarray:  # the same on every rank
        return np.tile(np.asarray(values)[program], num_ranks)

    rows = [row for _, row in walk]
    axes = [row[3] for row in rows]
    sizes = [_size_of(axis, plan) for axis in axes]
    of_rank = {
        TP: [f"tp{rank // plan.tp}" for rank in ranks],
        DP: [f"dp{rank % plan.tp}" for rank in ranks],
        WORLD: ["world" for _ in ranks],
    }
    groups = {axis: coded(names) for axis, names in of_rank.items()}
    group = np.stack([groups[axis] for axis in axes])[program]
    seq = np.zeros(num_calls, dtype=np.int64)
    for axis in groups:
        of_axis = np.array([each == axis for each in axes])[program]
        seq[of_axis] = np.arange(of_axis.sum())
    factors = [busbw_factor(row[2], size) for row, size in zip(rows, sizes, strict=True)]
    wire = [int(np.ceil(row[4] * factor)) for row, factor in zip(rows, factors, strict=True)]
    modules = [
        f"layers.{layer}.{row[1]}" if row[1] else f"layers.{layer}" if layer >= 0 else ""
        for layer, row in walk
    ]
    values = {
        "rank": np.repeat(np.asarray(ranks), num_calls),
        "id": np.tile(np.arange(num_calls), num_ranks),
        "kind": of_program(coded([row[2] for row in rows])),
        "native_op": of_program(coded([f"c10d::{row[2]}_" for row in rows])),
        "group": group.T.ravel(),
        "seq": np.tile(seq, num_ranks),
        "reduce_op": of_program(coded(["sum" if "reduce" in row[2] else "" for row in rows])),
        "dtype": of_program(coded(["bfloat16" if row[4] else "" for row in rows])),
        "input_shapes": of_program(coded([f"[{row[4] // 2}]" if row[4] else "" for row in rows])),
        "payload_bytes": of_program([row[4] for row in rows]),
        "wire_bytes": of_program(wire),
        "is_async": of_program([row[5] for row in rows]),
        "issue_ns": clocks.issue[:, ranks].T.ravel() + START_NS,
        "call_ns": clocks.call[:, ranks].T.ravel(),
        "blocked_ns": clocks.blocked[:, ranks].T.ravel(),
        "complete_ns": clocks.complete[:, ranks].T.ravel() + START_NS,
        "step": np.tile(steps, num_ranks),
        "phase": of_program(coded([row[0] for row in rows])),
        "module": of_program(coded(modules)),
        "module_class": of_program(coded(["Linear" if name else "" for name in modules])),
        "module_call": np.tile(steps, num_ranks),
        "thread": np.full(num_calls * num_ranks, 7),
        "op": of_program(coded([row[6] for row in rows])),
        "source_file": np.full(num_calls * num_ranks, coded(["train.py"])[0]),
        "source_line": of_program([row[7] for row in rows]),
        "source_function": np.full(num_calls * num_ranks, coded(["train"])[0]),
    }
    texts = list(strings)

    def column(column: Column) -> Any:
        known = values.get(column.name)
        if known is None:
            known = np.full(num_calls * num_ranks, 0 if column.type is str else column.missing)
        return StringColumn(_ints(known), texts) if column.type is str else _ints(known)

    return {each.name: column(each) for each in TABLES["comm"]}


def _small_tables(plan: Plan, clocks: _Clocks, bounds: list[Any]) -> Trace:
    num_calls = plan.calls_per_step * plan.num_steps
    ranks = range(plan.num_ranks)
    grid = np.arange(plan.num_ranks).reshape(-1, plan.tp)
    members = {f"tp{i}": ("tp", row) for i, row in enumerate(grid)}
    members |= {f"dp{i}": ("dp", column) for i, column in enumerate(grid.T)}
    members["world"] = ("", np.arange(plan.num_ranks))
    return trace_of_rows(
        {
            "world_size": plan.num_ranks,
            "detail": "collective",
            "command": "large_run",
            "missing_ranks": [],
            "torn_ranks": [],
            "clock": "one clock",
        },
        {
            "groups": [
                GroupRow(name, "", ",".join(map(str, of)), len(of), axis, "nccl")
                for name, (axis, of) in members.items()
            ],
            "ranks": [
                RankRow(
                    rank=rank,
                    host=f"node{rank // 8}",
                    pid=1000 + rank,
                    device="cpu",
                    start_ns=START_NS,
                    end_ns=START_NS + int(clocks.now[rank]),
                    clock_offset_ns=0,
                    num_events=num_calls,
                    num_dropped=0,
                    complete=True,
                    clock_error_ns=0,
                )
                for rank in ranks
            ],
            "steps": [
                (rank, step, START_NS + int(begin[rank]), START_NS + int(end[rank]))
                for rank in ranks
                for step, (begin, end) in enumerate(pairwise(bounds))
            ],
        },
    )


def timings(path: Path) -> list[tuple[str, float]]:
    """Measure the seconds of reading the run file, of loading it, and of each analysis."""
    from commtrace.analyze import CATALOG, load
    from commtrace.tracefile import read_trace

    found = []

    def timed(name: str, function: Any, *args: Any) -> Any:
        begin = time.perf_counter()
        result = function(*args)
        found.append((name, time.perf_counter() - begin))
        return result

    trace = timed("read_trace", read_trace, path)
    frames = timed("load", load, trace)
    for name, analysis in CATALOG.items():
        timed(name, analysis.function, frames)
    return found


def main() -> None:
    """Write the run, and time the analyses of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_run", description=__doc__)
    parser.add_argument("output", type=Path, help="the run file to write")
    parser.add_argument("--calls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8; default: 64")
    given = parser.parse_args()
    plan = Plan(num_ranks=given.ranks, num_calls=given.calls)
    write_trace(large_trace(plan), given.output)
    print(f"wrote {given.output} ({given.output.stat().st_size / 1e6:.1f} MB)")
    for name, seconds in timings(given.output):
        print(f"{name:24} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
