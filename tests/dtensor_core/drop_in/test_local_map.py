"""`local_map` as in programs written for torch's, with the collectives that it may issue."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.experimental import local_map
from tests.dtensor_core.drop_in.counted import functional, with_each_counter

RANKS = 2
ROWS, COLUMNS, REPLICATED = [Shard(0)], [Shard(1)], [Replicate()]


def is_ours(mode: Any) -> bool:
    """True on threads, where values are real; on a fake group only shapes and counts are."""
    return mode.__module__.startswith("commtrace")


def gathered(tensor: torch.Tensor, mesh: Any) -> torch.Tensor:
    return funcol.all_gather_single(tensor, 0, mesh).wait()


def all_equal(mesh: Any, x: torch.Tensor, y: torch.Tensor) -> bool:
    same = torch.tensor([torch.equal(x, y)])
    return bool(torch.all(gathered(same, mesh)).item())


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def gathered_product(mesh: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return gathered(torch.mm(a, b), mesh)


def reduced_product(mesh: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(torch.mm(a, b), "sum", mesh).wait()


def times(x: torch.Tensor, factor: Any) -> torch.Tensor:
    return torch.mul(x, factor)


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@with_each_counter
def test_local_results_become_dtensors_and_only_func_communicates(run) -> None:
    w, x = seeded(12, 8), seeded(8, 16, seed=1)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        left, right = distribute_tensor(w, mesh, COLUMNS), distribute_tensor(x, mesh, ROWS)
        mapped = local_map(
            reduced_product,
            out_placements=REPLICATED,
            in_placements=(None, COLUMNS, ROWS),
            device_mesh=mesh,
        )
        with mode() as counter:
            y = mapped(mesh, left, right)
        assert counter.get_total_counts() == 1
        assert all(placement.is_replicate() for placement in y.placements)
        if is_ours(mode):
            torch.testing.assert_close(y.to_local(), w @ x)

    run(body, RANKS)


@with_each_counter
def test_results_that_are_no_tensors_and_calls_without_dtensors(run) -> None:
    x, y = seeded(8, 8), seeded(8, 8, seed=1)
    half, w = seeded(4 // RANKS, 4), seeded(4, 4, seed=1)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        rows = [distribute_tensor(each, mesh, ROWS) for each in (x, y)]
        with mode() as counter:
            same = local_map(all_equal, out_placements=None)(mesh, *rows)
        assert counter.get_total_counts() == 1
        assert not same
        mapped = local_map(
            gathered_product, out_placements=ROWS, in_placements=(None, ROWS, REPLICATED)
        )
        with mode() as counter:
            plain = mapped(mesh, half, w)
        assert counter.get_total_counts() == 1
        assert counter.get_comm_counts()[functional.all_gather_into_tensor] == 1
        assert type(plain) is not DTensor
        if is_ours(mode):
            torch.testing.assert_close(plain, gathered(half, mesh) @ w)

    run(body, RANKS)


@with_each_counter
def test_placements_of_arguments_may_be_left_out(run) -> None:
    w, x = seeded(12, 8), seeded(8, 16, seed=1)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        left, right = distribute_tensor(w, mesh, ROWS), distribute_tensor(x, mesh, REPLICATED)
        for layouts in ((ROWS, REPLICATED), None):
            with mode() as counter:
                y = local_map(product, out_placements=ROWS, in_placements=layouts)(left, right)
            assert counter.get_total_counts() == 0
            assert y.placements == (Shard(0),)
            if is_ours(mode):
                torch.testing.assert_close(y.full_tensor(), w @ x)
        with mode() as counter:
            y = local_map(times, out_placements=ROWS, in_placements=(ROWS, None))(left, 10.0)
        assert counter.get_total_counts() == 0
        assert y.placements == (Shard(0),)

        @partial(local_map, out_placements=ROWS, in_placements=(ROWS, REPLICATED))
        def decorated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.mm(a, b)

        assert decorated(left, right).shape == (12, 16)

    run(body, RANKS)


@with_each_counter
def test_inputs_are_redistributed_only_where_that_is_allowed(run) -> None:
    w, x = seeded(12, 8), seeded(8, 16, seed=1)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        left, right = distribute_tensor(w, mesh, ROWS), distribute_tensor(x, mesh, COLUMNS)
        mapping = partial(
            local_map,
            reduced_product,
            out_placements=REPLICATED,
            in_placements=(None, COLUMNS, ROWS),
            device_mesh=mesh,
        )
        with mode() as counter:
            y = mapping(redistribute_inputs=True)(mesh, left, right)
        assert counter.get_total_counts() == 3
        assert all(placement.is_replicate() for placement in y.placements)
        if is_ours(mode):
            torch.testing.assert_close(y.to_local(), w @ x)
        with pytest.raises(ValueError, match="set redistribute_inputs=True"):
            mapping(redistribute_inputs=False)(mesh, left, right)

    run(body, RANKS)


@with_each_counter
def test_gradients_have_the_declared_placements(run) -> None:
    w, x = seeded(12, 8), seeded(8, 16, seed=1)

    def body(mode: Any) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        left = distribute_tensor(w, mesh, ROWS).requires_grad_()
        right = distribute_tensor(x, mesh, REPLICATED).requires_grad_()
        mapped = local_map(
            product,
            out_placements=ROWS,
            in_placements=(ROWS, REPLICATED),
            in_grad_placements=(ROWS, [Shard(1)]),
            device_mesh=mesh,
        )
        mapped(left, right).sum().backward()
        assert left.grad is not None
        assert left.grad.placements == (Shard(0),)

    run(body, RANKS)
