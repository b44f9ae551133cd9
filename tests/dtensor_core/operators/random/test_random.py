"""The law of random operators: on any layout, the full result and the state are one device's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
)
from dtensor_core.dispatch.special.fallback import MissingRuleWarning
from dtensor_core.errors import RuleError
from dtensor_core.experimental import implicit_replication
from dtensor_core.testing import kept_mesh, run_threads

R, S0, S1 = Replicate(), Shard(0), Shard(1)
# 4 ranks; 1-D and 2-D meshes, also both axes on one dim, and in blocks.
LAYOUTS: list[tuple[tuple[int, ...], list[Placement]]] = [
    ((4,), [R]),
    ((4,), [S0]),
    ((4,), [S1]),
    ((2, 2), [S0, S1]),
    ((2, 2), [S1, R]),
    ((2, 2), [S0, S0]),
    ((2, 2), [_StridedShard(0, split_factor=2), S0]),
]
SHAPES = [(8, 6), (7, 5), (3, 33), (1, 4), (0, 3)]  # even, uneven, empty shards, empty

Sampled = Callable[[torch.Tensor], torch.Tensor]


def value(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 1))


def chance(x: torch.Tensor) -> torch.Tensor:
    """Values in [0.125, 0.875] with the same bits wherever they are computed."""
    return x.clamp(-3, 3) / 8 + 0.5


def _in_place(name: str, *args: Any, dtype: torch.dtype | None = None) -> Sampled:
    def run(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.empty_like(x, dtype=dtype), name)(*args)

    return run


def _initialised(name: str, *args: Any) -> Sampled:
    def run(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.init, name)(torch.nn.Parameter(torch.empty_like(x)), *args).detach()

    return run


def _dropout_in_place(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.clone(), 0.4, inplace=True)


def _channels(ndim: int) -> Sampled:
    """dropout1d and its variants, on [*x.shape, 2, ...]."""

    def run(x: torch.Tensor) -> torch.Tensor:
        images = x.reshape(*x.shape, *(1,) * ndim).expand(*x.shape, *(2,) * ndim)
        return getattr(F, f"dropout{ndim}d")(images.contiguous(), 0.4)

    return run


def _bernoulli_in_place(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.bool).bernoulli_(chance(x))


ELEMENTWISE: dict[str, Sampled] = {
    "normal_": _in_place("normal_", 1.0, 2.0),
    "normal_ f64": _in_place("normal_", 1.0, 2.0, dtype=torch.float64),
    "normal_ bf16": _in_place("normal_", dtype=torch.bfloat16),
    "normal_ c64": _in_place("normal_", dtype=torch.complex64),
    "uniform_": _in_place("uniform_", 1.0, 2.0),
    "uniform_ f16": _in_place("uniform_", dtype=torch.float16),
    "bernoulli_": _in_place("bernoulli_", 0.3),
    "bernoulli_ bool": _in_place("bernoulli_", 0.3, dtype=torch.bool),
    "bernoulli_ tensor": _bernoulli_in_place,
    "exponential_": _in_place("exponential_", 2.0),
    "cauchy_": _in_place("cauchy_"),
    "geometric_": _in_place("geometric_", 0.4),
    "log_normal_": _in_place("log_normal_"),
    "log_normal_ f64": _in_place("log_normal_", dtype=torch.float64),
    "random_": _in_place("random_"),
    "random_ i64": _in_place("random_", dtype=torch.int64),
    "random_ to": _in_place("random_", 17),
    "random_ from to": _in_place("random_", 3, 17, dtype=torch.uint8),
    "random_ wide": _in_place("random_", 1 << 40, dtype=torch.int64),
    "rand_like": torch.rand_like,
    "rand_like f64": lambda x: torch.rand_like(x, dtype=torch.float64),
    "randn_like": torch.randn_like,
    "randn_like bf16": lambda x: torch.randn_like(x, dtype=torch.bfloat16),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "randint_like low": lambda x: torch.randint_like(x, 3, 9, dtype=torch.int64),
    "randn out": lambda x: torch.randn(x.shape, out=torch.empty_like(x)),
    "new_empty": lambda x: x.new_empty(x.shape).uniform_(),
    "bernoulli": lambda x: torch.bernoulli(chance(x)),
    "bernoulli f64": lambda x: torch.bernoulli(chance(x).double()),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.3),
    "normal of tensors": lambda x: torch.normal(x, chance(x)),
    "normal of mean": lambda x: torch.normal(x, 2.0),
    "normal of std": lambda x: torch.normal(1.0, chance(x)),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout in place": _dropout_in_place,
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "native_dropout mask": lambda x: torch.native_dropout(x, 0.4, True)[1],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.4, True),
    "feature_alpha_dropout": lambda x: torch.feature_alpha_dropout(x, 0.4, True),
    "dropout1d": _channels(1),
    "dropout2d": _channels(2),
    "dropout3d": _channels(3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu_(x.clone(), training=True),
    "gumbel_softmax hard": lambda x: F.gumbel_softmax(x, hard=True, dim=-1),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=-1),
    **{
        f"init.{name}": _initialised(name, *args)
        for name, args in {
            "uniform_": (-1.0, 1.0),
            "normal_": (),
            "trunc_normal_": (0.0, 1.0, -1.0, 1.5),
            "xavier_uniform_": (),
            "xavier_normal_": (),
            "kaiming_uniform_": (),
            "kaiming_normal_": (),
        }.items()
    },
}
# Those that draw as often as values require, or a row at a time; on non-empty rows.
BY_VALUE: dict[str, Sampled] = {
    "multinomial": lambda x: torch.multinomial(chance(x), 3),
    "multinomial of one": lambda x: torch.multinomial(chance(x), 1),
    "multinomial replaced": lambda x: torch.multinomial(chance(x), 13, replacement=True),
    "multinomial of a row": lambda x: torch.multinomial(chance(x).sum(0), 2),
    "poisson": lambda x: torch.poisson(chance(x) * 8),
    "binomial": lambda x: torch.binomial((x * 0 + 9), chance(x)),
    "_standard_gamma": lambda x: torch._standard_gamma(chance(x) + 1),
    "_sample_dirichlet": lambda x: torch._sample_dirichlet(chance(x) + 1),
    "randperm out": lambda x: torch.randperm(
        x.shape[0], out=torch.empty_like(x[:, 0].contiguous(), dtype=torch.int64)
    ),
    "init.orthogonal_": _initialised("orthogonal_"),
    "init.eye_": _initialised("eye_"),
}


Layout = tuple[tuple[int, ...], list[Placement]]


def on_ranks(
    sample: Sampled, xs: list[torch.Tensor], layouts: list[Layout]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield value, full result and final generator state for each value, layout and rank."""

    def body() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        found = []
        for mesh_shape, placements in layouts:
            mesh = kept_mesh(mesh_shape)
            for x in xs:
                shared = distribute_tensor(x, mesh, placements, src_data_rank=None)
                torch.manual_seed(0)
                result = sample(shared)
                state = torch.get_rng_state()
                assert isinstance(result, DTensor)
                found.append((x, result.full_tensor(), state))
        return found

    for results in run_threads(body, 4):
        yield from results


