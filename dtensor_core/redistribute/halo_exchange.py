"""Halo exchange: rows that slices, joins and windows of a sharded dimension move between ranks.

Tensors sharded along a mesh axis become others, sharded along the same axis. All of them are
extents of the same index space of rows: every rank of the axis holds an extent of each tensor. A
rank needs from another the part of its wanted extent that the other holds. All rows travel in a
single all-to-all of exact sizes (one per dtype); rows that a rank already has stay.
`operators.slicing` and `operators.rules.halo` make the exchanges; they pass through `propagate` to
`entry`, which calls `exchanging`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from dtensor_core import collectives, layout, observe
from dtensor_core.layout import AxisSharding, Extent
from dtensor_core.mesh import axis_name, channel
from dtensor_core.placement import Replicate
from dtensor_core.redistribute.cost import message_seconds, topology_of
from dtensor_core.redistribute.execute import Origin
from dtensor_core.redistribute.steps import CARRIERS, carried
from dtensor_core.redistribute.transitions import Step
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

# The extent that each rank of an axis holds of one tensor, in the common index space.
Extents = tuple[Extent, ...]
Blocks = Sequence[torch.Tensor]
# Maps local tensors to local tensors: from those owned to those wanted.
Rows = Callable[[Blocks], list[torch.Tensor]]
ExchangeRunner = Callable[
    [Callable[..., Any], Rows, Mapping[int, AxisSharding]], Callable[..., Any]
]
# The number of the wanted tensor, the rows of it, and their data.
_Piece = tuple[int, Extent, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Rows of dimension `dim` that move between the ranks of mesh axis `axis`.

    Extents owned overlap only where all ranks hold a replicated tensor. Extents wanted may overlap;
    such a row goes to several ranks. If nothing moves, the results may be views.

    Attributes:
        owned: The extents of each tensor before the exchange.
        wanted: The extents of each tensor after it.
        run: `run(op, rows, coords)` makes the function a rank runs for the operator, given its
            successive exchanges and how it shards each dim that has any.
        arguments: The operator's arguments that the owned tensors are, or are derived from; if
            empty, the first arguments.
        parts: Derives the owned tensors from the arguments, given a rank's coordinate.
    """

    axis: int
    dim: int
    owned: tuple[Extents, ...]
    wanted: tuple[Extents, ...]
    run: ExchangeRunner
    arguments: tuple[int, ...] = ()
    parts: Callable[[Blocks, int], Blocks] | None = None

    def between(self, source: int, target: int) -> list[tuple[int, int, Extent]]:
        """Return the rows that `target` takes from `source`, which may be the same rank.

        Each entry is (number of the owned tensor, number of the wanted tensor, rows). Two ranks
        that hold the same extent of a tensor exchange none of it.
        """
        found: list[tuple[int, int, Extent]] = []
        for number, owned in enumerate(self.owned):
            if source != target and owned[source] == owned[target]:
                continue
            for result, wanted in enumerate(self.wanted):
                both = _intersection(owned[source], wanted[target])
                if both.size:
                    found.append((number, result, both))
        return found

    @cached_property
    def sent_rows(self) -> tuple[tuple[int, ...], ...]:
        """The number of rows of each tensor that every rank sends to others.

        A tensor that all ranks hold alike is not sent.
        """
        # Rows are counted by bisection, since the pairs of ranks grow quadratically.
        counting = [_counting(wanted) for wanted in self.wanted]

        def sent(mine: Extent, rank: int) -> int:
            own = sum(_intersection(mine, wanted[rank]).size for wanted in self.wanted)
            return sum(count(mine) for count in counting) - own

        return tuple(
            tuple(sent(mine, rank) if len({*owned}) > 1 else 0 for rank, mine in enumerate(owned))
            for owned in self.owned
        )

    @property
    def moves(self) -> bool:
        """True if any rank has to send rows."""
        return any(map(any, self.sent_rows))

    def argument(self, number: int) -> int:
        """Return the number of the argument that a owned tensor is, or is derived from."""
        return self.arguments[number] if self.arguments else number

    def seconds(self, specs: Sequence[Spec]) -> float:
        """Return the estimated time for rows of the shape of the arguments' rows.

        The estimate uses the bytes that a rank sends on average. The busiest rank may send n/(n-1)
        times what resharding to another dimension would make it send, but all ranks together send
        less, and the sharding stays where it is.
        """
        if not self.moves:
            return 0.0
        num_bytes = sum(_sent_bytes(self, specs)) / len(self.wanted[0])
        return message_seconds(num_bytes, topology_of(specs[0].mesh).links[self.axis])


def _intersection(one: Extent, other: Extent) -> Extent:
    low = max(one.offset, other.offset)
    high = min(one.offset + one.size, other.offset + other.size)
    return Extent(low, max(high - low, 0))


