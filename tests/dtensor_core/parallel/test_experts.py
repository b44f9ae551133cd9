"""`ExpertParallel` and `ExpertTensorParallel`: forward and gradients match a single device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor
from dtensor_core.parallel import ExpertParallel, ExpertTensorParallel, parallelize_module
from dtensor_core.parallel.base import StyleInputError, UnsupportedModuleError
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.counting import Collectives

DIM, HIDDEN = 6, 8


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=dice, dtype=torch.float64)


class Sorted(nn.Module):
    """Experts on tokens sorted by expert; `counts` are the tokens per expert."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(numbers(experts, DIM, HIDDEN))
        self.w2 = nn.Parameter(numbers(experts, HIDDEN, DIM))

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """[T, D] and [E] -> [T, D]."""
        parts = tokens.split(counts.tolist())
        pairs = zip(self.w1, self.w2, strict=True)
        return torch.cat(
            [torch.tanh(x @ w1) @ w2 for x, (w1, w2) in zip(parts, pairs, strict=True)]
        )


class Chosen(Sorted):
    """The same, called as transformers calls experts."""

    def forward(
        self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, D], [T, K] and [T, K] -> [T, D]."""
        out = torch.zeros_like(tokens)
        for number, (w1, w2) in enumerate(zip(self.w1, self.w2, strict=True)):
            weight = (weights * (chosen == number)).sum(1, keepdim=True)
            out = out + weight * (torch.tanh(tokens @ w1) @ w2)
        return out


class Either(Sorted):
    """The same, with optional counts."""

    def forward(self, tokens: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
        """[T, D] and [E] -> [T, D]."""
        return tokens if counts is None else super().forward(tokens, counts)


class Mixture(nn.Module):
    """A router and experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, experts, bias=False).double()
        self.gate.weight.data = numbers(experts, DIM, seed=7)
        self.experts = Chosen(experts)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T, D] -> [T, D]."""
        best, chosen = self.gate(tokens).softmax(-1).topk(2, dim=-1)
        return self.experts(tokens, weights=best, chosen=chosen)


def full(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


COUNTS = {
    "even": [[2, 2, 2, 2], [2, 2, 2, 2]],
    "uneven": [[5, 0, 1, 3], [1, 2, 0, 0]],
    "an expert without tokens": [[1, 0, 2, 2], [3, 0, 1, 1]],
    "a rank whose experts get nothing": [[4, 1, 0, 0], [2, 2, 0, 0]],
    "a rank without tokens": [[0, 0, 0, 0], [3, 1, 1, 2]],
    "experts that ranks can't share evenly": [[1, 2, 0, 3, 1], [0, 1, 4, 1, 2]],
}


@pytest.mark.parametrize("name", COUNTS)
def test_tokens_sorted_by_expert_travel_to_them_and_back(name: str) -> None:
    counts = torch.tensor(COUNTS[name])
    ranks, experts = counts.shape
    tokens = [numbers(int(each.sum()), DIM, seed=n) for n, each in enumerate(counts)]
    wanted, gradients, alone = [], [], Sorted(experts)
    for mine, each in zip(tokens, counts, strict=True):
        x = mine.clone().requires_grad_()
        wanted.append(alone(x, each))
        (wanted[-1] ** 2).sum().backward()
        gradients.append(x.grad)

    def body() -> None:
        mesh = kept_mesh((ranks,))
        me = mesh.get_local_rank()
        module = parallelize_module(Sorted(experts), mesh, ExpertParallel())
        x = tokens[me].clone().requires_grad_()
        with Collectives() as sent:
            found = module(x, counts[me])
        assert sent.counts == {"all_to_all_single": 3}, sent.counts
        (found**2).sum().backward()
        torch.testing.assert_close(found, wanted[me])
        torch.testing.assert_close(x.grad, gradients[me])
        for key, each in module.named_parameters():
            assert each.placements == (Shard(0),)
            assert isinstance(each, nn.Parameter)
            torch.testing.assert_close(full(each.grad), alone.get_parameter(key).grad)

    run_threads(body, ranks)


def _mixture_step(module: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
    x = tokens.clone().requires_grad_()
    out = module(x)
    (out**2).sum().backward()
    return out, x.grad


@pytest.mark.parametrize(("ranks", "experts"), [(2, 4), (2, 5), (4, 4), (3, 7)])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_tokens_that_all_ranks_have_are_shared_out(ranks: int, experts: int, rows: int) -> None:
    tokens, alone = numbers(rows, DIM), Mixture(experts)
    wanted, gradient = _mixture_step(alone, tokens)

    def body() -> None:
        module = Mixture(experts)
        style = ExpertParallel(input_layouts=Replicate())
        parallelize_module(module, kept_mesh((ranks,)), {"experts": style})
        found, mine = _mixture_step(module, tokens)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, gradient)
        for key, each in module.named_parameters():
            torch.testing.assert_close(full(each.grad), alone.get_parameter(key).grad)

    run_threads(body, ranks)


@pytest.mark.parametrize("sizes", [(3, 5), (0, 4), (1, 1)])
def test_tokens_of_each_rank_get_their_experts_and_their_router_its_gradient(
    sizes: Sequence[int],
) -> None:
    tokens = [numbers(size, DIM, seed=n) for n, size in enumerate(sizes)]
    alone = Mixture(4)
    wanted = [_mixture_step(alone, each) for each in tokens]

    def body() -> torch.Tensor:
        mesh = kept_mesh((2,))
        me = mesh.get_local_rank()
        module = parallelize_module(Mixture(4), mesh, {"experts": ExpertParallel()})
        found, mine = _mixture_step(module, tokens[me])
        torch.testing.assert_close(found, wanted[me][0])
        torch.testing.assert_close(mine, wanted[me][1])
        for key in ("experts.w1", "experts.w2"):
            given = module.get_parameter(key).grad
            torch.testing.assert_close(full(given), alone.get_parameter(key).grad)
        return module.get_parameter("gate.weight").grad

    # The router is data parallel here: each rank has the gradient of its own tokens.
    torch.testing.assert_close(sum(run_threads(body, 2)), alone.gate.weight.grad)


def _sliced(mesh: Any, experts: int = 4) -> Mixture:
    module = Mixture(experts)
    for name, dim in (("w1", 2), ("w2", 1)):
        data = distribute_tensor(getattr(module.experts, name).detach(), mesh, [Shard(dim)])
        setattr(module.experts, name, nn.Parameter(data))
    return module


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_slices_of_experts_give_router_and_tokens_the_gradients_of_one_device(ranks: int) -> None:
    tokens, alone = numbers(9, DIM), Mixture(4)
    wanted, gradient = _mixture_step(alone, tokens)

    def body() -> None:
        mesh = kept_mesh((ranks,))
        module = parallelize_module(_sliced(mesh), mesh, {"experts": ExpertTensorParallel()})
        found, mine = _mixture_step(module, tokens)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, gradient)
        for key, each in module.named_parameters():
            torch.testing.assert_close(full(each.grad), alone.get_parameter(key).grad)

    run_threads(body, ranks)


class _ScoresWithReplicatedGradient(ExpertTensorParallel):
    """Sets gradient placements of tokens only, like plans that pass scores as plain tensors."""

    def enter(self, module: nn.Module, args: Any, kwargs: Any, mesh: Any) -> Any:
        tokens, *rest = args
        crossed = DTensor.from_local(tokens, mesh, [Replicate()]).to_local(
            grad_placements=[Partial()]
        )
        return (crossed, *rest), kwargs, None


def test_scores_whose_gradient_is_taken_for_replicated_give_the_router_a_wrong_one() -> None:
    tokens, alone = numbers(9, DIM), Mixture(4)
    wanted, _ = _mixture_step(alone, tokens)
    right = alone.gate.weight.grad

    def body() -> tuple[float, torch.Tensor]:
        mesh = kept_mesh((4,))
        module = parallelize_module(
            _sliced(mesh), mesh, {"experts": _ScoresWithReplicatedGradient()}
        )
        found, _ = _mixture_step(module, tokens)
        torch.testing.assert_close(found, wanted)  # forward does not show the error
        mine = module.get_parameter("gate.weight").grad
        assert mine is not None
        return float((mine - right).norm() / right.norm()), mine

    errors, gradients = zip(*run_threads(body, 4), strict=True)
    assert min(errors) > 0.3
    assert not torch.allclose(gradients[0], gradients[1])  # ranks diverge
    torch.testing.assert_close(sum(gradients), right)  # each had its part of the sum


def test_what_a_style_cannot_do_is_refused() -> None:
    def body() -> None:
        mesh = kept_mesh((4,))
        with pytest.raises(UnsupportedModuleError, match=r"; ranks get \[\(2, 2, 1, 0\)\]"):
            parallelize_module(Sorted(5), mesh, ExpertParallel())
        with pytest.raises(UnsupportedModuleError, match="parameter w1, which is replicated"):
            parallelize_module(Sorted(4), mesh, ExpertTensorParallel())
        with pytest.raises(
            UnsupportedModuleError, match="parameters that already have another layout"
        ):
            parallelize_module(_sliced(mesh).experts, mesh, ExpertParallel())
        module = parallelize_module(Either(4), mesh, ExpertParallel())
        with pytest.raises(StyleInputError, match=r"\(tokens, counts\) or"):
            module(numbers(4, DIM))
        assert all(isinstance(each, DTensor) for each in module._parameters.values())

    run_threads(body, 4)


def test_a_forward_that_raises_gives_the_parameters_back() -> None:
    def body() -> None:
        mesh = kept_mesh((2,))
        module = parallelize_module(Sorted(4), mesh, ExpertParallel())
        with pytest.raises(RuntimeError):
            module(numbers(4, DIM + 1), torch.tensor([1, 1, 1, 1]))
        assert all(isinstance(each, DTensor) for each in module._parameters.values())
        assert module(numbers(4, DIM), torch.tensor([1, 1, 1, 1])).shape == (4, DIM)

    run_threads(body, 2)
