"""Decisions: the placements of a call and their cost, identical on every rank."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, run_threads

Layout = tuple[Placement, ...]


@pytest.fixture
def mesh():
    """64 ranks, data x tensor."""
    with fake_world(64):
        yield init_device_mesh("cpu", (8, 8), mesh_dim_names=("dp", "tp"))


def decided(fn, mesh, *arguments: tuple[tuple[int, ...], Layout]) -> tuple[Layout, list[str]]:
    """Return the result's placements, and the steps for arguments as `operator argument step`."""
    tensors = [
        distribute_tensor(torch.ones(shape), mesh, layout, src_data_rank=None)
        for shape, layout in arguments
    ]
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        result = fn(*tensors)
    assert isinstance(result, DTensor)
    steps = [f"{reason.argument} {reason.step} {reason.axis}" for reason in reasons]
    return result.placements, steps


def test_axes_are_decided_apart(mesh) -> None:
    batch_and_columns = decided(
        torch.mm,
        mesh,
        ((64, 32), (Shard(0), Replicate())),
        ((32, 64), (Replicate(), Shard(1))),
    )
    assert batch_and_columns == ((Shard(0), Shard(1)), [])


def test_a_sharded_contraction_leaves_partial_sums(mesh) -> None:
    x, w = ((64, 32), (Shard(0), Shard(1))), ((32, 64), (Replicate(), Shard(0)))
    assert decided(torch.mm, mesh, x, w) == ((Shard(0), Partial()), [])


def test_a_bias_joins_partial_sums_on_one_rank(mesh) -> None:
    result = decided(
        torch.addmm,
        mesh,
        ((64,), (Replicate(), Replicate())),
        ((64, 32), (Shard(0), Shard(1))),
        ((32, 64), (Replicate(), Shard(0))),
    )
    assert result == ((Shard(0), Partial()), [])


def test_the_cheaper_argument_moves(mesh) -> None:
    """Both arguments are sharded by rows: the smaller is redistributed to match the larger."""
    large, small = ((4096, 4096), (Shard(0), Replicate())), ((4096, 8), (Shard(0), Replicate()))
    placements, steps = decided(torch.mm, mesh, large, small)
    assert steps == ["mat2 all_gather dp"]
    assert placements == (Shard(0), Replicate())


def test_if_no_argument_is_sharded_no_result_is(mesh) -> None:
    pending = ((64, 64), (Replicate(), Partial()))
    assert decided(torch.relu, mesh, pending) == (
        (Replicate(), Replicate()),
        ["self all_reduce tp"],
    )
    product, steps = decided(torch.mul, mesh, pending, pending)
    assert product == (Replicate(), Replicate())
    assert steps == ["self all_reduce tp", "other all_reduce tp"]


def test_a_cheap_move_is_not_paid_for_with_a_large_pending_sum(mesh) -> None:
    """Resharding x by columns would be cheap, but leaves [64, 256] partial sums to be reduced."""
    x, w = ((64, 64), (Shard(0), Replicate())), ((64, 256), (Shard(0), Replicate()))
    placements, steps = decided(torch.mm, mesh, x, w)
    assert steps == ["mat2 all_gather dp"]
    assert placements == (Shard(0), Replicate())


def test_a_pending_number_is_cheaper_than_gathering_both_arguments(mesh) -> None:
    """It may have to be reduced later, but that costs only a single message."""
    x, y = ((64, 64), (Replicate(), Shard(0))), ((64, 64), (Replicate(), Shard(1)))
    placements, steps = decided(torch.nn.functional.mse_loss, mesh, x, y)
    assert len(steps) == 1
    assert steps[0].endswith("all_to_all tp")
    assert placements == (Replicate(), Partial())


def test_nothing_is_sent_where_a_slice_is_enough(mesh) -> None:
    """As for a weight's gradient: x stays sharded, and the replicated argument is sliced."""
    x, grad = ((128, 8), (Shard(1), Replicate())), ((8, 128), (Replicate(), Replicate()))
    placements, steps = decided(torch.mm, mesh, x, grad)
    assert steps == []
    assert placements == (Partial(), Replicate())


def test_sharding_by_heads_passes_through_flattening_and_back(mesh) -> None:
    """[b, h, l, d] sharded by heads: bmm sees (b h), where the sharding is a strided shard."""
    by_heads: Layout = (Replicate(), Shard(1))
    flat, steps = decided(lambda x: x.view(32, 4, 4), mesh, ((4, 8, 4, 4), by_heads))
    assert flat == (Replicate(), _StridedShard(0, split_factor=4))
    assert steps == []
    q, k = ((4, 8, 4, 6), by_heads), ((4, 8, 6, 4), by_heads)
    assert decided(torch.matmul, mesh, q, k) == (by_heads, [])


def test_sharding_by_batch_and_heads_shards_one_dimension_twice(mesh) -> None:
    both: Layout = (Shard(0), Shard(1))
    flat, steps = decided(lambda x: x.view(128, 4), mesh, ((16, 8, 4), both))
    assert flat == (Shard(0), _StridedShard(0, split_factor=2))
    assert steps == []
    back, steps = decided(lambda x: x.view(128, 4).view(16, 8, 4), mesh, ((16, 8, 4), both))
    assert (back, steps) == (both, [])


def test_uneven_sharding_does_not_pass_through_a_split(mesh) -> None:
    placements, steps = decided(lambda x: x.view(6, 4), mesh, ((24,), (Replicate(), Shard(0))))
    assert placements == (Replicate(), Replicate())
    assert steps == ["self all_gather tp"]


def test_embedding_tables_sharded_by_vocabulary_give_partial_sums(mesh) -> None:
    weight = distribute_tensor(torch.ones(100, 16), mesh, [Replicate(), Shard(0)])
    tokens = DTensor.from_local(torch.zeros(2, 6, dtype=torch.long), mesh, [Shard(0), Replicate()])
    out = F.embedding(tokens, weight)
    assert out.placements == (Shard(0), Partial())


def test_decisions_on_uneven_and_empty_shards_are_alike_on_every_rank() -> None:
    def body() -> list[observe.Reason]:
        reasons: list[observe.Reason] = []
        mesh, me = kept_mesh((4,)), threading.get_ident()

        def listen(reason: observe.Reason) -> None:
            if threading.get_ident() == me:  # the other ranks are threads of this process
                reasons.append(reason)

        x = distribute_tensor(torch.randn(5, 3, 2), mesh, [Shard(0)])
        y = distribute_tensor(torch.randn(5, 3, 2), mesh, [Shard(1)])
        with observe.listening(listen):
            z = x.softmax(0) + y
            z.amax(0).view(6).cumsum(0)
        return reasons

    every = run_threads(body, 4)
    chosen = [[(n.operator, n.target, n.step, n.candidates) for n in reasons] for reasons in every]
    assert chosen[0]
    assert all(each == chosen[0] for each in chosen)
