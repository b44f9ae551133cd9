"""Combination of per-rank summaries: reductions, scans and searches along a sharded dimension.

Each rank along the sharding axes summarizes its shard in a few tensors, whose shapes are the same
on all ranks. One all-gather per axis gives every rank all summaries, from which it computes the
result or its own part of it. Made by the rules of `operators`; passes through `propagate` to
`entry`, like the rows of an `Exchange`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from dtensor_core import collectives, layout, observe
from dtensor_core.mesh import axis_name, channel
from dtensor_core.redistribute.cost import message_seconds, topology_of
from dtensor_core.redistribute.execute import Origin
from dtensor_core.redistribute.halo_exchange import Exchange, ExchangeStep, exchanging
from dtensor_core.redistribute.steps import CARRIERS, carried
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending


@dataclass(frozen=True, eq=False)
class Merge:
    """Combination of the summaries of ranks along `axes`, which shard the dimensions `dims`.

    Attributes:
        axes: The mesh axes to gather along.
        dims: The tensor dimensions that they shard.
        bytes_each: The summary bytes of a rank per element of the other dims.
        run: `run(op, line)` makes the function a rank runs for the operator; None if its local
            operator does it all.
    """

    axes: tuple[int, ...]
    dims: tuple[int, ...]
    bytes_each: int
    run: Callable[[Callable[..., Any], RankOrder], Callable[..., Any]] | None
    moves: ClassVar[bool] = True

    @property
    def axis(self) -> int:
        """The axis that this is a candidate of; the first of several."""
        return self.axes[0]

    def seconds(self, specs: Sequence[Spec]) -> float:
        """Return the estimated time for a tensor like the first argument."""
        spec = specs[0]
        ranks, link = spec.mesh_shape[self.axis], topology_of(spec.mesh).links[self.axis]
        origin = (0,) * len(spec.mesh_shape)
        shape = layout.local_shape(spec.shape, spec.placements, spec.mesh_shape, origin)
        others = math.prod(size for dim, size in enumerate(shape) if dim not in self.dims)
        return message_seconds(others * self.bytes_each * (ranks - 1), link)


def within(
    exchanges: Sequence[Exchange | Merge],
    op: Callable[..., Any],
    run: Callable[..., Any],
    inputs: Sequence[Spec],
    result: Spec,
    origins: Sequence[Origin],
) -> Callable[..., Any]:
    """Return the function this rank runs for `op` where ranks exchange data.

    It takes the place of the local operator `run`. Merges along several axes are joined into one.
    """
    rows = [each for each in exchanges if isinstance(each, Exchange)]
    if rows:
        return exchanging(rows, run, inputs, result, origins)
    (first, *_) = merges = [each for each in exchanges if isinstance(each, Merge)]
    merge = replace(first, axes=tuple(each.axis for each in merges))
    if merge.run is None:
        return run
    return merge.run(op, RankOrder(merge, inputs[0], result, origins[0]))


class RankOrder:
    """The non-empty ranks of a merge, in coordinate order, as seen from a rank.

    If one dimension is sharded, this is the order of its rows.

    Attributes:
        shape: The global shape.
        shapes: The local shape of each of the ranks.
        coords: The mesh coordinates of each of the ranks.
        before: The number of these ranks that come before this rank.
        is_empty: True if this rank holds nothing, and so is none of them.
    """

    def __init__(self, merge: Merge, spec: Spec, result: Spec, origin: Origin) -> None:
        assert spec.coords is not None
        self._merge, self._spec, self._cause, self._result = merge, spec, origin, result
        held: list[tuple[int, ...]] = []
        at = list(spec.coords)
        self._holders: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.coords: list[tuple[int, ...]] = []
        self.before = 0
        mine = tuple(spec.coords[axis] for axis in merge.axes)
        places = itertools.product(*(range(spec.mesh_shape[axis]) for axis in merge.axes))
        for number, place in enumerate(places):
            for axis, coord in zip(merge.axes, place, strict=True):
                at[axis] = coord
            held.append(layout.local_shape(spec.shape, spec.placements, spec.mesh_shape, at))
            if math.prod(held[-1][dim] for dim in merge.dims):
                self._holders.append(number)
                self.shapes.append(held[-1])
                self.coords.append(tuple(at))
                self.before += place < mine
        self._num_ranks = len(held)
        self.shape = tuple(spec.shape)
        self.is_empty = 0 in (spec.local_shape[dim] for dim in merge.dims)

    @classmethod
    def along(
        cls,
        op: Callable[..., Any],
        spec: Spec,
        dims: Sequence[int],
        result: Spec,
        bytes_each: int,
        but: Collection[int] = (),
    ) -> RankOrder | None:
        """Return the order of an argument's ranks, or None if it is not sharded along `dims`.

        Axes in `but` are left out. For use in local operators.
        """
        sharding = [axis for axis, each in enumerate(spec.placements) if each.sharded_dim in dims]
        axes = tuple(axis for axis in sharding if spec.mesh_shape[axis] > 1 and axis not in but)
        if not axes or 0 in spec.shape:
            return None
        merge = Merge(axes, tuple(dims), bytes_each, None)
        return cls(merge, spec, result, Origin(str(op), "input"))

    @property
    def parts(self) -> list[float]:
        """The fraction of all elements that each of the ranks holds."""
        counts = [math.prod(shape[dim] for dim in self._merge.dims) for shape in self.shapes]
        return [count / sum(counts) for count in counts]

    def sum(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Sum each of these tensors over all ranks."""
        return [each.sum(0) for each in self.gather(*tensors)]

    def offset(self, dim: int, coords: Sequence[int] | None = None) -> int:
        """Return the global offset of the rows of this rank, or of the rank at `coords`."""
        spec = self._spec
        shardings = layout.shardings_of(
            spec.placements, spec.mesh_shape, coords or spec.coords or (), dim
        )
        pieces = layout.held_extents(spec.shape[dim], shardings)
        return pieces[0].offset if pieces else 0

    def filled(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor, or a row of zeros if it is empty, as kernels need an element."""
        if not self.is_empty:
            return x
        shape = [max(n, 1) if d in self._merge.dims else n for d, n in enumerate(x.shape)]
        return depending(x.new_zeros(shape), x)

    def gather(self, *summaries: torch.Tensor) -> list[torch.Tensor]:
        """Gather each of these tensors from all non-empty ranks, stacked along a new first dim."""
        if not any(each.numel() for each in summaries):  # nor does any other rank of them
            return [each.new_empty(len(self.shapes), *each.shape) for each in summaries]
        guard = observe.guard()
        if guard is not None:
            guard(self._cause.operator, [self._move(summaries)])
        sent = _packed(summaries)
        # From the last axis to the first: the rows then are in the order of coordinates.
        for axis in reversed(self._merge.axes):
            sent = self._gathered(sent, axis)
        rows = sent.view(self._num_ranks, sent.numel() // self._num_ranks)
        # Empty ranks have to join the collective, but their rows are made up (see `filled`).
        if len(self._holders) < self._num_ranks:
            rows = torch.stack([rows[number] for number in self._holders])
        return _unpacked(rows, summaries)

    def _gathered(self, sent: torch.Tensor, axis: int) -> torch.Tensor:
        """All-gather along an axis, in order of coordinates."""
        joined = channel(self._spec.mesh, (axis,))
        ranks = len(joined.coords)
        with observe.announced(self._reason(sent, axis, ranks)):
            issued = collectives.all_gather(sent, ranks, joined.name)
            arrived = collectives.wait(issued)
        numbers = sorted(range(ranks), key=joined.coords.__getitem__)
        if numbers == list(range(ranks)):
            return arrived
        return torch.cat([arrived.chunk(ranks)[number] for number in numbers])

    def _reason(self, sent: torch.Tensor, axis: int, ranks: int) -> observe.Reason:
        return observe.Reason(
            operator=self._cause.operator,
            argument=self._cause.argument,
            source=self._spec.text,
            target=self._result.text,
            step="all_gather",
            axis=axis_name(self._spec.mesh, axis),
            payload_bytes=sent.numel() * sent.element_size() * ranks,
            candidates=self._cause.candidates,
            seconds=self._merge.seconds([self._spec]),
        )

    def _move(self, summaries: Sequence[torch.Tensor]) -> observe.Move:
        """Build the move shown to a guard: the layout stays, but bytes are sent."""
        num_bytes = sum(each.numel() * each.element_size() for each in summaries) * self._num_ranks
        same = self._spec.placements
        step = ExchangeStep("all_gather", self._merge.axes, same, same, True, num_bytes)
        return observe.Move(self._cause.argument, self._spec, (step,), self._cause.candidates)


def _packed(summaries: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pack the summaries into a flat tensor, of bytes if their dtypes differ."""
    flat = [each.contiguous().view(-1) for each in summaries]
    if all(each.dtype is flat[0].dtype for each in flat):
        carrier = CARRIERS.get(flat[0].dtype)
        sent = flat[0] if len(flat) == 1 else torch.cat(flat)
        return sent if carrier is None else carried(sent, carrier)
    return torch.cat([carried(each, torch.uint8) for each in flat])


def _unpacked(rows: torch.Tensor, summaries: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Unpack rows that each hold all summaries into a stack per summary."""
    found: list[torch.Tensor] = []
    start = 0
    for like in summaries:
        width = like.numel() * like.element_size() // rows.element_size()
        part = rows if len(summaries) == 1 else _block(rows, start, width)
        found.append(part.view(like.dtype).view(len(rows), *like.shape))
        start += width
    return found


def _block(rows: torch.Tensor, start: int, width: int) -> torch.Tensor:
    # A copy starts at an aligned address, which a view as a wider dtype requires.
    return rows.narrow(1, start, width).clone(memory_format=torch.contiguous_format)
