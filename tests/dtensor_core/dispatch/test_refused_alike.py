"""A call that one device refuses is refused by every rank, before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor
from dtensor_core.dispatch.metadata import check_supported
from dtensor_core.experimental import implicit_replication
from dtensor_core.testing import kept_mesh, run_threads


def gather(tensor: Any) -> None:
    tensor.full_tensor()


def reduced_by_too_long_a_source() -> None:
    mesh = kept_mesh((2, 3))
    x = DTensor.from_local(torch.ones(1).bfloat16(), mesh, [Replicate(), Partial("max")])
    index = distribute_tensor(torch.zeros(3, dtype=torch.int64), mesh, [Replicate()] * 2)
    source = distribute_tensor(torch.ones(6).bfloat16(), mesh, [Shard(0), Replicate()])
    gather(x.index_reduce(0, index, source, "amax", include_self=False))


def reduced_by_a_source_of_another_width() -> None:
    mesh = kept_mesh((6,))
    x = distribute_tensor(torch.ones(1, 2), mesh, [Shard(1)])
    index = distribute_tensor(torch.zeros(3, dtype=torch.int64), mesh, [Replicate()])
    gather(x.index_add_(0, index, distribute_tensor(torch.ones(3, 1), mesh, [Replicate()])))


def not_for_complex_numbers() -> None:
    x = distribute_tensor(torch.ones(5, dtype=torch.complex64), kept_mesh((6,)), [Shard(0)])
    gather(torch.atan2(x, x))


def not_in_place_for_complex_numbers() -> None:
    x = distribute_tensor(torch.ones(5, dtype=torch.complex64), kept_mesh((6,)), [Shard(0)])
    gather(x.clone().clamp_(max=x))


def interpolated_integers() -> None:
    x = distribute_tensor(torch.ones(1, 1, 4, 4).long(), kept_mesh((6,)), [Shard(0)])
    gather(F.interpolate(x, 8, mode="bilinear"))


def of_two_dtypes() -> None:
    x = distribute_tensor(torch.ones(5, 3), kept_mesh((6,)), [Shard(0)])
    y = distribute_tensor(torch.ones(3).double(), kept_mesh((6,)), [Shard(0)])
    gather(torch.mv(x, y))


@pytest.mark.parametrize(
    "call",
    [
        reduced_by_too_long_a_source,
        reduced_by_a_source_of_another_width,
        not_for_complex_numbers,
        not_in_place_for_complex_numbers,
        interpolated_integers,
        of_two_dtypes,
    ],
)
def test_every_rank_refuses_it_also_one_without_elements(call):
    def refused() -> str:
        with pytest.raises(RuntimeError) as error:
            call()
        return str(error.value)

    assert len(set(run_threads(refused, 6, timeout_s=30))) == 1


def test_a_large_call_is_not_run_to_be_checked():
    def checked() -> bool:
        x = distribute_tensor(torch.ones(1, 1 << 19).long(), kept_mesh((2,)), [Shard(0)])
        check_supported(torch.ops.aten.atan2.default, (x._spec, x._spec), {})
        return True

    assert run_threads(checked, 2) == [True, True]


PLAIN = {
    "where": lambda x, t: torch.where(t > 0, x, t),
    "addr": lambda x, t: torch.addr(t, x[:, 0], x[0]),
    "grid_sample": lambda x, t: F.grid_sample(
        t[None, None], x[None, :, None, :2], align_corners=False
    ),
    "index": lambda x, t: x[(t[0] > 0).long()],
    "cross_entropy": lambda x, t: F.cross_entropy(x, t.softmax(1)),
    "mm": lambda x, t: t.t() @ x,
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
def test_the_gradients_of_a_call_with_plain_arguments_are_those_of_one_device(name, placement):
    """The arguments are allowed where the call is made; its backward comes after that."""
    generator = torch.Generator().manual_seed(0)
    full, plain = (torch.rand((4, 3), generator=generator).double() - 0.5 for _ in range(2))
    one = full.clone().requires_grad_()
    PLAIN[name](one, plain).square().sum().backward()

    def gradient() -> torch.Tensor:
        x = distribute_tensor(full, kept_mesh((3,)), [placement]).requires_grad_()
        with implicit_replication():
            made = PLAIN[name](x, plain)
        made.square().sum().backward()
        assert isinstance(x.grad, DTensor)
        return x.grad.full_tensor()

    for found in run_threads(gradient, 3):
        torch.testing.assert_close(found, one.grad)
