"""Parameters with several names stay a single DTensor after all calls, plans and wrappers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from dtensor_core import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from dtensor_core.tied import TiedError

VOCABULARY, SIZE = 12, 8


class Language(nn.Module):
    """A model whose embedding shares the weight of its output layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, SIZE)
        self.hidden = nn.Linear(SIZE, SIZE)
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.embed(tokens))))


TOKENS = torch.arange(10).view(2, 5) % VOCABULARY
PLAN = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


def _trained(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(steps):
        logits: Any = model(TOKENS)
        loss = F.cross_entropy(logits.flatten(0, 1), TOKENS.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in model.state_dict().values()]


def _assert_tied(model: Any) -> None:
    assert model.head.weight is model.embed.weight
    assert isinstance(model.head.weight, DTensor)
    names = [name for name, _ in model.named_parameters()]
    assert names == ["embed.weight", "hidden.weight", "hidden.bias"]
    state = model.state_dict()
    locals_ = [state[f"{name}.weight"].to_local().data_ptr() for name in ("embed", "head")]
    assert locals_[0] == locals_[1]


def _at_once(model: nn.Module, mesh: Any) -> None:
    parallelize_module(model, mesh, PLAN)


def _one_by_one(model: nn.Module, mesh: Any) -> None:
    for name, style in PLAN.items():
        parallelize_module(model, mesh, {name: style})


def _part_by_part(model: Any, mesh: Any) -> None:
    parallelize_module(model.head, mesh, PLAN["head"])
    parallelize_module(model.embed, mesh, PLAN["embed"])


def _tied_again_between(model: Any, mesh: Any) -> None:
    parallelize_module(model.embed, mesh, PLAN["embed"])
    model.head.weight = model.embed.weight
    parallelize_module(model.head, mesh, PLAN["head"])


@pytest.mark.parametrize("way", [_at_once, _one_by_one, _part_by_part, _tied_again_between])
def test_a_plan_keeps_a_tie_and_trains_as_one_device(way: Any) -> None:
    wanted = _trained(Language())

    @on_threads(4)
    def body() -> None:
        model = Language()
        way(model, kept_mesh((4,)))
        _assert_tied(model)
        assert model.embed.weight.placements == (Shard(0),)
        for found, expected in zip(_trained(model), wanted, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    body()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_fsdp_afterwards_keeps_the_tie() -> None:
    wanted = _trained(Language())

    @on_threads(4)
    def body() -> None:
        model, mesh = Language(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], PLAN)
        fully_shard(model, mesh=mesh["dp"])
        _assert_tied(model)
        for found, expected in zip(_trained(model), wanted, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        _assert_tied(model)

    body()


def _shard_heads(name: str, module: nn.Module, mesh: Any) -> None:
    if name == "head":
        weight: Any = module.weight
        module.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))


def _shard_all(name: str, module: nn.Module, mesh: Any) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))


@pytest.mark.parametrize(
    ("partition", "placement"),
    [(None, Replicate()), (_shard_heads, Shard(0)), (_shard_all, Shard(0))],
)
def test_a_distributed_module_keeps_its_ties(partition: Any, placement: Any) -> None:
    with fake_world(4):
        model = distribute_module(Language(), init_device_mesh("cpu", (4,)), partition)
        _assert_tied(model)
        assert model.embed.weight.placements == (placement,)


def test_a_name_that_no_style_has_is_tied_too() -> None:
    with fake_world(4):
        model = Language()
        parallelize_module(model, init_device_mesh("cpu", (4,)), {"embed": RowwiseParallel()})
        assert model.head.weight is model.embed.weight
        assert isinstance(model.head.weight, DTensor)


def test_tied_buffers_stay_one() -> None:
    with fake_world(4):
        model = Language()
        model.embed.register_buffer("table", torch.ones(4))
        model.head.register_buffer("table", model.embed.table)
        distribute_module(model, init_device_mesh("cpu", (4,)))
        assert model.head.table is model.embed.table


def test_parameters_that_were_never_tied_stay_apart() -> None:
    with fake_world(4):
        model = Language()
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        other = copy.deepcopy(model)
        for each in (model, other):
            parallelize_module(each, init_device_mesh("cpu", (4,)), PLAN)
        weights = [model.embed.weight, model.head.weight, other.embed.weight, other.head.weight]
        assert len(set(map(id, weights))) == 4


@pytest.mark.parametrize("at_once", [True, False])
def test_different_layouts_of_a_tied_parameter_are_refused(at_once: bool) -> None:
    styles = {"embed": ColwiseParallel(), "head": ColwiseParallel()}
    with fake_world(4):
        mesh, model = init_device_mesh("cpu", (4,)), Language()
        if not at_once:
            parallelize_module(model, mesh, {"embed": styles.pop("embed")})
        with pytest.raises(TiedError) as caught:
            parallelize_module(model, mesh, styles)
    assert str(caught.value) == (
        "head.weight as f32[12,8] axis0:S(0)\n"
        "  Found: embed.weight, the same parameter, as f32[12,8] axis0:S(1)\n"
        "  Why: a tied parameter is a single tensor with a single layout\n"
        "  Try: give both names the same placements, or untie them before: "
        "module.weight = nn.Parameter(module.weight.detach().clone())"
    )


class Scaled(nn.Module):
    """A 0-dim parameter, below a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))


def _shard_data(name: str, module: nn.Module, mesh: Any) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        placed = distribute_tensor(parameter.data, mesh, [Shard(0)])
        module.register_parameter(key, nn.Parameter(placed))


@pytest.mark.parametrize("partition", [_shard_all, _shard_data])
def test_a_placement_that_a_parameter_can_not_have_is_refused_by_its_name(partition: Any) -> None:
    with fake_world(4), pytest.raises(ValueError, match="Shard") as caught:
        distribute_module(Scaled(), init_device_mesh("cpu", (4,)), partition)
    assert str(caught.value) == (
        "parameter 'block.scale', a tensor of 0 dims placed Shard(dim=0)\n"
        "  Found: a scalar, which has no dim\n"
        "  Try: shard a dim that the tensor has, or use Replicate()"
    )
