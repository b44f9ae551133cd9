"""Lists in subscripts are the same on every rank, and index as in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Shard, distribute_tensor
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing import kept_mesh, on_threads

# The results matter here, not whether a fallback gathered arguments.
pytestmark = pytest.mark.filterwarnings("ignore::dtensor_core.MissingRuleWarning")

X = torch.arange(40.0).reshape(5, 8)
SUBSCRIPTS: dict[str, Any] = {
    "a list": [0, 4, 4],
    "an empty list": [],
    "a nested list": ([[0, 1], [3, 2]],),
    "a list of flags": [True, False, True, True, False],
    "lists for both dims": ([0, 3], [7, 1]),
    "a list after a slice": (slice(1, 4), [7, 0]),
    "a list after an ellipsis": (..., [2]),
    "no list": (slice(None), 3),
}


def _sharded(dim: int) -> Any:
    return distribute_tensor(X.clone(), kept_mesh((4,)), [Shard(dim)], src_data_rank=None)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", SUBSCRIPTS)
@on_threads(4)
def test_a_subscript_reads_what_it_reads_of_the_full_tensor(name: str, dim: int) -> None:
    result = _sharded(dim)[SUBSCRIPTS[name]]
    assert isinstance(result, DTensor)
    torch.testing.assert_close(result.full_tensor(), X[SUBSCRIPTS[name]])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", SUBSCRIPTS)
@on_threads(4)
def test_a_subscript_writes_what_it_writes_of_the_full_tensor(name: str, dim: int) -> None:
    sharded, full = _sharded(dim), X.clone()
    sharded[SUBSCRIPTS[name]] = -1.0
    full[SUBSCRIPTS[name]] = -1.0
    assert sharded.placements == (Shard(dim),)
    torch.testing.assert_close(sharded.full_tensor(), full)


@on_threads(4)
def test_a_plain_tensor_may_differ_between_ranks_and_is_refused() -> None:
    with pytest.raises(MixedTensorError, match=r"indices\[0\]"):
        _sharded(0)[torch.tensor([0, 1])]
