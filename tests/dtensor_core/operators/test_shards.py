"""Uneven and empty shards, pending sums and sub-meshes: the same result on every rank, no hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DeviceMesh, DTensor, Partial, Replicate, Shard
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

# Without bounds it has no rule: its argument is gathered.
pytestmark = pytest.mark.filterwarnings("ignore:aten.histc")


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: x.max(),
    "min of a dim": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(),
    "argmin of a dim": lambda x: x.argmin(0),
    "amax": lambda x: x.amax(0),
    "aminmax": lambda x: x.aminmax(),
    "infinity norm": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "smallest norm": lambda x: torch.linalg.vector_norm(x, -torch.inf, dim=0),
    "norm of order 0.5": lambda x: torch.linalg.vector_norm(x, 0.5),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x, dim=0)),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(1, 0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "softmax": lambda x: x.softmax(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "mean": lambda x: x.mean(0),
    "prod": lambda x: x.prod(0),
    "any": lambda x: (x > 0).any(0),
    "all": lambda x: (x > -1).all(),
    "histc": lambda x: x.histc(5),
    "tril": lambda x: x.tril(),
    "one piece": lambda x: x.split(9)[0],
}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_uneven_and_empty_shards_and_partial_sums_agree(name: str, size: int) -> None:
    differentiable = name not in ("histc", "any", "all")
    if size == 1 and name in ("var", "std"):
        pytest.skip("the variance of one element is not a number, and neither is its gradient")
    for layout in (Shard(0), Shard(1), Partial()):
        x = _t(size, 3).requires_grad_(differentiable)
        assert_agrees(FUNCTIONS[name], [x], [[layout]])


@pytest.mark.parametrize("bias", [Replicate(), Shard(0), Partial()], ids=str)
@pytest.mark.parametrize("weight", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("x", [Shard(0), Shard(1), Shard(2), Shard(3), Partial()], ids=str)
def test_a_convolution_is_that_of_one_device(x: Any, weight: Any, bias: Any) -> None:
    tensors = [
        _t(5, 4, 7, 6).requires_grad_(),
        _t(6, 4, 3, 3).requires_grad_(),
        _t(6).requires_grad_(),
    ]
    assert_agrees(
        lambda *each: F.conv2d(*each, stride=2, padding=1), tensors, [[x], [weight], [bias]]
    )


def test_a_convolution_on_samples_and_on_output_channels_sends_nothing() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x, weight, bias = _t(4, 4, 7, 6), _t(8, 4, 3, 3), _t(8)
        replicated, sharded = [Replicate()], [Shard(0)]
        for layouts, out in (
            ((sharded, replicated, replicated), Shard(0)),
            ((replicated, sharded, sharded), Shard(1)),
        ):
            given = [laid_out(t, mesh, p) for t, p in zip((x, weight, bias), layouts, strict=True)]
            with Collectives() as issued:
                result = F.conv2d(*given, padding=1)
            assert issued == {}
            assert isinstance(result, DTensor)
            assert result.placements == (out,)

    body()


def test_numbers_of_a_pending_sum_are_the_sum() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x = laid_out(torch.tensor(6.0), mesh, [Partial()])
        assert x.item() == 6
        assert float(x) == 6
        assert int(x) == 6
        assert x
        assert not x - 6
        y = laid_out(torch.arange(6.0), mesh, [Partial()])
        z = laid_out(torch.arange(6.0), mesh, [Shard(0)])
        assert torch.equal(y, z)
        assert torch.allclose(y, z)
        assert z.tolist() == torch.arange(6.0).tolist()
        with pytest.raises(
            RuntimeError, match=r"\.numpy\(\) is not supported for tensor subclasses"
        ):
            z.numpy()

    body()


def test_a_number_on_a_sub_mesh_blocks_no_rank() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = DeviceMesh("cpu", [0, 2])
        inside = mesh.get_coordinate() is not None
        x = DTensor.from_local(torch.tensor(2.0), mesh, [Partial()])
        assert x.item() == (4 if inside else 0)
        assert torch.equal(x, x)
        assert torch.allclose(x, x)
        assert bool(x) is inside

    body()


def test_what_is_made_like_partial_sums_has_the_value_that_it_is_filled_with() -> None:
    @on_threads(4)
    def body() -> None:
        x = laid_out(_t(4, 3), kept_mesh((4,)), [Partial()])
        with Collectives() as issued:
            copy = x.clone()
        assert issued == {}
        assert copy.placements == (Partial(),)
        for made in (torch.empty_like(x).fill_(1), torch.ones_like(x), torch.full_like(x, 1)):
            assert isinstance(made, DTensor)
            assert made.full_tensor().eq(1).all()
        assert not torch.zeros_like(x).full_tensor().any()  # pyright: ignore

    body()


def test_a_static_argument_is_part_of_what_is_cached_and_scalars_are_not() -> None:
    @on_threads(2)
    def body() -> None:
        x = laid_out(_t(8, 3), kept_mesh((2,)), [Shard(0)])
        for bins in (3, 5, 7):
            assert x.histc(bins).full_tensor().tolist() == _t(8, 3).histc(bins).tolist()  # pyright: ignore
        y = x * 0.5 + 1
        y.add_(x, alpha=0.1)
        before = len(CACHE.entries)
        for step in range(2500):
            y = x * (step / 7) + step
            y.add_(x, alpha=step / 3)
        assert len(CACHE.entries) <= before + 8

    body()