def _counting(extents: Extents) -> Callable[[Extent], int]:
    """Make a function that sums the rows which an extent shares with each of these."""
    starts = sorted(each.offset for each in extents)
    ends = sorted(each.offset + each.size for each in extents)
    sums = [list(itertools.accumulate(bounds, initial=0)) for bounds in (starts, ends)]

    def before(row: int) -> int:
        begun, ended = bisect(starts, row), bisect(ends, row)
        return begun * row - sums[0][begun] - (ended * row - sums[1][ended])

    return lambda extent: before(extent.offset + extent.size) - before(extent.offset)


def _sent_bytes(exchange: Exchange, specs: Sequence[Spec]) -> list[int]:
    """Return the bytes every rank of the axis sends, at the first coordinate of the other axes."""
    totals = [0] * len(exchange.wanted[0])
    for number, counts in enumerate(exchange.sent_rows):
        spec = specs[exchange.argument(number)]
        placements = list(spec.placements)
        placements[exchange.axis] = Replicate()
        origin = (0,) * len(spec.mesh_shape)
        shape = layout.local_shape(spec.shape, placements, spec.mesh_shape, origin)
        row_bytes = _row_numel(shape, exchange.dim) * spec.dtype.itemsize
        totals = [total + count * row_bytes for total, count in zip(totals, counts, strict=True)]
    return totals


def _row_numel(shape: Sequence[int], dim: int) -> int:
    """Return the number of elements of a row, independent of the number of rows."""
    return math.prod(shape[:dim]) * math.prod(shape[dim + 1 :])


@dataclass(frozen=True, slots=True)
class ExchangeStep(Step):
    """Step form of an exchange, as guards see it; `num_bytes` is the maximum over ranks."""

    num_bytes: int

    def payload_bytes(
        self, shape: Sequence[int], itemsize: int, mesh_shape: Sequence[int], coords: Sequence[int]
    ) -> int:
        """Return the bytes of the rank that sends most."""
        return self.num_bytes


def exchanging(
    exchanges: Sequence[Exchange],
    op: Callable[..., Any],
    inputs: Sequence[Spec],
    result: Spec,
    origins: Sequence[Origin],
) -> Callable[..., Any]:
    """Return the function that this rank runs in place of `op`; all exchanges share one `run`.

    Each exchange also sends the rows that earlier exchanges have fetched, so that the corners of a
    halo arrive in two steps.
    """
    coords = inputs[0].coords
    assert coords is not None
    ways: list[Rows] = []
    moves: list[observe.Move] = []
    for exchange, origin in zip(exchanges, origins, strict=True):
        if exchange.moves:
            ways.append(_sent(exchange, inputs, result, origin))
            moves.append(_move(exchange, inputs, origin))
        else:
            ways.append(_kept(exchange, coords[exchange.axis]))

    def rows(blocks: Blocks) -> list[torch.Tensor]:
        guard = observe.guard() if moves else None
        if guard is not None:
            guard(origins[0].operator, moves)
        for exchange, way in zip(exchanges, ways, strict=True):
            if exchange.parts is not None:
                blocks = exchange.parts(blocks, coords[exchange.axis])
            blocks = way(blocks)
        return list(blocks)

    shardings = {
        each.dim: AxisSharding(inputs[0].mesh_shape[each.axis], coords[each.axis])
        for each in exchanges
    }
    return exchanges[0].run(op, rows, shardings)


def _kept(exchange: Exchange, me: int) -> Rows:
    """Make the form of an exchange without communication; a result of a single piece is a view."""
    found = exchange.between(me, me)

    def rows(blocks: Blocks) -> list[torch.Tensor]:
        pieces = [
            (result, at, _part(exchange, me, blocks[number], number, at))
            for number, result, at in found
        ]
        return _joined(exchange, pieces, blocks)

    return rows


def _part(
    exchange: Exchange, me: int, block: torch.Tensor, number: int, rows: Extent
) -> torch.Tensor:
    return block.narrow(exchange.dim, rows.offset - exchange.owned[number][me].offset, rows.size)


def _joined(exchange: Exchange, pieces: Sequence[_Piece], blocks: Blocks) -> list[torch.Tensor]:
    """Join the pieces of each result; a result without pieces is an empty tensor like its block."""
    made: list[torch.Tensor] = []
    for number in range(len(exchange.wanted)):
        mine = sorted((piece for piece in pieces if piece[0] == number), key=_start)
        if mine:
            found = [tensor for _, _, tensor in mine]
            made.append(found[0] if len(found) == 1 else torch.cat(found, exchange.dim))
        else:
            like = blocks[min(number, len(blocks) - 1)]
            made.append(like.narrow(exchange.dim, 0, 0).clone())
    return made


def _start(piece: _Piece) -> int:
    return piece[1].offset


