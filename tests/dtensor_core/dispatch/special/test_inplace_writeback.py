"""An in-place write to a pending reduction stores the reduced value, for all aliases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dtensor_core import DTensor, Partial, Shard, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, on_threads

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "largest": lambda x: x.amax(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_pending_reduction_is_finished_by_writing_in_place(name: str) -> None:
    full = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = REDUCTIONS[name](full).clamp_(min=0.1).square_().div_(2)

    @on_threads(3)
    def body() -> None:
        pending = REDUCTIONS[name](distribute_tensor(full, kept_mesh((3,)), [Shard(0)]))
        assert isinstance(pending, DTensor)
        (before,) = pending.placements
        assert isinstance(before, Partial)
        view = pending.view(2, 2)
        pending.clamp_(min=0.1).square_().div_(2)
        assert pending.placements == (before,)
        torch.testing.assert_close(pending.full_tensor(), wanted)
        assert isinstance(view, DTensor)
        torch.testing.assert_close(view.full_tensor(), wanted.view(2, 2))

    body()