def on_one_device(sample: Sampled, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sample(x), torch.get_rng_state()


def check(sample: Sampled, xs: list[torch.Tensor], layouts: list[Layout] = LAYOUTS) -> None:
    one_device = {id(x): on_one_device(sample, x) for x in xs}
    for x, result, state in on_ranks(sample, xs, layouts):
        expected, expected_state = one_device[id(x)]
        torch.testing.assert_close(result, expected, equal_nan=True)
        assert torch.equal(state, expected_state)


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Silence warnings: operators around the random operator may lack a rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingRuleWarning)
        yield


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_any_layout_gives_the_numbers_of_one_device(name: str):
    # Empty tensors have no fan-in, and empty rows no softmax.
    fits = [s for s in SHAPES if 0 not in s or not ("init" in name or "softmax" in name)]
    check(ELEMENTWISE[name], [value(*shape) for shape in fits])


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("name", BY_VALUE)
def test_what_depends_on_values_gives_the_numbers_of_one_device(name: str):
    check(BY_VALUE[name], [value(*shape) for shape in [(8, 6), (5, 3), (7, 7)]])


SAMPLES: dict[str, Sampled] = {
    "Normal": lambda x: D.Normal(x, chance(x)).sample(),
    "Normal rsample": lambda x: D.Normal(x, chance(x)).rsample(),
    "Uniform": lambda x: D.Uniform(x, x + 1).sample(),
    "Bernoulli": lambda x: D.Bernoulli(chance(x)).sample(torch.Size((2,))),
    "Categorical": lambda x: D.Categorical(chance(x)).sample(torch.Size((2,))),
    "Exponential": lambda x: D.Exponential(chance(x)).sample(),
    "Gamma": lambda x: D.Gamma(chance(x) + 1, chance(x)).sample(),
    "Beta": lambda x: D.Beta(chance(x) + 1, chance(x)).sample(),
    "Dirichlet": lambda x: D.Dirichlet(chance(x)).sample(),
    "Poisson": lambda x: D.Poisson(chance(x) * 8).sample(),
    "Geometric": lambda x: D.Geometric(chance(x)).sample(),
    "Laplace": lambda x: D.Laplace(x, chance(x)).sample(),
    "Gumbel": lambda x: D.Gumbel(x, chance(x)).sample(),
    "LogNormal": lambda x: D.LogNormal(x, chance(x)).sample(),
    "Cauchy": lambda x: D.Cauchy(x, chance(x)).sample(),
    "StudentT": lambda x: D.StudentT(chance(x) + 3).sample(),
}


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("name", SAMPLES)
def test_distributions_sample_as_on_one_device(name: str):
    def sample(x: torch.Tensor) -> torch.Tensor:
        with implicit_replication():
            return SAMPLES[name](x)

    layouts: list[Layout] = [((4,), [S0]), ((2, 2), [R, S1])]
    check(sample, [value(8, 6), value(7, 5)], layouts)


