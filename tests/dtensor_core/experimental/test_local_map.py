"""Functions on local tensors: unwrapping, redistributing, refusing, wrapping."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.experimental import local_map
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads

ROWS, COLUMNS, REPLICATED = [Shard(0)], [Shard(1)], [Replicate()]


@pytest.fixture
def mesh():
    with fake_world(2):
        yield init_device_mesh("cpu", (2,))


def multiply_and_reduce(mesh: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(torch.mm(a, b), "sum", mesh).clone()


def test_local_parts_go_in_and_dtensors_come_out() -> None:
    a, b = torch.randn(12, 8), torch.randn(8, 16)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        left = distribute_tensor(a, mesh, COLUMNS, src_data_rank=None)
        right = distribute_tensor(b, mesh, ROWS, src_data_rank=None)
        run = local_map(
            multiply_and_reduce, REPLICATED, in_placements=(None, COLUMNS, ROWS), device_mesh=mesh
        )
        result = run(mesh, left, right)
        assert result.placements == (Replicate(),)
        torch.testing.assert_close(result.to_local(), a @ b)

    body()


def test_an_argument_in_another_layout_is_moved_only_on_request() -> None:
    a, b = torch.randn(12, 8), torch.randn(8, 16)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        left = distribute_tensor(a, mesh, ROWS, src_data_rank=None)
        right = distribute_tensor(b, mesh, COLUMNS, src_data_rank=None)
        layouts = (None, COLUMNS, ROWS)
        moving = local_map(
            multiply_and_reduce, REPLICATED, in_placements=layouts, redistribute_inputs=True
        )
        torch.testing.assert_close(moving(mesh, left, right).to_local(), a @ b)
        refusing = local_map(multiply_and_reduce, REPLICATED, in_placements=layouts)
        with pytest.raises(ValueError, match="set redistribute_inputs=True"):
            refusing(mesh, left, right)

    body()


def test_plain_tensors_stay_plain(mesh) -> None:
    run = local_map(torch.mul, REPLICATED, in_placements=(ROWS, None))
    result = run(torch.ones(2), 3)
    assert type(result) is torch.Tensor
    assert result.tolist() == [3.0, 3.0]


def test_keyword_arguments_are_unwrapped_too(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 2), mesh, ROWS)

    @local_map(out_placements=ROWS)
    def scale(x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
        assert type(by) is torch.Tensor
        return x * by

    assert scale(x, by=x).placements == (Shard(0),)


def test_results_have_a_layout_each(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 2), mesh, ROWS)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, x.shape[0]

    doubled, rows = local_map(both, out_placements=(ROWS, None))(x)
    assert isinstance(doubled, DTensor)
    assert rows == 2
    with pytest.raises(AssertionError, match="result 1 of both is a int"):
        local_map(both, out_placements=(ROWS, ROWS))(x)
    with pytest.raises(AssertionError, match="out_placements of both must have an entry"):
        local_map(both, out_placements=(ROWS, None, None))(x)
    with pytest.raises(AssertionError, match="in_placements of both must have an entry"):
        local_map(both, out_placements=(ROWS, None), in_placements=(ROWS, ROWS))(x)
    with pytest.raises(AssertionError, match="expects placements but received None"):
        local_map(both, out_placements=(ROWS, None), in_placements=(None,))(x)
    with pytest.raises(AssertionError, match="expects None placements but received"):
        local_map(torch.mul, out_placements=ROWS, in_placements=(ROWS, ROWS))(x, 2)


def test_gradients_have_the_declared_placements(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 2), mesh, REPLICATED).requires_grad_()

    run = local_map(torch.square, out_placements=REPLICATED, in_grad_placements=([Partial()],))
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        run(x).to_local().sum().backward()
    assert reasons == []
    assert isinstance(x.grad, DTensor)
    assert x.grad.placements == (Partial(),)
