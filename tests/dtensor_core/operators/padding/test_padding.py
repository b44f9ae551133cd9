"""Padding of a sharded dim: the gradient's communication by hand, and its values on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Shard, init_device_mesh
from dtensor_core.operators.kernels.windows import extent
from dtensor_core.operators.padding.local import Padded
from dtensor_core.testing.fake import fake_world
from tests.dtensor_core.counting import Messages
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

MODES = ["reflect", "replicate"]


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("rank", "size", "rows"),
    [
        # Of 64 rows ranks hold 16 each, of the 67 of the result 17, 17, 17 and 16. Row r is row r +
        # 2 there. Rank 0's rows are 2 to 17, with the edge 0 to 17, of which rank 1 has one.
        (1, 64, 1),
        # Rank 2 holds 34 to 50; 50 to 65, and 66 of the edge, belong to rank 3.
        (2, 64, 1),
        # The edges are on the ranks of the rows that they are made of.
        (0, 64, 0),
        (3, 64, 0),
        # 66 rows are sharded as 17, 17, 17 and 15, the result's 69 as 18, 18, 18 and 15. Those of
        # rank 2 become 36 to 52, and it holds 36 to 53: 53 is rank 3's.
        (2, 66, 1),
    ],
)
def test_the_gradient_sends_the_rows_by_which_shards_differ(
    mode: str, rank: int, size: int, rows: int
) -> None:
    with fake_world(4, rank=rank):
        x = laid_out(_t(8, 16, size), init_device_mesh("cpu", (4,)), [Shard(2)])
        y = F.pad(x, (2, 1), mode=mode)
        grad = torch.ones_like(y).redistribute(placements=[Shard(2)])
        with Messages() as sent:
            (back,) = torch.autograd.grad(y, [x], grad)
        # An empty message has one element in a fake world.
        assert sent.all == [("all_to_all", max(rows * 8 * 16, 1))]
        assert back.placements == (Shard(2),)


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [3, 8, 9])
def test_gradients_agree_where_padded_dims_are_sharded(mode: str, size: int) -> None:
    for pads in ((2, 1, 1, 2), (0, 2, 2, 0), (1, 0, 0, 0), (0, 0, 2, 1)):

        def padded(x: Any, pads: Any = pads) -> Any:
            return F.pad(x, pads, mode=mode)

        x = _t(2, 2, size, size + 1)
        assert_agrees(padded, [x], [[Shard(2)]])
        assert_agrees(padded, [x], [[Shard(3)]])
        assert_agrees(padded, [x], [[Shard(2), Shard(3)]], mesh_shape=(2, 2))
        assert_agrees(padded, [x], [[Shard(0), Shard(3)]], mesh_shape=(2, 2))


@pytest.mark.usefixtures("rows_move")
def test_gradients_agree_of_edges_longer_than_a_shard_and_of_rows_left_out() -> None:
    for mode, pads in (("reflect", (7, 0)), ("replicate", (5, 6)), ("replicate", (-1, 2))):
        assert_agrees(lambda x: F.pad(x, pads, mode=mode), [_t(2, 8)], [[Shard(1)]])  # noqa: B023
    assert_agrees(
        lambda x: F.pad(x, (2, 1, 1, 2, 1, 1), mode="reflect"),
        [_t(1, 2, 3, 5, 6)],
        [[Shard(2), Shard(4)]],
        mesh_shape=(2, 2),
    )


def test_edges_are_made_of_the_rows_that_they_mirror_or_repeat() -> None:
    mirrored, repeated = (Padded(8, 3, 2, mirrors) for mirrors in (True, False))
    # Rows 1 to 3 are also rows 2 to 0 of the result, rows 5 and 6 its 12 and 11.
    assert [list(each) for each in mirrored.edges(extent(2, 6))] == [[1, 0], [12]]
    assert mirrored.needs(extent(2, 6)) == extent(0, 13)
    assert mirrored.needs(extent(4, 5)) == extent(7, 8)
    assert [list(each) for each in repeated.edges(extent(0, 8))] == [[0, 1, 2], [11, 12]]
    assert repeated.needs(extent(1, 7)) == extent(4, 10)
    assert repeated.needs(extent(7, 8)) == extent(10, 13)
