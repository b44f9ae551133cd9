"""Clipping of gradients: plain, of a single mesh, and of several meshes, in a single call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.debug import CommDebugMode
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.works_with.layouts import assert_close, numbers

Layout = tuple[tuple[int, ...], tuple[Placement, ...]]
SHAPES = ((8, 6), (5,), (7, 3), (4, 4))
ROWS: Layout = ((4,), (Shard(0),))
COLUMNS: Layout = ((4,), (Shard(1),))
SQUARE: Layout = ((2, 2), (Shard(0), Shard(1)))
# The layouts of four gradients; None is a plain tensor.
KINDS: dict[str, tuple[Layout | None, ...]] = {
    "one mesh": (ROWS, ROWS, COLUMNS, ((4,), (Replicate(),))),
    "some plain": (ROWS, None, COLUMNS, None),
    "two meshes": (ROWS, ((2, 2), (Shard(0), Replicate())), SQUARE, ROWS),
    "two meshes, some plain": (ROWS, None, SQUARE, None),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"norm_type": math.inf},
    {"norm_type": 1.0},
    {"norm_type": 0.0},
    {"foreach": True},
    {"foreach": False},
    {"error_if_nonfinite": True},
)


def _with_gradients(gradients: list[torch.Tensor]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(each)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def _plain() -> list[nn.Parameter]:
    return _with_gradients([numbers(*shape, seed=3) * 5 for shape in SHAPES])


def _laid_out(kind: str) -> list[nn.Parameter]:
    return _with_gradients(
        [
            each if at is None else distribute_tensor(each, kept_mesh(at[0]), at[1])
            for each, at in zip(_grads(_plain()), KINDS[kind], strict=True)
        ]
    )


def _grads(parameters: list[nn.Parameter]) -> list[Any]:
    return [parameter.grad for parameter in parameters]


@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_clipped_as_on_one_process(kind: str) -> None:
    @on_threads(4)
    def body() -> None:
        for options in OPTIONS:
            plain, mine = _plain(), _laid_out(kind)
            wanted = nn.utils.clip_grad_norm_(plain, 1.0, **options)
            assert_close(nn.utils.clip_grad_norm_(mine, 1.0, **options), wanted)
            assert_close(_grads(mine), _grads(plain))

    body()


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_clipped_and_norms_reused_as_on_one_process(kind: str) -> None:
    @on_threads(4)
    def body() -> None:
        plain, mine = _plain(), _laid_out(kind)
        for each in (plain, mine):
            nn.utils.clip_grad_value_(each, 0.5)
            norm = nn.utils.get_total_norm(_grads(each))
            nn.utils.clip_grads_with_norm_(each, 0.1, norm)
        assert_close(_grads(mine), _grads(plain))

    body()


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_that_is_no_number_raises_on_every_rank(kind: str) -> None:
    @on_threads(4)
    def body() -> None:
        mine = _laid_out(kind)
        first = mine[0].grad
        assert isinstance(first, DTensor)
        if first.device_mesh.get_rank() == 2:
            first.to_local().fill_(math.nan)
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(mine, 1.0, error_if_nonfinite=True)

    body()


def _reported_of_clipping(mine: list[nn.Parameter]) -> list[tuple[str, int]]:
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        nn.utils.clip_grad_norm_(mine, 1.0)
    return [(reason.step, reason.payload_bytes) for reason in reasons]


def test_each_axis_reduces_one_number_however_many_gradients_there_are() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2))
        layouts = [(Shard(0), Shard(0)), (Shard(0), Replicate()), (Replicate(), Replicate())] * 2
        mine = _with_gradients([distribute_tensor(torch.ones(8), mesh, p) for p in layouts])
        assert _reported_of_clipping(mine) == [("all_reduce", 4)] * 2


def test_pending_sums_are_made_once_for_the_norm_and_the_optimizer() -> None:
    @on_threads(4)
    def body() -> None:
        mesh, value = kept_mesh((4,)), numbers(6, seed=1) * 5
        given = DTensor.from_local(value, mesh, [Replicate()])
        parameter = nn.Parameter(torch.zeros_like(given))
        parameter.grad = DTensor.from_local(value / 4, mesh, [Partial()])
        assert_close(nn.utils.get_total_norm([parameter.grad]), value.norm())
        assert parameter.grad.placements == (Partial(),)
        with CommDebugMode() as counter:
            assert_close(nn.utils.clip_grad_norm_([parameter], 1.0), value.norm())
            torch.optim.SGD([parameter], lr=1.0).step()
        assert counter.get_total_counts() == 1
        assert parameter.grad.placements == (Replicate(),)
        assert_close(parameter, -value / (value.norm() + 1e-6))

    body()


def test_each_mesh_reduces_one_number() -> None:
    with fake_world(4):
        gradients = [torch.ones(8)]
        for shape in [(4,), (2, 2)] * 3:
            mesh = init_device_mesh("cpu", shape)
            layout = [Shard(0), Replicate()][: mesh.ndim]
            gradients.append(distribute_tensor(torch.ones(8), mesh, layout))
        mine = _with_gradients(gradients)
        assert _reported_of_clipping(mine) == [("all_reduce", 4)] * 2
