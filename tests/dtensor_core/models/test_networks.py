"""Networks written for a single device train on a mesh: the batch sharded, or some matrices.

With only the batch sharded, nothing is sent in forward or backward: the loss is a partial sum, and
so are the gradients of the replicated parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dtensor_core import Placement, Replicate, Shard, distribute_module, distribute_tensor
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.networks import (
    Diffusion,
    ExpertByExpert,
    Experts,
    Gpt,
    VisionTransformer,
    encoder_layer,
)
from tests.dtensor_core.models.training import full_copy, same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its inputs (the first `sharded` have a batch dim), and the loss."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Sequence[torch.Tensor]]
    loss: Callable[..., torch.Tensor]
    sharded: int = 1
    silent: bool = True


def causal(length: int) -> torch.Tensor:
    return torch.triu(torch.full((length, length), float("-inf")), 1)


def images() -> Sequence[torch.Tensor]:
    return torch.randn(4, 3, 8, 8), torch.randn(4, 4), torch.randn(4, 3, 8, 8)


def padding() -> torch.Tensor:
    """The last two positions of the second sequence are padding."""
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[1, 4:] = True
    return mask


def squared(model: nn.Module, *inputs: Any, **options: Any) -> torch.Tensor:
    return model(*inputs, **options).pow(2).mean()


def denoised(model: nn.Module, image: Any, time: Any, clean: Any) -> torch.Tensor:
    return F.mse_loss(model(image, time), clean)


CASES = {
    "self-attention": Case(
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda: [torch.randn(4, 6, 16)],
        lambda m, x: m(x, x, x)[0].pow(2).mean(),
    ),
    "attention without weights, masked": Case(
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda: [torch.randn(4, 6, 16), causal(6)],
        lambda m, x, mask: m(x, x, x, attn_mask=mask, need_weights=False)[0].pow(2).mean(),
    ),
    "encoder layer": Case(encoder_layer, lambda: [torch.randn(4, 6, 16)], squared),
    "encoder, masked and padded": Case(
        lambda: nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False),
        lambda: [torch.randn(4, 6, 16), padding(), causal(6)],
        lambda m, x, pad, mask: squared(m, x, mask=mask, src_key_padding_mask=pad, is_causal=False),
        sharded=2,
    ),
    "encoder and decoder": Case(
        lambda: nn.Transformer(16, 4, 1, 2, 32, dropout=0.0, batch_first=True),
        lambda: [torch.randn(4, 6, 16), torch.randn(4, 5, 16), causal(5)],
        lambda m, x, y, mask: squared(m, x, y, tgt_mask=mask, tgt_is_causal=False),
        sharded=2,
    ),
    "diffusion, group norm": Case(
        lambda: Diffusion(nn.GroupNorm(2, 8)), images, denoised, 3, silent=False
    ),
    "diffusion, batch norm": Case(
        lambda: Diffusion(nn.BatchNorm2d(8)), images, denoised, 3, silent=False
    ),
    "experts": Case(Experts, lambda: [torch.randn(4, 6, 16)], squared, silent=False),
    "expert by expert": Case(
        ExpertByExpert, lambda: [torch.randn(4, 6, 16)], squared, silent=False
    ),
    "gpt": Case(
        Gpt,
        lambda: [torch.randint(33, (4, 7)), torch.randint(33, (4, 7))],
        lambda m, x, y: F.cross_entropy(m(x).view(-1, 33), y.view(-1), ignore_index=0),
        sharded=2,
        silent=False,
    ),
    "vision transformer": Case(
        VisionTransformer,
        lambda: [torch.randn(4, 3, 8, 8), torch.randint(10, (4,))],
        lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
        sharded=2,
        silent=False,
    ),
}


def in_double(case: Case) -> tuple[nn.Module, list[torch.Tensor]]:
    """The network and its inputs in double precision, the same each time."""
    torch.manual_seed(0)
    model, inputs = case.make().double(), case.inputs()
    return model, [each.double() if each.is_floating_point() else each for each in inputs]


def steps(
    model: nn.Module, inputs: Sequence[torch.Tensor], case: Case, count: int = 2
) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Train some steps; returns the loss and the gradients of each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = case.loss(model, *inputs)
        loss.backward()
        taken.append(
            (full_copy(loss), {name: full_copy(p.grad) for name, p in model.named_parameters()})
        )
        optimizer.step()
    return taken


def expect_same_steps(taken: Any, expected: Any) -> None:
    for (loss, gradients), (expected_loss, expected_gradients) in zip(taken, expected, strict=True):
        same(loss, expected_loss, 1e-8, "loss")
        for name, gradient in gradients.items():
            same(gradient, expected_gradients[name], 1e-8, name)


def batch_sharded(case: Case, mesh: Any) -> tuple[nn.Module, list[torch.Tensor]]:
    """Replicate the network, and shard its inputs by batch along the first axis."""
    model, inputs = in_double(case)
    rest: list[Placement] = [Replicate()] * (mesh.ndim - 1)
    return distribute_module(model, mesh), [
        distribute_tensor(each, mesh, [Shard(0) if number < case.sharded else Replicate(), *rest])
        for number, each in enumerate(inputs)
    ]


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_network_whose_batch_is_sharded_trains_as_on_one_device(name, shape):
    case = CASES[name]
    expected = steps(*in_double(case), case)
    ranks = torch.Size(shape).numel()
    for taken in run_threads(lambda: steps(*batch_sharded(case, kept_mesh(shape)), case), ranks):
        expect_same_steps(taken, expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.silent])
def test_with_only_the_batch_sharded_nothing_is_sent(name):
    case = CASES[name]

    def body() -> dict[str, int]:
        model, inputs = batch_sharded(case, kept_mesh((2,)))
        with Collectives() as sent:
            case.loss(model, *inputs).backward()
        return dict(sent.counts)

    assert run_threads(body, 2) == [{}, {}]


# Sharded dims on the last axis, by parameter.
COLUMNS_AND_ROWS = {
    "in_proj_weight": 0,
    "in_proj_bias": 0,
    "out_proj.weight": 1,
    "linear1.weight": 0,
    "linear1.bias": 0,
    "linear2.weight": 1,
    "w1": 0,
    "w2": 0,
}


def shard_parameters(_: str, module: nn.Module, mesh: Any) -> None:
    """A partition function that shards the parameters named in `COLUMNS_AND_ROWS`."""
    for name, parameter in list(module.named_parameters()):
        path, _, own = name.rpartition(".")
        dims = [dim for end, dim in COLUMNS_AND_ROWS.items() if name.endswith(end)]
        if dims and not hasattr(parameter, "placements"):
            layout = [Replicate()] * (mesh.ndim - 1) + [Shard(dims[0])]
            placed = nn.Parameter(distribute_tensor(parameter.data, mesh, layout))
            module.get_submodule(path).register_parameter(own, placed)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", ["encoder layer", "encoder and decoder", "experts"])
def test_a_network_whose_matrices_are_sharded_trains_as_on_one_device(name, shape):
    case = CASES[name]
    expected = steps(*in_double(case), case)

    def body() -> Any:
        mesh = kept_mesh(shape)
        model, inputs = in_double(case)
        layout = [*([Shard(0)] * (mesh.ndim - 1)), Replicate()]
        given = [
            distribute_tensor(
                each, mesh, layout if number < case.sharded else [Replicate()] * mesh.ndim
            )
            for number, each in enumerate(inputs)
        ]
        return steps(distribute_module(model, mesh, shard_parameters), given, case)

    for taken in run_threads(body, torch.Size(shape).numel()):
        expect_same_steps(taken, expected)