def _sent(exchange: Exchange, inputs: Sequence[Spec], result: Spec, origin: Origin) -> Rows:
    """Make the communicating form of an exchange; all ranks of the axis take part in it."""
    assert result.coords is not None
    me = result.coords[exchange.axis]
    staying = exchange.between(me, me)
    alike: dict[torch.dtype, set[int]] = {}
    for number, counts in enumerate(exchange.sent_rows):
        if any(counts):
            alike.setdefault(inputs[exchange.argument(number)].dtype, set()).add(number)
    posts = [_post(exchange, each, inputs, result, origin) for each in alike.values()]

    def rows(blocks: Blocks) -> list[torch.Tensor]:
        delivered = [post(blocks) for post in posts]
        pieces = [piece for each, _ in delivered for piece in each]
        met = {number for number, _, _ in pieces}
        counts = Counter([number for number, *_ in pieces])
        counts.update(wanted for _, wanted, _ in staying)
        for number, wanted, at in staying:
            kept = _part(exchange, me, blocks[number], number, at)
            # A result of one piece is not concatenated, and would alias the argument.
            pieces.append((wanted, at, kept.clone() if counts[wanted] == 1 else kept))
        made = _joined(exchange, pieces, blocks)
        arrived = [each for _, each in delivered]
        return [m if number in met else depending(m, *arrived) for number, m in enumerate(made)]

    return rows


def _post(
    exchange: Exchange, numbers: set[int], inputs: Sequence[Spec], result: Spec, origin: Origin
) -> Callable[[Blocks], tuple[list[_Piece], torch.Tensor]]:
    """Make the all-to-all of the tensors of a dtype, which returns pieces and raw data."""
    first = min(numbers)
    spec, dim = inputs[exchange.argument(first)], exchange.dim
    assert spec.coords is not None
    me = spec.coords[exchange.axis]
    joined = channel(spec.mesh, (exchange.axis,))
    ways = [
        [(me, place[0]) for place in joined.coords],
        [(place[0], me) for place in joined.coords],
    ]
    outgoing, incoming = (
        [
            [p for p in exchange.between(*ends) if p[0] in numbers and ends != (me, me)]
            for ends in way
        ]
        for way in ways
    )
    leaving, arriving = (list(itertools.chain.from_iterable(w)) for w in (outgoing, incoming))
    carrier = CARRIERS.get(spec.dtype)
    width = spec.dtype.itemsize // carrier.itemsize if carrier is not None else 1
    unsent = numbers - {number for number, _, _ in leaving}
    # Exchanges that send nothing from this rank look equal to a compiler, which would merge them
    # here but not on the other ranks.
    mark = hash((dim, exchange.owned, exchange.wanted, first)) & 0x7FFFFFFF
    seconds = exchange.seconds(inputs)

    # Earlier exchanges add rows along other dims, so these sizes are known at a call only.
    @cache
    def sizes(*per_row: int) -> tuple[list[int], list[int], observe.Reason]:
        """Return the elements to send to and receive from each rank, and the reason."""
        to_send, to_receive = (
            [sum(at.size * per_row[number] for number, _, at in each) * width for each in way]
            for way in (outgoing, incoming)
        )
        reason = observe.Reason(
            operator=origin.operator,
            argument=origin.argument,
            source=spec.text,
            target=result.text,
            step="all_to_all",
            axis=axis_name(spec.mesh, exchange.axis),
            payload_bytes=sum(to_send) // width * spec.dtype.itemsize,
            candidates=origin.candidates,
            seconds=seconds,
        )
        return to_send, to_receive, reason

    def post(blocks: Blocks) -> tuple[list[_Piece], torch.Tensor]:
        to_send, to_receive, reason = sizes(
            *[int(_row_numel(block.shape, dim)) for block in blocks]
        )
        sent = [_part(exchange, me, blocks[n], n, at).reshape(-1) for n, _, at in leaving]
        # A rank without rows to send joins the all-to-all as well, or the others would wait for it.
        flat = torch.cat(sent) if sent else blocks[first].new_empty(0)
        flat = depending(flat, *(blocks[number] for number in unsent))
        flat = depending(flat, blocks[first], mark=mark)
        if carrier is not None:
            flat = carried(flat, carrier)
        with observe.announced(reason):
            issued = collectives.all_to_all(flat, to_receive, to_send, joined.name)
            arrived = collectives.wait(issued)
        if carrier is not None:
            arrived = arrived.view(spec.dtype)
        pieces: list[_Piece] = []
        start = 0
        for number, wanted, at in arriving:
            shape = list(blocks[number].shape)
            shape[dim] = at.size
            numel = math.prod(shape)
            pieces.append((wanted, at, arrived[start : start + numel].view(shape)))
            start += numel
        return pieces, arrived

    return post


def _move(exchange: Exchange, inputs: Sequence[Spec], origin: Origin) -> observe.Move:
    """Build the move shown to a guard: the layout stays, but bytes are sent."""
    spec = inputs[exchange.argument(0)]
    most = max(_sent_bytes(exchange, inputs))
    same = spec.placements
    step = ExchangeStep("all_to_all", (exchange.axis,), same, same, True, most)
    return observe.Move(origin.argument, spec, (step,), origin.candidates)
