"""Reads and writes of parts of DTensors: positions of elements, gradients of unused parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import Partial, Replicate, Shard, distribute_tensor
from dtensor_core.errors import OutOfRangeError
from dtensor_core.operators.kernels import local_positions
from dtensor_core.testing import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees

LAYOUTS = (Shard(0), Shard(1), Replicate())


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "x[0]": lambda x: x[0],
    "x[-1]": lambda x: x[-1],
    "x[1:3]": lambda x: x[1:3],
    "x[::2]": lambda x: x[::2],
    "x[..., None]": lambda x: x[..., None],
    "x[1, 2]": lambda x: x[1, 2],
    "x[[0, 3]]": lambda x: x[[0, 3]],
    "x[range(3)]": lambda x: x[range(3)],
    "x[:, range(1, 3)]": lambda x: x[:, range(1, 3)],
    "x[[[0, 1], [1, 0]],]": lambda x: x[[[0, 1], [1, 0]],],
    "x[:, [2, 1]]": lambda x: x[:, [2, 1]],
    "x[x > 0]": lambda x: x[x > 0],
    "narrow": lambda x: x.narrow(0, 1, 3),
    "split, one piece used": lambda x: x.split(2)[1],
    "split by sizes, one used": lambda x: x.split([1, 3, 1])[1],
    "chunk, one used": lambda x: x.chunk(3)[0],
    "tensor_split, one used": lambda x: x.tensor_split(3)[2],
    "unbind, one used": lambda x: x.unbind(0)[3],
    "split, all used": lambda x: x.split(2),
    "unbind, all used": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x[:2] * 2]),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "index_select": lambda x: x.index_select(0, (x[:, 0] * 0).long()),
    "sorted values": lambda x: x.sort(0)[0],
    "topk values": lambda x: x.topk(2, 0)[0],
    "flip, roll": lambda x: x.flip(0).roll(1, 0),
    "max": lambda x: x.max(0)[0],
    "median": lambda x: x.median(0)[0],
    "quantile": lambda x: x.quantile(0.3, dim=0),
    "cummax": lambda x: x.cummax(0)[0],
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0),
}


@pytest.mark.parametrize("name", READS)
def test_a_part_and_its_gradient_are_those_of_one_device(name: str) -> None:
    for layout in LAYOUTS:
        assert_agrees(READS[name], [_t(5, 4).requires_grad_()], [[layout]])


WRITES: dict[str, Callable[..., object]] = {
    "index_add_": lambda x, i, y: x.index_add_(0, i, y, alpha=2),
    "index_copy_": lambda x, i, y: x.index_copy_(0, i, y),
    "index_fill_": lambda x, i, y: x.index_fill_(0, i, 3.0),
    "index_put_": lambda x, i, y: x.index_put_((i,), y),
    "index_put_ adding": lambda x, i, y: x.index_put_((i,), y, accumulate=True),
    "scatter_": lambda x, i, y: x.scatter_(0, i[:, None].expand(2, 4), y),
    "scatter_add_": lambda x, i, y: x.scatter_add_(0, i[:, None].expand(2, 4), y),
    "scatter_reduce_": lambda x, i, y: x.scatter_reduce_(0, i[:, None].expand(2, 4), y, "amax"),
    "masked_fill_": lambda x, i, y: x.masked_fill_(x > 0, 2.0),
    "x[i] = y": lambda x, i, y: x.__setitem__(i, y),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_in_place_is_that_of_one_device(name: str) -> None:
    index, source = torch.tensor([4, 0]), _t(2, 4)
    wanted = _t(5, 4)
    WRITES[name](wanted, index, source)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        for layout in LAYOUTS:
            for other in LAYOUTS:
                x, y = (
                    distribute_tensor(each.clone(), mesh, [placement], src_data_rank=None)
                    for each, placement in ((_t(5, 4), layout), (source, other))
                )
                WRITES[name](x, distribute_tensor(index, mesh, src_data_rank=None), y)
                assert x.placements == (layout,)
                torch.testing.assert_close(x.full_tensor(), wanted)

    body()


ACCUMULATING: dict[str, tuple[Callable[..., Any], str]] = {
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i[:, None].expand(-1, 4), y), "sum"),
    "index_add": (lambda x, i, y: x.index_add(0, i, y, alpha=2), "sum"),
    "index_put": (lambda x, i, y: x.index_put((i,), y, accumulate=True), "sum"),
    "index_reduce": (lambda x, i, y: x.index_reduce(0, i, y, "prod"), "product"),
    **{
        f"scatter_reduce, {how}": (
            lambda x, i, y, how=how: x.scatter_reduce(0, i[:, None].expand(-1, 4), y, how),
            reduce_op,
        )
        for how, reduce_op in (("sum", "sum"), ("amax", "max"), ("amin", "min"))
    },
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # it is in beta
@pytest.mark.parametrize("name", ACCUMULATING)
def test_what_a_sharded_index_adds_is_left_pending(name: str) -> None:
    call, reduce_op = ACCUMULATING[name]
    index = torch.tensor([4, 0, 2, 4, 1])

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x = distribute_tensor(_t(6, 4), mesh, src_data_rank=None)
        i, y = (
            distribute_tensor(t, mesh, [Shard(0)], src_data_rank=None) for t in (index, _t(5, 4))
        )
        with Collectives() as issued:
            found = call(x, i, y)
        assert issued == {}
        assert found.placements == (Partial(reduce_op),)
        torch.testing.assert_close(found.full_tensor(), call(_t(6, 4), index, _t(5, 4)))

    body()


def test_what_replaces_or_counts_is_not_left_pending() -> None:
    index, y = torch.tensor([4, 0, 2, 4, 1])[:, None].expand(-1, 4), _t(5, 4)
    for how, own in (("mean", True), ("amax", False)):
        assert_agrees(
            lambda x, i, y, how=how, own=own: x.scatter_reduce(0, i, y, how, include_self=own),
            [_t(6, 4), index.contiguous(), y],
            [[Replicate()], [Shard(0)], [Shard(0)]],
        )


def test_the_gradient_of_reading_by_a_sharded_index_is_left_pending() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x = distribute_tensor(_t(6, 4).requires_grad_(), mesh, src_data_rank=None)
        index = torch.tensor([4, 0, 2, 4, 1, 1, 1, 0])
        i = distribute_tensor(index, mesh, [Shard(0)], src_data_rank=None)
        for read in (lambda: x[i], lambda: x.index_select(0, i)):
            y = read()
            gradient = distribute_tensor(_t(8, 4), mesh, [Shard(0)], src_data_rank=None)
            with Collectives() as issued:
                (found,) = torch.autograd.grad(y, x, gradient)
            assert issued == {}
            assert found.placements == (Partial(),)  # pyright: ignore
            wanted = torch.zeros(6, 4, dtype=torch.float64).index_add(0, index, _t(8, 4))
            torch.testing.assert_close(found.full_tensor(), wanted)  # pyright: ignore

    body()


FLAT: dict[str, Callable[..., Any]] = {
    "x[i, j]": lambda x, i, y: x[i, i % 4],
    "x[..., i]": lambda x, i, y: x[..., i % 4],
    "take": lambda x, i, y: x.take(i * 4 - 3),
    "put": lambda x, i, y: x.put(i * 4 - 3, y[: len(i), 0]),
    "put adding": lambda x, i, y: x.put(i * 4 - 3, y[: len(i), 0], accumulate=True),
    "x[i, j] = y": lambda x, i, y: x.index_put((i, i % 4), y[: len(i), 0]),
    "x[i, j] += y": lambda x, i, y: x.index_put((i, i % 4), y[:1, 0], accumulate=True),
    "mask": lambda x, i, y: (x > 0)[i],
}


@pytest.mark.parametrize("name", FLAT)
def test_several_indexed_dims_may_be_sharded(name: str) -> None:
    index, y = torch.tensor([4, 0, 2, 4, 1]), _t(5, 4)
    if "put" in name or "= y" in name:
        index = torch.tensor([4, 0, 2, 3])
    for layout, mesh_shape in (
        ([Shard(0)], (4,)),
        ([Shard(1)], (4,)),
        ([Shard(1), Shard(0)], (2, 2)),
        ([Shard(0), Shard(0)], (2, 2)),
    ):
        replicated = [Replicate()] * len(layout)
        tensors = [_t(5, 4).requires_grad_("mask" not in name), index, y]
        assert_agrees(FLAT[name], tensors, [layout, replicated, replicated], mesh_shape=mesh_shape)


MASKED: dict[str, Callable[..., Any]] = {
    "rows = number": lambda x, m, y: x.__setitem__(m[:, 0], 2.0),
    "rows = row": lambda x, m, y: x.__setitem__(m[:, 0], y[0]),
    "rows = one row": lambda x, m, y: x.__setitem__(m[:, 0], y[:1]),
    "columns = number": lambda x, m, y: x.__setitem__((slice(None), m[0]), 2.0),
    "columns = column": lambda x, m, y: x.__setitem__((slice(None), m[0]), y[:, :1]),
    "rows = as many": lambda x, m, y: x.__setitem__(m[:, 0], y[: int(m[:, 0].sum())]),
    "elements = number": lambda x, m, y: x.__setitem__(m, 2.0),
    "all = row": lambda x, m, y: x.__setitem__(m[0, 0], y[0]),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_elements_are_written_locally(name: str) -> None:
    mask, y = _t(5, 4) > 0, _t(5, 4) * 2
    wanted = _t(5, 4)
    MASKED[name](wanted, mask, y)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        for layout in LAYOUTS:
            x, m, source = (
                distribute_tensor(each.clone(), mesh, [at], src_data_rank=None)
                for each, at in ((_t(5, 4), layout), (mask, Replicate()), (y, Replicate()))
            )
            with Collectives() as issued:
                MASKED[name](x, m, source)
            assert issued == {} or name == "rows = as many"
            assert x.placements == (layout,)
            torch.testing.assert_close(x.full_tensor(), wanted)

    body()


def test_elements_that_a_mask_takes_in_order_are_located() -> None:
    x, y, mask = _t(5, 4).requires_grad_(), _t(4, 4).requires_grad_(), _t(5, 4) > 0
    calls: list[Callable[..., Any]] = [
        lambda x, m, y: x.masked_scatter(m, y),
        lambda x, m, y: x.masked_scatter(m[:, :1], y),
        lambda x, m, y: x.clone().masked_scatter_(m, y.detach()),
    ]
    for layout, mesh_shape in (([Shard(0)], (4,)), ([Shard(1)], (4,)), ([Shard(1)] * 2, (2, 2))):
        replicated = [Replicate()] * len(layout)
        for call in calls:
            assert_agrees(
                call, [x, mask, y], [layout, replicated, replicated], mesh_shape=mesh_shape
            )

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = distribute_tensor(_t(5, 4), mesh, [Shard(0)], src_data_rank=None)
        m, few = (distribute_tensor(t, mesh, src_data_rank=None) for t in (mask, _t(1)))
        source = distribute_tensor(_t(5, 4), mesh, src_data_rank=None)
        with Collectives() as issued:
            assert mine.masked_scatter(m, source).placements == (Shard(0),)
        assert issued == {}
        with pytest.raises(RuntimeError, match="Number of elements of source < number of ones"):
            mine.masked_scatter(m, few)

    body()


def test_the_largest_of_an_empty_shard_has_the_requested_dtype() -> None:
    x = _t(5, 3).float().requires_grad_()
    assert_agrees(lambda x: x.renorm(torch.inf, 1, 0.5), [x], [[Shard(0)]])


def test_reading_and_writing_local_elements_sends_nothing() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x = distribute_tensor(_t(8, 4), mesh, [Shard(0)], src_data_rank=None)
        index = distribute_tensor(torch.tensor([4, 0]), mesh, src_data_rank=None)
        y = distribute_tensor(_t(2, 4), mesh, src_data_rank=None)
        with Collectives() as issued:
            x[5]
            x[3] = 1.0
            x[:, 1] = 0
            x.index_select(0, index)
            x.index_add_(0, index, y)
            x[[1, 6]] = y
            x[x > 0] = 1.0
            x.index_select(1, index - index)
        assert issued == {}

    body()


def test_a_number_is_taken_of_a_tensor_that_one_rank_holds() -> None:
    assert_agrees(lambda x, i: x.take(i), [_t(1), torch.tensor(0)], [[Shard(0)], [Replicate()]])


def test_complex_numbers_that_no_backend_multiplies_are_brought_together() -> None:
    x, i, y = torch.complex(_t(5, 4), _t(5, 4)), torch.tensor([4, 0, 2, 4, 1]), _t(5, 4)
    assert_agrees(lambda x: x.prod(0), [x], [[Shard(0)]])
    assert_agrees(lambda x: x.prod(), [x], [[Shard(1)]])
    assert_agrees(
        lambda x, i, y: x.scatter_reduce(0, i[:, None].expand(-1, 4), y, "prod"),
        [_t(6, 4), i, y],
        [[Replicate()], [Shard(0)], [Shard(0)]],
    )


def test_complex_tensors_without_elements_are_gathered() -> None:
    for shape in ((0, 0), (2, 0, 0), (0, 3)):
        x = torch.zeros(shape, dtype=torch.complex128)
        for dim in range(len(shape)):
            assert_agrees(torch.neg, [x], [[Shard(dim)]])


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")  # it is in beta
def test_halves_are_multiplied_where_no_rank_has_one_row_alone() -> None:
    x, y, index = _t(5, 5).bfloat16(), _t(5, 3).bfloat16(), torch.tensor([4, 0, 4])
    assert_agrees(
        lambda x, i, y: x.index_reduce(1, i, y, "prod"),
        [x, index, y],
        [[Shard(0)], [Replicate()], [Shard(0)]],
    )


# Calls by positions i along dim 0 of x [10, 3], j the same for each of three columns. The marked
# ones count negative positions from the end.
OUT_OF_RANGE: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i, j: F.embedding(i, x),
    "embedding_bag": lambda x, i, j: F.embedding_bag(i[None], x),
    "embedding_renorm, signed": lambda x, i, j: torch.embedding_renorm_(x.clone(), i, 1.0, 2.0),
    "index_select": lambda x, i, j: x.index_select(0, i),
    "gather": lambda x, i, j: x.gather(0, j),
    "x[i], signed": lambda x, i, j: x[i],
    "x[i, i], signed": lambda x, i, j: x[i, i % 3],
    "take, signed": lambda x, i, j: x.take(i * 3),
    "put, signed": lambda x, i, j: x.put(i * 3, i.float()),
    "scatter": lambda x, i, j: x.scatter(0, j, 1.0),
    "scatter_add_": lambda x, i, j: x.clone().scatter_add_(0, j, j.float()),
    "scatter_reduce": lambda x, i, j: x.scatter_reduce(0, j, j.float(), "amax"),
    "index_add_": lambda x, i, j: x.clone().index_add_(0, i, j.float()),
    "index_copy_": lambda x, i, j: x.clone().index_copy_(0, i, j.float()),
    "index_fill, signed": lambda x, i, j: x.index_fill(0, i, 1.0),
    "index_put, signed": lambda x, i, j: x.index_put((i,), j.float()),
    "index_put adding, signed": lambda x, i, j: x.index_put((i,), j.float(), accumulate=True),
    "nll_loss": lambda x, i, j: F.nll_loss(x.T, torch.cat([i, i[:1]])),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.parametrize("at_hand", [True, False], ids=["on a CPU", "not looked at"])
def test_an_index_that_no_rank_holds_is_refused_by_all(
    name: str, at_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, x = OUT_OF_RANGE[name], torch.arange(30.0).reshape(10, 3)
    if not at_hand:
        if "renorm" in name:
            return  # the look-up that follows refuses it
        monkeypatch.setattr(local_positions, "is_at_hand", lambda _: False)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        for at in (-1, -11, 12) if at_hand else (-1, 12):
            index = torch.tensor([0, at])
            indices = index, index[:, None].expand(2, 3).contiguous()
            sharded = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
            given = [distribute_tensor(each, mesh, src_data_rank=None) for each in indices]
            if at == -1 and "signed" in name:
                wanted, found = call(x, *indices), call(sharded, *given)
                torch.testing.assert_close(found.full_tensor(), wanted)
                continue
            with pytest.raises((IndexError, RuntimeError)) as alone:
                call(x, *indices)
            kind = type(alone.value) if at_hand else (IndexError, RuntimeError)
            with pytest.raises(kind) as error:
                call(sharded, *given)
            if at_hand:
                dim, size = (0, 30) if name[:4] in ("take", "put,") else (name == "nll_loss", 10)
                at = at * 3 if size == 30 else at
                message = f"index {at} is out of bounds for dimension {int(dim)} with size {size}"
                assert message in str(error.value)

    body()


def test_the_error_of_an_index_out_of_range_names_the_index_and_the_range() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        weight = distribute_tensor(torch.zeros(10, 3), mesh, [Shard(0)], src_data_rank=None)
        index = distribute_tensor(torch.tensor([3, 12]), mesh, src_data_rank=None)
        with pytest.raises(OutOfRangeError) as error:
            F.embedding(index, weight)
        assert str(error.value) == (
            "aten.embedding.default: index out of range in self\n"
            "  Found: index 12 is out of bounds for dimension 0 with size 10\n"
            "  Why: no rank holds it\n"
            "  Try: positions from 0 to 9"
        )

    body()


def test_a_class_that_there_is_not_is_refused_by_one_hot() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        for at, message in ((3, "smaller than num_classes"), (-1, "non-negative")):
            with pytest.raises(RuntimeError, match=f"Class values must be {message}"):
                F.one_hot(distribute_tensor(torch.tensor([0, at]), mesh, src_data_rank=None), 3)

    body()


class Operators(TorchDispatchMode):
    """Counts operators."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def test_a_dim_in_many_pieces_takes_no_more_operators_than_one_in_few() -> None:
    num_operators = []
    with fake_world(3, rank=1):
        mesh = init_device_mesh("cpu", (3,))
        for rows in (4, 400):
            flat = distribute_tensor(_t(rows, 6), mesh, [Shard(1)]).flatten()
            index = torch.arange(rows * 6).flip(0)
            positions = local_positions.LocalPositions(torch.ops.aten.gather.default, flat._spec, 0)
            assert len(positions.pieces) == rows
            with Operators() as counted:
                found, elsewhere = positions.local(index)
            num_operators.append(counted.number)
            held = [6 * row + column for row in range(rows) for column in (2, 3)]
            assert sorted(index[~elsewhere].tolist()) == held
            assert [held[at] for at in found[~elsewhere]] == index[~elsewhere].tolist()
    assert num_operators[0] == num_operators[1]
