"""Slices, splits and joins: parts of a dimension, and a dimension made of parts.

Along a dimension sharded plainly over one mesh axis, the result is sharded in the same way; rows
that change owners are sent (`redistribute.halo_exchange`). If several axes shard the dimension, or
blocks of it, it must be replicated. A selection gives partial sums, all but one zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, Extent
from dtensor_core.operators.kernels.local_operator import Local, with_local_size
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import chunks, sharding_axis
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import replicated_rule, structural_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.operators.slicing.local import selecting, writing_selection, writing_slice
from dtensor_core.placement import Placement, Shard
from dtensor_core.redistribute.halo_exchange import Exchange, Extents, Rows
from dtensor_core.tracing import depending

aten = torch.ops.aten
Shards = Mapping[int, AxisSharding]


def _replicated_dim(
    call: Call, *, dim: int, removed: bool = False, added: bool = False
) -> ShardingRule:
    """Build a rule with a replicated dimension, which stays, goes, or is new in the result."""
    shape = call.specs[0].shape
    full = full_operand(shape)
    out = full
    if removed:
        out = full[:dim] + full[dim + 1 :]
    if added:
        out = (*full[:dim], (), *full[dim:])
    blocked = () if added else (f"d{dim}",)
    return structural_rule(
        (full,) * len(call.specs), (out,) * len(call.outputs), factor_sizes(shape), blocked
    )


def _exchanging(rule: ShardingRule, call: Call, axis: int, exchange: Exchange) -> ShardingRule:
    """Add the exchange as a further candidate: arguments that are not replicated are sharded."""
    sharded = Shard(exchange.dim)
    inputs = tuple(
        spec.placements[axis] if spec.placements[axis].is_replicate() else sharded
        for spec in call.specs
    )
    outputs: tuple[Placement, ...] = (sharded,) * len(call.outputs)
    return replace(rule, extra=(Candidate(inputs, outputs, exchange=exchange),))


def _concatenated(sizes: Sequence[int], ranks: int) -> tuple[Extents, ...]:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return tuple(chunks(size, ranks, start) for size, start in zip(sizes, starts, strict=True))


class _Taken:
    """Rows of a sharded dimension that a slice takes on each rank."""

    def __init__(self, size: int, ranks: int, taken: range) -> None:
        self._pieces = chunks(size, ranks)
        self._taken = taken
        self.extents = tuple(self._extent(piece) for piece in self._pieces)

    def _extent(self, piece: Extent) -> Extent:
        """Return the extent of the slice that comes from a piece of the dimension."""
        low, high = (self._before(at) for at in (piece.offset, piece.offset + piece.size))
        return Extent(low, high - low)

    def _before(self, row: int) -> int:
        steps = -(-(row - self._taken.start) // self._taken.step)
        return min(max(steps, 0), len(self._taken))

    def local(self, coord: int) -> tuple[int, int, int]:
        """Return start, end and step of the slice of a rank's own rows."""
        at = self.extents[coord]
        if not at.size:
            return 0, 0, 1
        first = self._taken[at.offset] - self._pieces[coord].offset
        return first, first + (at.size - 1) * self._taken.step + 1, self._taken.step

    def num_rows(self, coord: int) -> int:
        """Return the number of rows of the dimension that a rank holds."""
        return self._pieces[coord].size


def _taken(call: Call, size: int, ranks: int) -> _Taken:
    bounds = (call.argument("start"), call.argument("end"), int(call.argument("step", 1)))
    return _Taken(size, ranks, range(size)[slice(*bounds)])


