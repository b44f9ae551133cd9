"""Rows that change owners: what slices, splits and joins of a cut dimension send, and no more.

Tensors that were cut along one mesh axis become others, cut along the same axis. All of them lie on
a common line of rows, of which every rank of the axis holds one extent of each; what a rank needs
of another is where the extent it wants meets the one that the other holds. All of it travels in
one all-to-all of exact sizes, and what a rank has already stays. From `rules.families.slice`
through `propagate` to `entry`, which calls `exchanging`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dtensor_core import collectives, layout, observe
from dtensor_core.layout import Extent
from dtensor_core.mesh import axis_name, channel
from dtensor_core.placement import Replicate
from dtensor_core.redistribute.cost import message_seconds, topology_of
from dtensor_core.redistribute.execute import Cause
from dtensor_core.redistribute.steps import CARRIERS, carried
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

# What every rank of an axis holds of one tensor, as extents of the common line.
Extents = tuple[Extent, ...]
# From local tensors to local tensors: along `dim` the ones held become the ones wanted.
Rows = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Which rows of dimension `dim` change owners along mesh axis `axis`, and what for.

    `held` has the extents of each tensor before, `wanted` of each one after, none of which meet
    but where a tensor is held whole by all. `run(op, rows, coord)` is what the rank at `coord` runs
    for the operator, given the exchange itself. If nothing moves its results may be views.
    """

    axis: int
    dim: int
    held: tuple[Extents, ...]
    wanted: tuple[Extents, ...]
    run: Callable[[Callable[..., Any], Rows, int], Callable[..., Any]]

    def between(self, source: int, target: int) -> list[tuple[int, int, Extent]]:
        """What `target` takes from `source`, perhaps itself: which tensor, for which, which rows.

        What two ranks hold alike neither sends.
        """
        found: list[tuple[int, int, Extent]] = []
        for number, held in enumerate(self.held):
            if source != target and held[source] == held[target]:
                continue
            for result, wanted in enumerate(self.wanted):
                both = _meet(held[source], wanted[target])
                if both.size:
                    found.append((number, result, both))
        return found

    @cached_property
    def sent_rows(self) -> tuple[int, ...]:
        """How many rows each rank sends: its own but those that it wants itself.

        Every row is wanted by one rank; what all ranks hold nobody sends.
        """
        own = [held for held in self.held if any(each != held[0] for each in held)]
        return tuple(
            sum(held[rank].size for held in own)
            - sum(_meet(o[rank], w[rank]).size for o, w in itertools.product(own, self.wanted))
            for rank in range(len(self.wanted[0]))
        )

    @property
    def moves(self) -> bool:
        """True if any rank has to send anything."""
        return any(self.sent_rows)


def _meet(one: Extent, other: Extent) -> Extent:
    low = max(one.offset, other.offset)
    high = min(one.offset + one.size, other.offset + other.size)
    return Extent(low, max(high - low, 0))


def exchange_seconds(exchange: Exchange, spec: Spec) -> float:
    """The estimated time, of rows like those of `spec`.

    It is that of what a rank sends on average. The one that sends most may send n/(n-1) times what
    it would to another dimension, all together send less, and the cut stays where it is.
    """
    total = sum(exchange.sent_rows)
    if not total:
        return 0.0
    origin = (0,) * len(spec.mesh_shape)
    num_bytes = total * _row_bytes(exchange, spec, origin) / len(exchange.wanted[0])
    return message_seconds(num_bytes, topology_of(spec.mesh).links[exchange.axis])


def _row_shape(exchange: Exchange, spec: Spec, coords: Sequence[int]) -> list[int]:
    """The local shape of a tensor of one row; only other axes cut it."""
    placements = list(spec.placements)
    placements[exchange.axis] = Replicate()
    shape = list(layout.local_shape(spec.shape, placements, spec.mesh_shape, coords))
    shape[exchange.dim] = 1
    return shape


def _row_bytes(exchange: Exchange, spec: Spec, coords: Sequence[int]) -> int:
    return math.prod(_row_shape(exchange, spec, coords)) * spec.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ExchangeStep(Step):
    """An exchange as a guard sees it: `num_bytes` are those of the rank that sends most."""

    num_bytes: int

    def payload_bytes(
        self, shape: Sequence[int], itemsize: int, mesh_shape: Sequence[int], coords: Sequence[int]
    ) -> int:
        """The bytes of the rank that sends most."""
        return self.num_bytes


def exchanging(
    exchange: Exchange, op: Callable[..., Any], spec: Spec, result: Spec, cause: Cause
) -> Callable[..., Any]:
    """What this rank runs in place of `op`, of an argument that is cut and a result."""
    assert spec.coords is not None
    me = spec.coords[exchange.axis]
    if not exchange.moves:
        return exchange.run(op, _kept(exchange, me), me)
    return exchange.run(op, _sent(exchange, spec, result, cause), me)


