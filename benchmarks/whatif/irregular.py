"""A made-up run with groups of unequal size, which differ from layer to layer, and pipelines.

In a step, ranks send activations from stage to stage for each micro-batch, and reduce in each
layer in a group of that layer. Calls are timed like real ones: members wait for the last of them,
and both sides of a transfer for each other.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.large_run import START_NS
from commtrace.event import GroupRow, RankRow
from commtrace.schema import TABLES, Column
from commtrace.tracefile import StringColumn, Trace, trace_of_rows

COMPUTE_NS, LATENCY_NS = 100_000, 20_000
PAYLOAD_BYTES = 1 << 20
LARGEST_GROUP = 48
WORLD = "world"


@dataclass(frozen=True, slots=True)
class Irregular:
    """Parameters of the run: as many whole steps as fit into `num_calls`."""

    num_ranks: int = 1024
    num_calls: int = 1_000_000
    num_layers: int = 32
    num_stages: int = 4
    num_micro_batches: int = 8
    seed: int = 0

    @property
    def num_steps(self) -> int:
        """Number of whole steps that fit, at least one."""
        of_transfers = 2 * self.num_micro_batches * (self.num_stages - 1) / self.num_stages
        return max(1, round(self.num_calls / self.num_ranks / (self.num_layers + of_transfers)))


def irregular_trace(plan: Irregular) -> Trace:
    """Build the trace of the run."""
    chance = np.random.default_rng(plan.seed)
    now = np.zeros(plan.num_ranks, dtype="int64")
    groups = [_partition(plan.num_ranks, chance) for _ in range(plan.num_layers)]
    found, bounds = [], [now.copy()]
    for step in range(plan.num_steps):
        calls = [*_transfers(plan, now, chance), *_reductions(now, groups, chance)]
        found += [each.assign(step=step) for each in calls]
        bounds.append(now.copy())
    comm = pd.concat(found, ignore_index=True).sort_values(["rank", "issue_ns"], kind="stable")
    comm["id"] = comm.groupby("rank").cumcount()
    comm["seq"] = comm.groupby(["rank", "group"]).cumcount()
    small = _small_tables(plan, groups, bounds, comm)
    return Trace(small.run, {**small.tables, "comm": _columns(comm)})


def _partition(num_ranks: int, chance: np.random.Generator) -> np.ndarray:
    """Return the number of the group of each rank, of a random partition."""
    sizes: list[int] = []
    while sum(sizes) < num_ranks:
        sizes.append(int(chance.integers(2, LARGEST_GROUP)))
    return chance.permutation(np.repeat(np.arange(len(sizes)), sizes)[:num_ranks])


def _work(now: np.ndarray, ranks: np.ndarray, chance: np.random.Generator) -> None:
    now[ranks] += COMPUTE_NS + chance.integers(0, COMPUTE_NS // 10, len(ranks))


def _transfers(plan: Irregular, now: np.ndarray, chance: np.random.Generator) -> list[pd.DataFrame]:
    stages = np.array_split(np.arange(plan.num_ranks), plan.num_stages)
    found = []
    for _ in range(plan.num_micro_batches):
        for sources, targets in pairwise(stages):
            num = min(len(sources), len(targets))
            sources, targets = sources[:num], targets[:num]
            _work(now, sources, chance)
            begun = {"send": now[sources].copy(), "recv": now[targets].copy()}
            done = np.maximum(*begun.values()) + LATENCY_NS
            now[sources] = now[targets] = done
            for kind, ranks, peers in (("send", sources, targets), ("recv", targets, sources)):
                found.append(_calls(kind, ranks, WORLD, begun[kind], done, peers))
    return found


def _reductions(
    now: np.ndarray, groups: list[np.ndarray], chance: np.random.Generator
) -> list[pd.DataFrame]:
    found, ranks = [], np.arange(len(now))
    for layer, group in enumerate(groups):
        _work(now, ranks, chance)
        last = np.zeros(group.max() + 1, dtype="int64")
        np.maximum.at(last, group, now)
        begun, done = now.copy(), last[group] + LATENCY_NS
        now[:] = done
        found.append(_calls("all_reduce", ranks, _names(layer, group), begun, done, -1))
    return found


def _names(layer: int, group: np.ndarray) -> np.ndarray:
    return np.array([f"layer{layer}.{each}" for each in group], dtype=object)


def _calls(
    kind: str, ranks: np.ndarray, group: str | np.ndarray, begun: np.ndarray, done: np.ndarray,
    peer: int | np.ndarray,
) -> pd.DataFrame:  # fmt: skip
    return pd.DataFrame(
        {
            "rank": ranks,
            "kind": kind,
            "group": group,
            "peer": peer,
            "issue_ns": begun + START_NS,
            "call_ns": done - begun,
            "blocked_ns": done - begun,
            "complete_ns": done + START_NS,
            "reduce_op": "sum" if kind == "all_reduce" else "",
        }
    )


def _columns(comm: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of table `comm`."""
    constant = {
        "payload_bytes": PAYLOAD_BYTES, "dtype": "bfloat16", "thread": 7, "source_file": "train.py",
        "source_line": 40, "is_async": False, "phase": "other",
    }  # fmt: skip
    comm = comm.assign(**constant)

    def column(each: Column) -> Any:
        known = each.name in comm.columns
        if each.type is str:
            codes, texts = (
                pd.factorize(comm[each.name])
                if known
                else (np.zeros(len(comm), dtype="int64"), [""])
            )
            return StringColumn(_ints(codes), list(texts))
        return _ints(comm[each.name] if known else np.full(len(comm), each.missing))

    return {each.name: column(each) for each in TABLES["comm"]}


def _ints(values: Any) -> array[int]:
    column = array("q")
    column.frombytes(np.ascontiguousarray(values, dtype="int64").tobytes())
    return column


def _small_tables(
    plan: Irregular, groups: list[np.ndarray], bounds: list[np.ndarray], comm: pd.DataFrame
) -> Trace:
    members = {WORLD: np.arange(plan.num_ranks)}
    for layer, group in enumerate(groups):
        for number in np.unique(group):
            members[f"layer{layer}.{number}"] = np.flatnonzero(group == number)
    num_calls = comm.groupby("rank").size()
    return trace_of_rows(
        {
            "world_size": plan.num_ranks, "detail": "collective", "command": "irregular",
            "missing_ranks": [], "torn_ranks": [], "clock": "one clock",
        },
        {
            "groups": [
                GroupRow(name, "", ",".join(map(str, of)), len(of), "", "nccl")
                for name, of in members.items()
            ],
            "ranks": [
                RankRow(
                    rank=rank, host=f"node{rank // 8}", pid=1000 + rank, device="cpu",
                    start_ns=START_NS, end_ns=START_NS + int(bounds[-1][rank]), clock_offset_ns=0,
                    num_events=int(num_calls[rank]), num_dropped=0, complete=True, clock_error_ns=0,
                )
                for rank in range(plan.num_ranks)
            ],
            "steps": [
                (rank, step, START_NS + int(begin[rank]), START_NS + int(end[rank]))
                for rank in range(plan.num_ranks)
                for step, (begin, end) in enumerate(pairwise(bounds))
            ],
        },
    )  # fmt: skip