def _slice(call: Call) -> ShardingRule:
    """A slice that takes the entire dimension leaves any sharding of it alone."""
    spec = call.specs[0]
    dim = int(call.argument("dim", 0)) % spec.ndim
    if call.outputs[0].shape == spec.shape:
        full = full_operand(spec.shape)
        return structural_rule((full,), (full,), factor_sizes(spec.shape))
    rule, axis = _replicated_dim(call, dim=dim), sharding_axis(call.specs, dim)
    if axis is None:
        return rule
    ranks = spec.mesh_shape[axis]
    taken = _taken(call, spec.shape[dim], ranks)

    def run(op: Local, rows: Rows, shards: Shards) -> Local:
        start, end, step = taken.local(shards[dim].coord)
        return lambda x, *_, **__: rows([aten.slice.Tensor(x, dim, start, end, step)])[0]

    wanted = chunks(call.outputs[0].shape[dim], ranks)
    return _exchanging(rule, call, axis, Exchange(axis, dim, (taken.extents,), (wanted,), run))


def _select(call: Call) -> ShardingRule:
    """If the dimension is sharded, one rank has the selected part and the others zeros."""
    spec, dim = call.specs[0], call.args[1] % call.specs[0].ndim
    full = full_operand(spec.shape)
    truth = spec.dtype is torch.bool
    return structural_rule(
        (full,),
        (full[:dim] + full[dim + 1 :],),
        factor_sizes(spec.shape),
        (f"d{dim}",) if truth else (),
        selecting,
    )


def _split(call: Call) -> ShardingRule:
    """Make all pieces by a single exchange."""
    spec = call.specs[0]
    dim = int(call.argument("dim", 0)) % spec.ndim
    rule, axis = _replicated_dim(call, dim=dim), sharding_axis(call.specs, dim)
    if axis is None:
        return rule
    ranks = spec.mesh_shape[axis]
    wanted = _concatenated([meta.shape[dim] for meta in call.outputs], ranks)

    def run(op: Local, rows: Rows, shards: Shards) -> Local:
        return lambda x, *_, **__: rows([x])

    owned = chunks(spec.shape[dim], ranks)
    return _exchanging(rule, call, axis, Exchange(axis, dim, (owned,), wanted, run))


def _unbind(call: Call) -> ShardingRule:
    dim = int(call.argument("dim", 0)) % call.specs[0].ndim
    return _replicated_dim(call, dim=dim, removed=True)


def _cat(call: Call) -> ShardingRule:
    """Every rank takes its share of a replicated tensor; the rows of all others are sent."""
    out = call.outputs[0]
    if any(spec.ndim != len(out.shape) for spec in call.specs):  # `torch.cat` skips empty tensors
        return replicated_rule(call)
    dim = int(call.argument("dim", 0)) % len(out.shape)
    rule, axis = _replicated_dim(call, dim=dim), sharding_axis(call.specs, dim)
    if axis is None or any(spec.dtype is not out.dtype for spec in call.specs):
        return rule
    ranks, owned, start = call.specs[0].mesh_shape[axis], [], 0
    for spec in call.specs:
        size = spec.shape[dim]
        is_replicated = spec.placements[axis].is_replicate()
        owned.append(
            (Extent(start, size),) * ranks if is_replicated else chunks(size, ranks, start)
        )
        start += size

    def run(op: Local, rows: Rows, shards: Shards) -> Local:
        if exchange.moves:
            return lambda tensors, *_, **__: rows(tensors)[0]
        return lambda tensors, *_, **__: depending(torch.cat(rows(tensors), dim), *tensors)

    exchange = Exchange(axis, dim, tuple(owned), (chunks(out.shape[dim], ranks),), run)
    return _exchanging(rule, call, axis, exchange)


def _stack(call: Call) -> ShardingRule:
    dim = int(call.argument("dim", 0)) % (call.specs[0].ndim + 1)
    return _replicated_dim(call, dim=dim, added=True)


def _inserted(call: Call) -> ShardingRule:
    """The gradient of a slice or selection: zeros but for a part of a dimension."""
    shape = call.outputs[0].shape
    dim = int(call.argument("dim")) % len(shape)
    full = full_operand(shape)
    operand = full if call.specs[0].ndim == len(shape) else full[:dim] + full[dim + 1 :]
    return structural_rule(
        (operand,), (full,), factor_sizes(shape), (f"d{dim}",), with_local_size(1)
    )