def test_drawing_like_a_partial_tensor_uses_its_shape_only():
    def body() -> None:
        mesh = kept_mesh((2,))
        pending = DTensor.from_local(torch.ones(4, 3), mesh, [Partial()])
        torch.manual_seed(0)
        drawn = torch.rand_like(pending)
        assert drawn.placements == (R,)
        torch.manual_seed(0)
        assert torch.equal(drawn.to_local(), torch.rand(4, 3))
        torch.manual_seed(0)
        kept = F.dropout(pending, 0.5)
        torch.manual_seed(0)
        torch.testing.assert_close(kept.full_tensor(), F.dropout(torch.full((4, 3), 2.0), 0.5))

    run_threads(body, 2)


def test_out_of_a_pending_reduction_is_refused_on_all_ranks():
    def body() -> str:
        pending = DTensor.from_local(torch.ones(4), kept_mesh((2,)), [Partial()])
        with pytest.raises(RuleError) as raised:
            torch.randperm(4, out=pending)
        return str(raised.value)

    assert set(run_threads(body, 2)) == {
        "aten.randperm.out to write to f32[4] axis0:P(sum)\n"
        "  Found: partial sums that are not reduced yet\n"
        "  Why: the written values would be summed over the ranks\n"
        "  Try: write to a tensor that is Replicate or Shard"
    }


GRADIENTS = ("dropout", "native_dropout", "alpha_dropout", "dropout2d", "rrelu", "gumbel_softmax")


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_see_the_same_masks(name: str):
    sample = ELEMENTWISE[name]

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        sample(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    check(gradient, [value(8, 6), value(7, 5)])
