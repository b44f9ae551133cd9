"""User-defined rules replace the table's, for built-in and custom operators."""

from __future__ import annotations

import pytest
import torch

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.experimental import register_sharding
from dtensor_core.operators import table
from dtensor_core.testing.fake import fake_world

aten = torch.ops.aten


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table, "TABLE", dict(table.TABLE))
    with fake_world(2):
        yield init_device_mesh("cpu", (2,))


def test_a_registered_sharding_is_the_only_one(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)])
    assert x.exp().placements == (Shard(1),)  # pyright: ignore[reportAttributeAccessIssue]

    @register_sharding(aten.exp.default)
    def rows_only(x):
        assert x.ndim == 2
        return [([Shard(0)], [Shard(0)])]

    assert x.exp().placements == (Shard(0),)  # pyright: ignore[reportAttributeAccessIssue]


def test_static_arguments_are_passed_to_rules_by_value(mesh) -> None:
    @register_sharding([aten._softmax.default])
    def softmax(x, dim, half_to_float):
        free = [d for d in range(x.ndim) if d != dim % x.ndim]
        return [([Replicate()], [Replicate(), None, None])] + [
            ([Shard(d)], [Shard(d), None, None]) for d in free
        ]

    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    assert x.softmax(1).placements == (Shard(0),)  # pyright: ignore[reportAttributeAccessIssue]
    assert x.softmax(0).placements == (Shard(1),)  # pyright: ignore[reportAttributeAccessIssue]


def test_numbers_are_passed_to_rules_by_value(mesh) -> None:
    @register_sharding(aten.leaky_relu.default)
    def rows_if_steep(x, slope=0.01):
        placement = Shard(0) if slope > 0.5 else Replicate()
        return [([placement], [placement, None])]

    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    for slope, placement in ((0.75, Shard(0)), (0.25, Replicate()), (0.875, Shard(0))):
        result = torch.nn.functional.leaky_relu(x, slope)
        assert result.placements == (placement,)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_custom_operator_can_be_given_a_rule(mesh) -> None:
    @torch.library.custom_op("dtensor_core_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    @register_sharding(torch.ops.dtensor_core_test.twice.default)
    def sharding(x):
        return [([Shard(d)], [Shard(d)]) for d in range(x.ndim)]

    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)])
    result = twice(x)
    assert isinstance(result, DTensor)
    assert result.placements == (Shard(1),)
    assert result.to_local().eq(2).all()
