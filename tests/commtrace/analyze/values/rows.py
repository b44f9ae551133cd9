"""Runs with fingerprints of tensors whose values are known, made without a program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from commtrace.analyze import Frames, load
from commtrace.event import FingerprintRow
from commtrace.recorder.values.layouts import indices
from commtrace.recorder.values.sketches import Weights, facts_of
from commtrace.tracefile import Trace
from dtensor_core.placement import Placement, Shard
from tests.commtrace.analyze.rows import START_NS, trace_of

Tensors = Sequence[tuple[dict[str, Any], torch.Tensor]]
"""Columns of each tensor, and its value."""


def held_by_one(tensors: Tensors) -> Frames:
    """A run of a single rank."""
    return load(trace_of_one(tensors))


def trace_of_one(tensors: Tensors) -> Trace:
    """The trace of a run of a single rank."""
    rows = [
        row(0, number, columns, tensor, tensor) for number, (columns, tensor) in enumerate(tensors)
    ]
    return trace_of(num_ranks=1, fingerprints=rows)


def on_ranks(*tensors: Tensors) -> Frames:
    """A run whose ranks hold plain tensors, each rank its own, in step 0."""
    rows = [
        row(rank, number, {"step": 0, **columns}, each, each)
        for rank, own in enumerate(tensors)
        for number, (columns, each) in enumerate(own)
    ]
    return load(trace_of(num_ranks=len(tensors), fingerprints=rows))


def sharded(tensors: Tensors, placements: Sequence[Placement], sizes: Mapping[str, int]) -> Frames:
    """A run on a mesh."""
    return load(trace_of_shards(tensors, placements, sizes))


def trace_of_shards(
    tensors: Tensors, placements: Sequence[Placement], sizes: Mapping[str, int]
) -> Trace:
    """The trace of a run on a mesh."""
    coordinates = list(itertools.product(*map(range, sizes.values())))
    members = ",".join(map(str, range(len(coordinates))))
    axes = ",".join(f"{name}={size}" for name, size in sizes.items())
    names = ",".join(f"S({each.dim})" if isinstance(each, Shard) else "R" for each in placements)
    rows = []
    for rank, coordinate in enumerate(coordinates):
        for number, (columns, tensor) in enumerate(tensors):
            index = indices(placements, tensor.shape, list(sizes.values()), coordinate)
            part = tensor
            for dim, own in enumerate(index):
                part = part[(slice(None),) * dim + (own,)]
            rows.append(
                row(rank, number, columns, tensor, part, index)._replace(
                    mesh=f"{axes}:{members}", placements=columns.get("placements", names)
                )
            )
    return trace_of(num_ranks=len(coordinates), fingerprints=rows)


def row(
    rank: int,
    number: int,
    columns: Mapping[str, Any],
    tensor: torch.Tensor,
    part: torch.Tensor,
    index: Any = None,
) -> Any:
    """A row of a rank's part of a tensor."""
    weights = Weights(tensor.shape, index or [slice(None)] * tensor.dim())
    *facts, num_nan, num_inf = facts_of(part, weights).tolist()
    shape = ",".join(map(str, tensor.shape))
    defaults = {"role": "output", "step": 0, "phase": "forward", "module": f"layer{number}"}
    names = [f"sketch_{place}" for place in range(len(facts) - 3)] + ["total", "norm", "largest"]
    return FingerprintRow(
        rank=rank,
        id=number,
        at_ns=START_NS + 1000 * number + rank,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=f"[{shape}]",
        num_nan=int(num_nan),
        num_inf=int(num_inf),
        **dict(zip(names, facts, strict=True)),
        **(defaults | dict(columns)),
    )
