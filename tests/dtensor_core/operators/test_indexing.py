"""Reading and writing parts of DTensors: where elements lie, and with gradients of unused parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dtensor_core import Replicate, Shard, distribute_tensor
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


def test_reading_and_writing_where_elements_lie_sends_nothing() -> None:
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