def _kept(exchange: Exchange, me: int) -> Rows:
    """Every rank has all that it wants; what it takes of one tensor is a view."""
    dim, found = exchange.dim, exchange.between(me, me)

    def rows(blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pieces = [
            (result, at, _piece(exchange, me, blocks, number, at)) for number, result, at in found
        ]
        return [_joined(pieces, number, blocks[0], dim) for number in range(len(exchange.wanted))]

    return rows


def _piece(
    exchange: Exchange, me: int, blocks: Sequence[torch.Tensor], number: int, rows: Extent
) -> torch.Tensor:
    start = rows.offset - exchange.held[number][me].offset
    return blocks[number].narrow(exchange.dim, start, rows.size)


def _joined(
    pieces: Sequence[tuple[int, Extent, torch.Tensor]], number: int, like: torch.Tensor, dim: int
) -> torch.Tensor:
    """The result of this number, from its pieces."""
    mine = sorted(
        (at.offset, order) for order, (result, at, _) in enumerate(pieces) if result == number
    )
    if len(mine) == 1:
        return pieces[mine[0][1]][2]
    found = [pieces[order][2] for _, order in mine]
    return torch.cat(found, dim) if found else like.narrow(dim, 0, 0).clone()


def _sent(exchange: Exchange, spec: Spec, result: Spec, cause: Cause) -> Rows:
    """Some rank needs rows that it does not hold: all ranks of the axis take part."""
    assert spec.coords is not None
    axis, dim, me = exchange.axis, exchange.dim, spec.coords[exchange.axis]
    joined = channel(spec.mesh, (axis,))
    others = [place[0] for place in joined.coords]
    outgoing = [[] if other == me else exchange.between(me, other) for other in others]
    incoming = [[] if other == me else exchange.between(other, me) for other in others]
    staying = exchange.between(me, me)
    row = _row_shape(exchange, spec, spec.coords)
    carrier = CARRIERS.get(spec.dtype)
    width = spec.dtype.itemsize // carrier.itemsize if carrier is not None else 1
    per_row = math.prod(row)
    to_send, to_receive = (
        [sum(at.size for _, _, at in each) * per_row * width for each in way]
        for way in (outgoing, incoming)
    )
    leaving, arriving = (list(itertools.chain.from_iterable(w)) for w in (outgoing, incoming))
    shapes = [[*row[:dim], at.size, *row[dim + 1 :]] for _, _, at in arriving]
    sizes = [at.size * per_row for _, _, at in arriving]
    counts = Counter(result for _, result, _ in (*arriving, *staying))
    unsent = set(range(len(exchange.held))) - {number for number, _, _ in leaving}
    unmet = set(range(len(exchange.wanted))) - {result for _, result, _ in arriving}
    mark = hash((dim, exchange.held, exchange.wanted)) & 0x7FFFFFFF
    payload = sum(to_send) // width * spec.dtype.itemsize
    news, move = _news(exchange, spec, result, cause, payload), _move(exchange, spec, cause)

    def rows(blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        guard = observe.guard()
        if guard is not None:
            guard(cause.operator, [move])
        sent = [_piece(exchange, me, blocks, n, at).reshape(-1) for n, _, at in leaving]
        flat = torch.cat(sent) if sent else blocks[0].new_empty(0)
        flat = depending(flat, *(blocks[number] for number in unsent))
        flat = depending(flat, blocks[0], mark=mark)
        if carrier is not None:
            flat = carried(flat, carrier)
        with observe.announced(news):
            issued = collectives.all_to_all(flat, to_receive, to_send, joined.name)
            arrived = collectives.wait(issued)
        if carrier is not None:
            arrived = arrived.view(spec.dtype)
        pieces = [
            (result, at, part.view(shape))
            for (_, result, at), part, shape in zip(
                arriving, arrived.split(sizes), shapes, strict=True
            )
        ]
        for number, result, at in staying:
            kept = _piece(exchange, me, blocks, number, at)
            pieces.append((result, at, kept.clone() if counts[result] == 1 else kept))
        made = [_joined(pieces, number, blocks[0], dim) for number in range(len(exchange.wanted))]
        return [depending(m, arrived) if n in unmet else m for n, m in enumerate(made)]

    return rows


def _news(
    exchange: Exchange, spec: Spec, result: Spec, cause: Cause, payload_bytes: int
) -> observe.Announcement:
    return observe.Announcement(
        operator=cause.operator,
        argument=cause.argument,
        source=spec.text,
        target=result.text,
        step="all_to_all",
        axis=axis_name(spec.mesh, exchange.axis),
        payload_bytes=payload_bytes,
        candidates=cause.candidates,
        seconds=exchange_seconds(exchange, spec),
    )


def _move(exchange: Exchange, spec: Spec, cause: Cause) -> observe.Move:
    """What a guard is shown: nothing changes its layout, but bytes are sent."""
    most = max(exchange.sent_rows) * _row_bytes(exchange, spec, (0,) * len(spec.mesh_shape))
    same = spec.placements
    step = ExchangeStep("all_to_all", (exchange.axis,), same, same, True, most)
    return observe.Move(cause.argument, spec, (step,), cause.candidates)
