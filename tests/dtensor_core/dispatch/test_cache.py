"""The parts of the cache: each is described, what clears them, and who holds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from dtensor_core import Shard, distribute_tensor
from dtensor_core.dispatch import dispatcher, results
from dtensor_core.dispatch.cache import CACHE, DispatchCache
from dtensor_core.dispatch.special import inplace
from dtensor_core.mesh import forget_decisions
from dtensor_core.testing import fake_world

aten = torch.ops.aten
BY_LAYOUT = ("entries", "entries_by_value", "deciding_numbers", "patterns")


@pytest.fixture
def x() -> Iterator[Any]:
    """A DTensor, with an empty cache of decided calls."""
    with fake_world(2):
        CACHE.forget_layouts()
        yield distribute_tensor(torch.ones(4, 6), init_device_mesh("cpu", (2,)), [Shard(0)])


def ops_of(part: str) -> set[int]:
    return {key[0] for key in getattr(CACHE, part)}


def test_every_part_is_described() -> None:
    text = DispatchCache.__doc__ or ""
    described = re.findall(r"^        (\w+): ", text, re.M)
    assert sorted(described) == sorted(DispatchCache.__slots__)


def test_the_modules_of_a_cached_call_hold_the_parts_themselves() -> None:
    assert dispatcher._entries is inplace._entries is CACHE.entries
    assert dispatcher._value_arguments is CACHE.value_arguments
    assert results._empty_tensors is CACHE.empty_tensors


def test_a_change_of_meshes_clears_what_depends_on_layouts(x: Any) -> None:
    (x + x).sum(0)
    torch.linalg.vector_norm(x, 2.0)
    assert id(aten.add.Tensor) in ops_of("entries") & ops_of("patterns")
    assert all(getattr(CACHE, part) for part in BY_LAYOUT)
    held = CACHE.entries
    forget_decisions()
    assert not any(getattr(CACHE, part) for part in BY_LAYOUT)
    assert held is CACHE.entries
    assert id(aten.add.Tensor) in CACHE.known_operators


def test_another_rule_clears_the_calls_of_its_operator_alone(x: Any) -> None:
    x + x, x * x
    CACHE.forget(aten.add.Tensor)
    for part in ("entries", "patterns"):
        assert id(aten.add.Tensor) not in ops_of(part)
        assert id(aten.mul.Tensor) in ops_of(part)
    assert id(aten.add.Tensor) not in CACHE.known_operators
    assert id(aten.mul.Tensor) in CACHE.known_operators


def test_a_number_that_decides_is_part_of_the_key(x: Any) -> None:
    for exponent in (2.0, 3.0):
        torch.linalg.vector_norm(x, exponent)
    norm = id(aten.linalg_vector_norm.default)
    assert {names for key, names in CACHE.deciding_numbers.items() if key[0] == norm} == {("ord",)}
    assert norm not in ops_of("entries")
    assert {key[-1] for key in CACHE.entries_by_value if key[0] == norm} == {"2.0", "3.0"}
    CACHE.forget(aten.linalg_vector_norm.default)
    assert norm not in ops_of("deciding_numbers") | ops_of("entries_by_value")
