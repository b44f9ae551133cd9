"""Factories create DTensors with the requested values, shape and layout, without communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtensor_core
from dtensor_core import DTensor, Partial, Placement, Replicate, Shard, observe
from dtensor_core.testing.threads import kept_mesh, on_threads

MAKERS: dict[str, tuple[Callable[..., DTensor], Callable[..., torch.Tensor]]] = {
    "zeros": (dtensor_core.zeros, torch.zeros),
    "ones": (dtensor_core.ones, torch.ones),
    "rand": (dtensor_core.rand, torch.rand),
    "randn": (dtensor_core.randn, torch.randn),
    "full": (
        lambda *size, **how: dtensor_core.full(size, 2.5, **how),
        lambda *size, **how: torch.full(size, 2.5, **how),
    ),
}
LAYOUTS: tuple[tuple[Placement, ...], ...] = (
    (Replicate(), Replicate()),
    (Shard(0), Shard(-1)),
    (Shard(1), Shard(1)),
    (Partial(), Shard(0)),
)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_are_those_of_one_device(name: str, layout: tuple[Placement, ...]) -> None:
    make, plain = MAKERS[name]
    torch.manual_seed(5)
    expected = plain(5, 7, dtype=torch.float64)

    def refuse(reason: observe.Reason) -> None:
        raise AssertionError(reason)

    @on_threads(4)
    def body() -> None:
        torch.manual_seed(5)
        with observe.listening(refuse):
            x = make(5, 7, dtype=torch.float64, device_mesh=kept_mesh((2, 2)), placements=layout)
        assert x.shape == (5, 7)
        assert x.stride() == (7, 1)
        assert x.dtype is torch.float64
        assert tuple(x._local_tensor.shape) == x._spec.local_shape
        torch.testing.assert_close(x.full_tensor(), expected)

    body()


def test_sizes_may_be_one_sequence_and_types_are_torch_s() -> None:
    @on_threads(2)
    def body() -> None:
        how: dict[str, Any] = {"device_mesh": kept_mesh((2,))}
        assert dtensor_core.zeros((2, 3), **how).shape == (2, 3)
        assert dtensor_core.zeros([2, 3], **how).shape == (2, 3)
        assert dtensor_core.empty(4, placements=[Shard(0)], **how).to_local().shape == (2,)
        assert dtensor_core.full(4, 1, **how).dtype is torch.int64
        assert dtensor_core.full((4,), True, **how).dtype is torch.bool
        assert dtensor_core.ones(2, **how).dtype is torch.float32
        leaf = dtensor_core.ones(2, requires_grad=True, **how)
        assert leaf.is_leaf
        assert leaf.requires_grad
        with how["device_mesh"]:
            assert dtensor_core.zeros(2).placements == (Replicate(),)

    body()


def test_the_names_are_where_programs_import_them_from() -> None:
    from dtensor_core.device_mesh import DeviceMesh, init_device_mesh
    from dtensor_core.placement_types import DTensorSpec, Placement, _Partial

    assert DeviceMesh is dtensor_core.DeviceMesh
    assert init_device_mesh is dtensor_core.init_device_mesh
    assert _Partial is Partial
    assert Placement is dtensor_core.Placement
    assert DTensorSpec.__name__ == "Spec"