def _slice_backward(call: Call) -> ShardingRule:
    """The gradient of a slice: its rows return to their origin."""
    shape, spec = call.outputs[0].shape, call.specs[0]
    dim = int(call.argument("dim")) % len(shape)
    rule, axis = _inserted(call), sharding_axis(call.specs, dim)
    if axis is None:
        return rule
    ranks = spec.mesh_shape[axis]
    taken = _taken(call, shape[dim], ranks)

    def run(op: Local, rows: Rows, shards: Shards) -> Local:
        bounds = taken.local(shards[dim].coord)

        def insert(gradient: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            part = rows([gradient])[0]
            size = [*part.shape[:dim], taken.num_rows(shards[dim].coord), *part.shape[dim + 1 :]]
            made = aten.slice_backward.default(part, size, dim, *bounds)
            return made if part.shape[dim] else depending(made, part)

        return insert

    owned = chunks(spec.shape[dim], ranks)
    return _exchanging(rule, call, axis, Exchange(axis, dim, (owned,), (taken.extents,), run))


def _written_part(call: Call, *, gone: bool) -> ShardingRule:
    """x, part, dim, ... -> x with the part in its place.

    The part is replicated along the dimension if that is sharded.
    """
    spec = call.specs[0]
    dim = int(call.argument("dim", 0)) % spec.ndim
    full = full_operand(spec.shape)
    part = full[:dim] + full[dim + 1 :] if gone else (*full[:dim], (), *full[dim + 1 :])
    return ShardingRule(
        inputs=(full, part),
        outputs=(full,),
        sizes=factor_sizes(spec.shape),
        terms=((0,), (1,)),
        algebra="structural",
        local=writing_selection if gone else writing_slice,
    )


def _select_scatter(call: Call) -> ShardingRule:
    return _written_part(call, gone=True)


def _slice_scatter(call: Call) -> ShardingRule:
    """The rows of a part move to their destination; rows of a replicated part stay."""
    spec, part = call.specs
    dim = int(call.argument("dim", 0)) % spec.ndim
    rule, axis = _written_part(call, gone=False), sharding_axis([spec], dim)
    if axis is None:
        return rule
    ranks = spec.mesh_shape[axis]
    taken = _taken(call, spec.shape[dim], ranks)

    def run(op: Local, rows: Rows, shards: Shards) -> Local:
        bounds = taken.local(shards[dim].coord)

        def insert(x: torch.Tensor, part: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            (part,) = rows([part])
            made = aten.slice_scatter.default(x, part, dim, *bounds)
            return made if part.shape[dim] else depending(made, part)

        return insert

    owned, sharded = chunks(part.shape[dim], ranks), Shard(dim)
    exchange = Exchange(axis, dim, (owned,), (taken.extents,), run, (1,))
    return replace(rule, extra=(Candidate((sharded, sharded), (sharded,), exchange=exchange),))


_BUILDERS = {
    "slice": (_slice, "rows of a sharded dim move"),
    "select": (_select, "a sharded dim gives partial sums"),
    "split split_with_sizes unsafe_split unsafe_split_with_sizes": (
        _split,
        "rows of a sharded dim move",
    ),
    "unbind": (_unbind, "dim replicated, removed"),
    "cat": (_cat, "rows of a sharded dim move"),
    "stack": (_stack, "dim added"),
    "slice_backward": (_slice_backward, "rows of a sharded dim move"),
    "select_backward": (_inserted, "dim replicated"),
}


ROWS = {
    name: Row(build, text, "structural")
    for names, (build, text) in _BUILDERS.items()
    for name in names.split()
}
ROWS["slice_scatter"] = Row(
    _slice_scatter, "rows of a sharded dim move", "structural", ((0,), (1,))
)
ROWS["select_scatter"] = Row(
    _select_scatter, "each rank writes its own rows", "structural", ((0,), (1,))
)
