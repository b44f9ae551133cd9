"""Lists of small partial sums are reduced by a collective per kind; large sums separately."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor
from dtensor_core.debug import CommDebugMode
from dtensor_core.dispatch.special.coalescing import SMALL
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.drop_in.counted import functional
from tests.dtensor_core.works_with.layouts import assert_close, numbers

RANKS = 3


def _norm(tensors: list[Any], p: float = 2.0) -> Any:
    return torch.stack([each.norm(p) for each in tensors]).norm(p)


@on_threads(RANKS)
def test_the_norm_of_norms_takes_one_reduction_in_every_layout() -> None:
    mesh, full_tensors = kept_mesh((RANKS,)), [numbers(7, 4, seed=seed) for seed in range(6)]
    placed = [
        distribute_tensor(each, mesh, [Replicate() if n % 3 else Shard(n % 2)])
        for n, each in enumerate(full_tensors)
    ]
    for p in (1.0, 2.0, 3.0):
        with CommDebugMode() as counter:
            found = _norm(placed, p)
        assert counter.get_comm_counts() == {functional.all_reduce: 1}
        assert_close(found, _norm(full_tensors, p))


@on_threads(4)
def test_each_kind_of_partial_values_is_coalesced_by_itself() -> None:
    mesh = kept_mesh((2, 2))
    kinds = [(Partial(), Replicate()), (Partial("max"), Partial("max"))]
    lists = [
        [DTensor.from_local(torch.full((size,), size + 0.5), mesh, kind) for size in (1, 2, 3)]
        for kind in kinds
    ]
    flat: list[Any] = [each for some in lists for each in some]
    with CommDebugMode() as counter:
        found = torch._foreach_exp(flat)
    assert counter.get_total_counts() <= 3
    for got, pending in zip(found, flat, strict=True):
        assert got.shape == pending.shape
        assert_close(got, pending.full_tensor().exp())


@on_threads(4)
def test_lists_with_tensors_on_several_meshes_are_reduced_on_each() -> None:
    mesh = kept_mesh((2, 2), ("a", "b"))
    rank = float(dist.get_rank())
    x, y = (DTensor.from_local(torch.tensor([rank]), mesh[name], [Partial()]) for name in "ab")
    found = torch._foreach_sqrt([x, y])
    for got, pending in zip(found, (x, y), strict=True):
        assert torch.equal(got.to_local(), pending.full_tensor().sqrt())


@on_threads(RANKS)
def test_large_partial_sums_are_not_coalesced() -> None:
    mesh = kept_mesh((RANKS,))
    large: list[Any] = [
        DTensor.from_local(torch.ones(SMALL + 1), mesh, [Partial()]) for _ in range(2)
    ]
    with CommDebugMode() as counter:
        found = torch._foreach_exp(large)
    assert counter.get_total_counts() == 2
    assert_close(found, [torch.full((SMALL + 1,), float(RANKS)).exp()] * 2)
