"""Infinities, nan and half precision: equal to one device for sharded dims and pending sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees

INF, NAN = math.inf, math.nan

# Of both signs, so that partial sums scaled by infinity sum to nan.
PARTIALS = torch.tensor([[3.0, -1.0, 2.0, 0.0], [-5.0, 4.0, 1.0, 0.0]], dtype=torch.float64)
SCALINGS: dict[str, Callable[[Any], Any]] = {
    "mul": lambda p: p * INF,
    "mul from the left": lambda p: -INF * p,
    "mul by nan": lambda p: p * NAN,
    "mul by a complex number": lambda p: p * complex(INF, 0),
    "mul in place": lambda p: (p * 1).mul_(INF),
    "div by int": lambda p: p / 0,
    "div by float": lambda p: p / -0.0,
    "div by infinity": lambda p: p / INF,
    "div in place": lambda p: (p * 1).div_(0),
    "add": lambda p: torch.add(p, p, alpha=INF),
    "sub": lambda p: torch.sub(p, p * 2, alpha=INF),
    "rsub": lambda p: torch.rsub(p, p * 2, alpha=-INF),
    "lerp": lambda p: torch.lerp(p, p * 2, INF),
    "addcmul": lambda p: torch.addcmul(p, p * 2, p * 3, value=INF),
    "foreach mul": lambda p: torch._foreach_mul([p, p], INF)[1],
    "foreach mul of scalars": lambda p: torch._foreach_mul([p, p], [2.0, INF])[1],
    "foreach div": lambda p: torch._foreach_div([p], 0)[0],
    "foreach add": lambda p: torch._foreach_add([p], [p], alpha=INF)[0],
    "foreach addcmul": lambda p: torch._foreach_addcmul([p], [p], [p], value=INF)[0],
    "foreach addcdiv": lambda p: torch._foreach_addcdiv([p], [p], [p], [INF])[0],
    "after a finite number": lambda p: (p * 2.0, p * INF)[1],
    "before a finite number": lambda p: (p * INF, p * 2.0)[1],
}


@pytest.mark.parametrize("name", SCALINGS)
def test_a_number_that_is_not_finite_scales_the_sum(name: str) -> None:
    scaled = SCALINGS[name]

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        for reduce_op, full in (("sum", PARTIALS.sum(0)), ("avg", PARTIALS.mean(0))):
            local = PARTIALS[mesh.get_local_rank()].clone()
            pending = DTensor.from_local(local, mesh, [Partial(reduce_op)])
            found, wanted = scaled(pending).full_tensor(), scaled(full)
            torch.testing.assert_close(found, wanted, equal_nan=True)

    body()


def test_what_is_summed_up_is_scaled_by_infinity_afterwards() -> None:
    # With fewer rows some kernels scale a first, which makes nan of sums of both signs.
    a, b = torch.randn(32, 4).double(), torch.randn(4, 16).double()
    zeros = torch.zeros(32, 16).double()
    wanted = torch.addmm(zeros, a, b, alpha=INF)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        sharded = [distribute_tensor(t, mesh, [Shard(d)]) for t, d in ((a, 1), (b, 0))]
        full = distribute_tensor(zeros, mesh, [Replicate()])
        found = torch.addmm(full, *sharded, alpha=INF).full_tensor()
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert torch.addmm(full, *sharded, alpha=2.0).placements == (Partial(),)

    body()


@on_threads(2)
def test_finite_numbers_and_tensors_scale_partial_sums_without_communication() -> None:
    mesh = kept_mesh((2,))
    pending = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
    weight = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    with Collectives() as issued:
        for made in (pending * 2.5, pending * 0, pending / 3, pending @ weight, pending * weight):
            assert made.placements == (Partial(),)
        changed = pending * 1
        changed *= 0.5
    assert issued == {}


@on_threads(2)
def test_a_sum_of_halves_is_scaled_where_its_partial_sums_would_overflow() -> None:
    mesh = kept_mesh((2,))
    rows = torch.tensor([[60000.0, -59000.0], [-59000.0, 60000.0]], dtype=torch.float16)
    for reduce_op in ("sum", "avg"):
        local = rows[mesh.get_local_rank()].clone()
        pending = DTensor.from_local(local, mesh, [Partial(reduce_op)])
        full = pending.full_tensor()
        for scaled in (
            lambda p: p * 3,
            lambda p: p / 0.25,
            lambda p: torch.add(p, p * 0.5, alpha=3),
            lambda p: (p * 1).mul_(3.0),
            lambda p: torch._foreach_mul([p], 3.0)[0],
        ):
            assert torch.equal(scaled(pending).full_tensor(), scaled(full))


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# Row and column of the values that are not finite.
SINGULAR: dict[str, dict[tuple[int, int], float]] = {
    "infinity on the first rank": {(0, 0): INF},
    "infinity within": {(4, 0): INF},
    "infinity on two ranks": {(1, 0): INF, (7, 0): INF},
    "both infinities": {(0, 0): INF, (8, 0): -INF},
    "minus infinity": {(0, 0): -INF},
    "nan on the last rank": {(8, 0): NAN},
    "nan before infinity": {(4, 0): NAN, (6, 0): INF},
    "nothing but minus infinity": {(row, 0): -INF for row in range(9)},
    "nothing but infinity": {(row, 0): INF for row in range(9)},
}
_NAMES = ("softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin", "cumsum")
_NAMES += ("cumprod", "logcumsumexp", "var", "std", "nansum")
ALONG: dict[str, Callable[[Any], Any]] = {
    **{name: lambda x, name=name: getattr(torch, name)(x, 0) for name in _NAMES},
    **{
        name: lambda x, name=name: list(getattr(torch, name)(x, 0))
        for name in ["max", "min", "cummax", "cummin", "var_mean"]
    },
    **{name: lambda x, name=name: getattr(torch, name)(x, 0) for name in ("argmax", "argmin")},
    "safe softmax": lambda x: torch._safe_softmax(x, 0),
    "softmin": lambda x: F.softmin(x, 0),
    "aminmax": lambda x: list(torch.aminmax(x, dim=0)),
    "topk": lambda x: x.topk(3, 0)[0],
    # torch has two formulas of its gradient, which differ where the incoming gradient is nan.
    "max of all": lambda x: x.detach().max(),
    "argmax of all": lambda x: x.argmax(),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "largest norm": lambda x: torch.linalg.vector_norm(x, INF, 0),
    "layer norm": lambda x: F.layer_norm(x.T, (9,)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax and product": lambda x: x.T.softmax(-1) @ x,
}


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("name", ALONG)
def test_what_is_not_finite_along_a_sharded_dim_is_as_on_one_device(name: str) -> None:
    for values in SINGULAR.values():
        x = _t(9, 6)
        for place, value in values.items():
            x[place] = value
        assert_agrees(ALONG[name], [x.requires_grad_()], [[Shard(0)]])


@pytest.mark.usefixtures("rows_move")
def test_cross_entropy_along_sharded_classes_does_not_hide_an_overflow() -> None:
    target = torch.arange(6) % 9

    def loss(x: Any) -> Any:
        mine = target
        if isinstance(x, DTensor):
            mine = distribute_tensor(target, x.device_mesh, [Replicate()], src_data_rank=None)
        return F.cross_entropy(x.T, mine)

    for values in SINGULAR.values():
        x = _t(9, 6)
        for place, value in values.items():
            x[place] = value
        assert_agrees(loss, [x.requires_grad_()], [[Shard(0)]])


EMPTY: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda x, name=name: getattr(torch, name)(x)
        for name in ["max", "min", "amax", "amin", "argmax", "argmin", "aminmax"]
    },
    **{
        f"{name} along dim {dim}": lambda x, name=name, dim=dim: getattr(torch, name)(x, dim=dim)
        for name in ["max", "min", "amax", "amin", "argmax", "argmin", "aminmax"]
        for dim in (0, 1)
    },
    "largest norm": lambda x: torch.linalg.vector_norm(x.float(), INF),
    "largest norm along dim 0": lambda x: torch.linalg.vector_norm(x.float(), INF, 0),
    "kthvalue": lambda x: x.kthvalue(1),
    "topk": lambda x: x.topk(1),
}


def _error_of(function: Callable[[Any], Any], x: Any) -> tuple[str, str] | None:
    try:
        function(x)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_has_no_extreme_on_any_rank(shape: tuple[int, ...], name: str) -> None:
    for dtype in (torch.float32, torch.int64):
        x = torch.empty(shape, dtype=dtype)
        wanted = _error_of(EMPTY[name], x)
        for sharding in (Replicate(), *map(Shard, range(len(shape)))):

            def body(x: Any = x, sharding: Any = sharding) -> tuple[str, str] | None:
                mine = distribute_tensor(x, kept_mesh((2,)), [sharding], src_data_rank=None)
                return _error_of(EMPTY[name], mine)

            assert set(run_threads(body, 2)) == {wanted}


HALVES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "mean along a dim": lambda x: x.mean(0),
    "mse": lambda x: F.mse_loss(x, x * 0.99),
    "l1": lambda x: F.l1_loss(x, x * 0),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x * 0),
    "huber": lambda x: F.huber_loss(x, x * 0),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, x * 0),
    "norm": lambda x: torch.linalg.vector_norm(x / 100),
    "average pool": lambda x: F.avg_pool1d(x.T.unsqueeze(0), 5, 2),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_averages_of_halves_fit_forward_and_backward(name: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(64, 8, generator=generator) * 20000 + 20000).half()

    def run(x: Any) -> list[Any]:
        x = x.detach().clone().requires_grad_()
        made = HALVES[name](x)
        (made * scale).sum(dtype=torch.float32).backward()
        return [made.detach(), x.grad]

    expected = run(x)

    @on_threads(4)
    def body() -> None:
        for sharding in (Shard(0), Shard(1)):
            mine = distribute_tensor(x, kept_mesh((4,)), [sharding], src_data_rank=None)
            for found, wanted in zip(run(mine), expected, strict=True):
                finite = wanted.isfinite()
                got = found.full_tensor()[finite]
                torch.testing.assert_close(got, wanted[finite], rtol=5e-3, atol=1e-3)

    body()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_mean_of_many_samples_fits_and_counts_them(dtype: torch.dtype) -> None:
    target = torch.arange(4000) % 8
    x = torch.full((4000, 8), -80.0, dtype=dtype)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        full = distribute_tensor(target, mesh, [Replicate()], src_data_rank=None)
        for sharding in (Shard(0), Shard(1)):
            loss = F.nll_loss(distribute_tensor(x, mesh, [sharding], src_data_rank=None), full)
            assert loss.full_tensor().item() == 80.0

    body()
