"""torch's DTensors among ours: operators and lists whose first DTensor is ours accept both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.tensor as theirs
from torch import nn

from dtensor_core import DTensor, Shard, distribute_tensor
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.works_with.layouts import numbers

X, Y = numbers(4, 3), numbers(4, 3, seed=1)


def _both() -> tuple[Any, Any]:
    """X as a dtensor_core DTensor, Y as a DTensor of torch; both are sharded by rows."""
    mesh = kept_mesh((2,))
    part = Y.chunk(2)[mesh.get_local_rank()].clone()
    ours = distribute_tensor(X, mesh, [Shard(0)], src_data_rank=None)
    return ours, theirs.DTensor.from_local(part, mesh, [theirs.Shard(0)], run_check=False)


@on_threads(2)
def test_an_operator_whose_first_tensor_is_ours_takes_torchs() -> None:
    x, y = _both()
    for found, wanted in (
        (x + y, X + Y),
        (torch.stack([x.norm(), y.norm()]), torch.stack([X.norm(), Y.norm()])),
        (torch.addcmul(x, y, y, value=2), torch.addcmul(X, Y, Y, value=2)),
        (torch.cat([x, y]), torch.cat([X, Y])),
        (torch.where(x > 0, x, y), torch.where(X > 0, X, Y)),
    ):
        assert type(found) is DTensor
        torch.testing.assert_close(found.full_tensor(), wanted)


@on_threads(2)
def test_what_a_list_operator_writes_in_place_both_have() -> None:
    x, y = _both()
    torch._foreach_mul_([x, y], 3.0)
    torch.testing.assert_close(x.full_tensor(), 3 * X)
    torch.testing.assert_close(y.full_tensor(), 3 * Y)
    assert type(y) is theirs.DTensor


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_clipping_takes_both_in_either_order(foreach: bool, first: int) -> None:
    plain = [nn.Parameter(torch.zeros(4, 3).double()) for _ in range(2)]
    plain[0].grad, plain[1].grad = X.clone(), Y.clone()
    wanted = nn.utils.clip_grad_norm_(plain, 0.5)

    @on_threads(2)
    def body() -> None:
        mine = [nn.Parameter(torch.zeros_like(each)) for each in _both()]
        for parameter, gradient in zip(mine, _both(), strict=True):
            parameter.grad = gradient
        given = mine[::-1] if first else mine
        found: Any = nn.utils.clip_grad_norm_(given, 0.5, foreach=foreach)
        torch.testing.assert_close(found, wanted)
        for parameter, each in zip(mine, plain, strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), each.grad)

    body()


@on_threads(2)
def test_where_torchs_comes_first_nothing_wrong_is_made() -> None:
    x, y = _both()
    with pytest.raises(MixedTensorError, match="torch's DTensor is the first argument"):
        torch.stack([y.norm(), x.norm()])
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        y + x
