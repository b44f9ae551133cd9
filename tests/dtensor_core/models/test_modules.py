"""torch's recurrent and Transformer modules keep sharded samples on their ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import Shard, distribute_module
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import laid_out


def _states(module: Any) -> Any:
    """Initial states of a recurrent module; as DTensors they have a layout."""
    made = torch.zeros(module.num_layers * (2 if module.bidirectional else 1), 8, 6).double()
    return (made, made.clone()) if isinstance(module, nn.LSTM) else made


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(4, 6, 2, batch_first=True), nn.GRU(4, 6, bidirectional=True, batch_first=True)],
    ids=["LSTM", "GRU"],
)
def test_a_recurrent_module_does_not_move_samples(module: Any) -> None:
    module = module.double()
    x, states = torch.randn(8, 5, 4).double(), _states(module)
    wanted = module(x, states)[0]
    module.zero_grad()
    wanted.sin().sum().backward()

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = copy.deepcopy(module)
        mine.zero_grad()
        distribute_module(mine, mesh)
        given = states if isinstance(states, tuple) else (states,)
        start: Any = tuple(laid_out(each, mesh, [Shard(1)]) for each in given)
        with Collectives() as issued:
            found = mine(laid_out(x, mesh, [Shard(0)]), start if len(start) > 1 else start[0])[0]
            found.sin().sum().backward()
        assert issued == {}
        assert found.placements == (Shard(0),)
        torch.testing.assert_close(found.full_tensor(), wanted)
        for got, expected in zip(mine.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(got.grad.full_tensor(), expected.grad)

    body()


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_layer_does_not_move_samples(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double()
    layer.train(training)
    x = torch.randn(8, 5, 8).double()
    with torch.set_grad_enabled(training):
        wanted = layer(x)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = copy.deepcopy(layer)
        distribute_module(mine, mesh)
        with Collectives() as issued, torch.set_grad_enabled(training):
            found = mine(laid_out(x, mesh, [Shard(0)]))
        assert issued == {}
        assert found.placements == (Shard(0),)
        torch.testing.assert_close(found.full_tensor(), wanted)

    body()
