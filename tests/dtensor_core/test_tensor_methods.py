"""Attributes that Python reads of a DTensor without an operator describe the full tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from dtensor_core import DTensor, Shard, distribute_tensor
from dtensor_core.errors import MissingRuleError
from dtensor_core.testing.threads import kept_mesh, on_threads

MEMORY: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda x: x.numpy(),
    "an array": np.asarray,
    "dlpack": torch.from_dlpack,
    "numpy's dlpack": np.from_dlpack,
    "a function of each": lambda x: x.apply_(lambda value: value + 1),
    "shared memory": lambda x: x.share_memory_(),
}
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_reduce": dist.all_reduce,
    "broadcast": lambda x: dist.broadcast(x, 0),
    "functional": lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD),
}


def _sharded() -> DTensor:
    return distribute_tensor(torch.arange(6.0), kept_mesh((2,)), [Shard(0)])


def test_numbers_are_those_of_the_full_tensor() -> None:
    @on_threads(2)
    def body() -> None:
        x = _sharded()
        assert x.tolist() == [0, 1, 2, 3, 4, 5]
        assert f"{x.sum():.2f} {x.mean():>5}" == "15.00   2.5"
        assert f"{x.sum()}".startswith("DTensor(shape=()")
        assert 3.0 in x
        assert 7.0 not in x

    body()


@pytest.mark.parametrize("read", MEMORY)
def test_memory_is_refused(read: str) -> None:
    @on_threads(2)
    def body() -> None:
        with pytest.raises(RuntimeError, match="no memory of its own"):
            MEMORY[read](_sharded())

    body()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_collective_is_refused_before_it_sends(collective: str) -> None:
    @on_threads(2)
    def body() -> None:
        with pytest.raises(MissingRuleError, match="a collective, which does not have a sharding"):
            COLLECTIVES[collective](_sharded())

    body()
