"""Slices, splits, joins, rolls and padding of a sharded dim send only rows that change ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DeviceMesh, Partial, Replicate, Shard, init_device_mesh, observe
from dtensor_core.debug import ExplicitRedistributionContext, ImplicitRedistributionError, explain
from dtensor_core.layout import local_extent
from dtensor_core.placement import _StridedShard
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives, Messages, Sent
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, WIDTH, ITEMSIZE = 4, 3, 8
SIZES = (1, 4, 5, 8, 11)


def _t(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def owners(size: int) -> torch.Tensor:
    """Rank of each row of a sharded dimension."""
    counts = [local_extent(size, RANKS, coord).size for coord in range(RANKS)]
    return torch.arange(RANKS).repeat_interleave(torch.tensor(counts))


def bytes_of(moved: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """Bytes that each rank sends of rows, given their ranks before and after."""
    return [
        sum(int(((old == rank) & (new != rank)).sum()) for old, new in moved) * WIDTH * ITEMSIZE
        for rank in range(RANKS)
    ]


def split_owners(x: torch.Tensor, *args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(piece, owners(len(piece))) for piece in x.split(*args)]


Moved = Callable[[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]


def one(part: Callable[[torch.Tensor], torch.Tensor]) -> Moved:
    return lambda old: [(part(old), owners(len(part(old))))]


def joined(parts: Callable[[torch.Tensor], list[torch.Tensor]]) -> Moved:
    return lambda old: [(torch.cat(parts(old)), owners(sum(map(len, parts(old)))))]


# The call, and the ranks of rows before and after it.
CALLS: dict[str, tuple[Callable[[Any], Any], Moved]] = {
    "x[1:]": (lambda x: x[1:], one(lambda x: x[1:])),
    "x[:-1]": (lambda x: x[:-1], one(lambda x: x[:-1])),
    "x[2:4]": (lambda x: x[2:4], one(lambda x: x[2:4])),
    "x[::2]": (lambda x: x[::2], one(lambda x: x[::2])),
    "x[1::3]": (lambda x: x[1::3], one(lambda x: x[1::3])),
    "narrow": (lambda x: x.narrow(0, 1, len(x) - 1), one(lambda x: x[1:])),
    "split": (lambda x: x.split(3), lambda x: split_owners(x, 3)),
    "chunk": (lambda x: x.chunk(2), lambda x: split_owners(x, -(-len(x) // 2))),
    "cat": (lambda x: torch.cat([x, x]), joined(lambda x: [x, x])),
    "roll": (lambda x: x.roll(-2, 0), one(lambda x: x.roll(-2))),
    "flip": (lambda x: x.flip(0, 1), one(lambda x: x.flip(0))),
    "repeat": (lambda x: x.repeat(3, 1), one(lambda x: x.repeat(3))),
    "tile": (lambda x: x.tile(2, 1), one(lambda x: x.repeat(2))),
    # Padding belongs to no rank before and is not sent.
    "pad": (lambda x: F.pad(x, (0, 0, 1, 2)), one(lambda x: F.pad(x, (1, 2), value=-1))),
    "pad and crop": (
        lambda x: F.pad(x, (0, 0, -1, 3)),
        one(lambda x: F.pad(x[1:], (0, 3), value=-1)),
    ),
    "pad with the edge": (
        lambda x: F.pad(x.T, (1, 2), "replicate").T,
        one(lambda x: torch.cat([x[:1], x, x[-1:], x[-1:]])),
    ),
}


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("name", CALLS)
def test_the_rows_that_change_owners_are_sent_at_once_and_no_other(name: str) -> None:
    call, moved = CALLS[name]

    def body() -> None:
        mesh = kept_mesh((RANKS,))
        rank = mesh.get_local_rank()
        for size in SIZES:
            full = _t(size, WIDTH)
            x = laid_out(full, mesh, [Shard(0)])
            with Sent() as sent:
                found = call(x)
            expected = bytes_of(moved(owners(size)))
            assert sent.num_bytes == ([expected[rank]] if any(expected) else [])
            results, wanted = (
                each if isinstance(each, (list, tuple)) else [each] for each in (found, call(full))
            )
            for result, one_device in zip(results, wanted, strict=True):
                assert result.placements == (Shard(0),)
                assert result.full_tensor().tolist() == one_device.tolist()

    run_threads(body, RANKS)


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_padding_with_other_rows_agrees_where_they_are_sharded(mode: str) -> None:
    for size in (4, 7):
        x = _t(2, size, 5).requires_grad_()
        assert_agrees(lambda x: F.pad(x, (3, 2), mode), [x.mT], [[Shard(2)]])
        x = _t(2, 1, size, 4).requires_grad_()
        for layout in ([Shard(2), Shard(3)], [Shard(0), Shard(2)]):
            assert_agrees(lambda x: F.pad(x, (1, 0, 3, 2), mode), [x], [layout], mesh_shape=(2, 2))


def test_padding_all_around_sends_no_more_than_a_few_rows() -> None:
    with fake_world(RANKS, rank=1):
        x = laid_out(_t(2, 64, 64), init_device_mesh("cpu", (RANKS,)), [Shard(1)])
        with Sent() as sent, Collectives() as issued:
            y = F.pad(x, (1, 1, 1, 1), "circular")
        assert y.placements == (Shard(1),)  # pyright: ignore
        assert set(issued.counts) == {"all_to_all_single"}
        assert sum(sent.num_bytes) <= 3 * 2 * 66 * ITEMSIZE


def test_tensor_split_sends_for_each_piece_what_changes_owners() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(8, WIDTH), mesh, [Shard(0)])
        with Sent() as sent:
            pieces = x.tensor_split([2, 4])
        # Rows 0 and 1, 2 and 3 (ranks 0 and 1), and 4 to 7 (ranks 2 and 3) go to ranks 0, 1 and
        # 0, 1 and 0, 1, 2, 3.
        rows = {0: [1, 0, 0], 1: [0, 1, 0], 2: [0, 0, 2], 3: [0, 0, 1]}[mesh.get_local_rank()]
        assert sum(sent.num_bytes) == sum(rows) * WIDTH * ITEMSIZE
        for piece, wanted in zip(pieces, _t(8, WIDTH).tensor_split([2, 4]), strict=True):
            assert torch.equal(piece.full_tensor(), wanted)  # pyright: ignore

    body()


def test_the_gradient_of_a_slice_goes_back_the_way_that_the_rows_came() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        rank = mesh.get_local_rank()
        x = laid_out(_t(8, WIDTH).requires_grad_(), mesh, [Shard(0)])
        y = x[1:]
        gradient = laid_out(_t(7, WIDTH), mesh, [Shard(0)])
        with Sent() as sent:
            y.backward(gradient)
        # Row r of y is row r + 1 of x: rows 1, 3 and 5 move up by a rank.
        assert sent.num_bytes == [WIDTH * ITEMSIZE * (rank < 3)]
        assert x.grad is not None
        assert x.grad.placements == (Shard(0),)  # pyright: ignore
        wanted = torch.cat([torch.zeros(1, WIDTH), _t(7, WIDTH)])
        assert x.grad.full_tensor().tolist() == wanted.tolist()  # pyright: ignore

    body()


def test_a_replica_that_is_joined_is_not_sent() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(4, WIDTH), mesh, [Shard(0)])
        full = laid_out(_t(4, WIDTH), mesh, [Replicate()])
        with Sent() as sent:
            y = torch.cat([x, full])
        # Rows 0 to 3 are then on ranks 0 and 1, two each: rows 1, 2 and 3 change ranks.
        assert sent.num_bytes == [WIDTH * ITEMSIZE * (mesh.get_local_rank() > 0)]
        assert y.full_tensor().tolist() == torch.cat([_t(4, WIDTH)] * 2).tolist()  # pyright: ignore

    body()


def test_what_is_announced_is_what_is_sent() -> None:
    announced: list[observe.Reason] = []

    def body() -> int:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(11, WIDTH), mesh, [Shard(0)])
        with Sent() as sent:
            x[2:9:2]
        (num_bytes,) = sent.num_bytes
        return num_bytes

    with observe.listening(announced.append):
        sent = run_threads(body, RANKS)
    assert sorted(each.payload_bytes for each in announced) == sorted(sent)
    assert {each.step for each in announced} == {"all_to_all"}
    assert {each.operator for each in announced} == {"aten.slice.Tensor"}
    assert {each.argument for each in announced} == {"self"}
    assert announced[0].candidates[0][0] == "S(0) -> S(0)"


LAYOUTS_2D = {
    "one axis shards": [Shard(0), Replicate()],
    "the other shards another dim": [Shard(1), Shard(0)],
    "the other has partial sums": [Partial(), Shard(0)],
    "both shard": [Shard(0), Shard(0)],
    "the inner one is outside": [_StridedShard(0, split_factor=2), Shard(0)],
}


@pytest.mark.parametrize("layout", LAYOUTS_2D)
@pytest.mark.parametrize("name", CALLS)
def test_on_two_axes_results_and_gradients_are_those_of_one_device(name: str, layout: str) -> None:
    layouts = LAYOUTS_2D[layout]
    shape = (4, 2) if Partial() in layouts else (2, 2)
    for size in (4, 7):
        x = _t(size, WIDTH).requires_grad_()
        assert_agrees(CALLS[name][0], [x], [layouts], mesh_shape=shape)


def test_only_the_ranks_of_the_sharding_axis_exchange_rows() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        x = laid_out(_t(4, 4), mesh, [Shard(1), Shard(0)])
        with Sent() as sent:
            y = x[1:3]
        # Row 2 goes from the second rank of the axis to no rank, row 1 from the first to itself.
        assert sent.num_bytes == []
        assert y.placements == (Shard(1), Shard(0))  # pyright: ignore
        with Sent() as sent:
            z = x[1:]
        # Row 2, of which a rank has two elements, moves down.
        assert sent.num_bytes == [2 * ITEMSIZE * mesh.get_local_rank(1)]
        assert z.full_tensor().tolist() == _t(4, 4)[1:].tolist()  # pyright: ignore

    body()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int16, torch.bool, torch.bfloat16])
def test_elements_of_every_type_are_exchanged(dtype: torch.dtype) -> None:
    def body() -> None:
        full = _t(7, 2).to(dtype)
        x = laid_out(full, kept_mesh((RANKS,)), [Shard(0)])
        assert x[2:].full_tensor().tolist() == full[2:].tolist()  # pyright: ignore
        assert torch.cat([x, x]).full_tensor().tolist() == torch.cat([full] * 2).tolist()  # pyright: ignore

    run_threads(body, RANKS)


@pytest.mark.parametrize("part", [slice(None, -1), slice(1, None), slice(None, None, 3)], ids=str)
def test_what_is_written_to_a_slice_reaches_the_tensor(part: slice) -> None:
    def body() -> None:
        full = _t(8, 2)
        x = laid_out(full, kept_mesh((RANKS,)), [Shard(0)])
        for each in (x, full):
            each[part].mul_(-2)
            each[part] += 1
        assert x.placements == (Shard(0),)
        assert x.full_tensor().tolist() == full.tolist()

    run_threads(body, RANKS)


def test_a_join_shares_no_elements_with_its_parts() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = laid_out(_t(8, 2), kept_mesh((RANKS,)), [Shard(0)])
        empty = x[:0]
        for joined in (torch.cat([x, empty]), torch.cat([x, x])):
            joined.zero_()
        assert x.full_tensor().tolist() == _t(8, 2).tolist()

    body()


def test_gradients_of_gradients_pass_a_slice() -> None:
    def second(x: Any) -> Any:
        (gradient,) = torch.autograd.grad(x[1:].pow(3).sum(), x, create_graph=True)
        return gradient[::2].pow(2)

    assert_agrees(second, [_t(7, 2).requires_grad_()], [[Shard(0)]])


def test_a_slice_that_sends_is_refused_in_explicit_mode() -> None:
    with fake_world(RANKS):
        x = laid_out(_t(8, 2), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        with ExplicitRedistributionContext(), Collectives() as issued:
            x[:-1]
            with pytest.raises(ImplicitRedistributionError, match=r"self for aten\.slice"):
                x[1:]
        assert issued == {}


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_fake_world_may_receive_where_it_sends_nothing(rank: int) -> None:
    with fake_world(RANKS, rank=rank):
        x = laid_out(_t(8, 2), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        assert x[1:].to_local().shape == (1 if rank == RANKS - 1 else 2, 2)  # pyright: ignore
        assert x[4:].to_local().shape == (1, 2)  # pyright: ignore


def test_an_explanation_reports_the_bytes_of_a_slice() -> None:
    with fake_world(RANKS, rank=1):
        x = laid_out(_t(8, 2), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        (row,) = explain(lambda: x[1:])
        assert row.payload_bytes == 2 * ITEMSIZE
        assert [send.step for send in row.sends] == ["all_to_all"]


def test_a_slice_of_what_has_not_arrived_yet_waits_for_it() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(8, 4), mesh, [Shard(1)])
        moved = x.redistribute(mesh, [Shard(0)], async_op=True)
        assert moved[1:].full_tensor().tolist() == _t(8, 4)[1:].tolist()  # pyright: ignore

    body()


def test_ranks_outside_of_the_mesh_exchange_nothing() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = DeviceMesh("cpu", [3, 1])
        x = laid_out(_t(5, 2), mesh, [Shard(0)])
        y = torch.cat([x[1:], x])
        assert y.placements == (Shard(0),)  # pyright: ignore
        if mesh.get_coordinate() is not None:
            wanted = torch.cat([_t(5, 2)[1:], _t(5, 2)])
            assert y.full_tensor().tolist() == wanted.tolist()  # pyright: ignore
        else:
            assert y.to_local().numel() == 0  # pyright: ignore

    body()


@on_threads(4)
def test_a_dim_without_elements_is_unbound_into_nothing() -> None:
    x = laid_out(torch.ones(4, 0), kept_mesh((4,)), [Replicate()])
    assert x.unbind(1) == ()


SLICES = [(0, 4), (3, None), (None, -2), (1, None, 3), (5, 5), (None, None)]


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("layout", [Shard(0), Shard(1), Replicate(), Partial()], ids=str)
def test_a_part_written_into_a_slice_sends_its_rows_to_where_they_belong(layout: Any) -> None:
    for size in SIZES:
        for bounds in SLICES:
            taken = range(size)[slice(*bounds)]
            x, part = _t(size, WIDTH), -_t(len(taken), WIDTH)
            assert_agrees(
                lambda x, part: torch.slice_scatter(x, part, 0, *bounds),  # noqa: B023
                [x.requires_grad_(), part.requires_grad_()],
                [[Shard(0)], [layout]],
            )


def test_writing_a_part_sends_no_row_that_its_rank_holds() -> None:
    with fake_world(RANKS, rank=1):
        mesh = init_device_mesh("cpu", (RANKS,))
        x = laid_out(_t(64, 16), mesh, [Shard(0)]).requires_grad_()
        # Rows 4 to 29, of which ranks hold 7 each: rank 1 those that go to rows 11 to 17. It has
        # rows 16 to 31 of x, and sends the first 5. Of a replicated argument it takes its own.
        for layout, there in ((Shard(0), [("all_to_all", 5 * 16)]), (Replicate(), [])):
            part = laid_out(_t(26, 16), mesh, [layout]).requires_grad_()
            with Messages() as sent:
                y = torch.slice_scatter(x, part, 0, 4, 30)
            assert sent.all == there
            assert y.placements == (Shard(0),)
            grad = torch.ones_like(y).redistribute(placements=[Shard(0)])
            with Messages() as sent:
                gradients = torch.autograd.grad(y, [x, part], grad)
            # Backward sends 12 of the 14 rows 16 to 29: those after row 17.
            assert sent.all == [("all_to_all", 12 * 16)]
            assert [each.placements for each in gradients] == [(Shard(0),)] * 2
