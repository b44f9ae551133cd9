"""Recurrent layers and cells: sharded by batch, they send nothing between time steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

BATCH, TIME = 6, 5  # over four ranks the last one has no sequence

LAYERS: dict[str, nn.Module] = {
    "LSTM": nn.LSTM(4, 3, batch_first=True),
    "LSTM of doubles": nn.LSTM(4, 3, batch_first=True).double(),
    "LSTM both ways, two layers": nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True),
    "LSTM, projected": nn.LSTM(4, 3, batch_first=True, proj_size=2).double(),
    "GRU": nn.GRU(4, 3, 2, batch_first=True),
    "RNN": nn.RNN(4, 3, batch_first=True),
    "RNN of relu, time first": nn.RNN(4, 3, nonlinearity="relu"),
}
CELLS: dict[str, nn.Module] = {
    "LSTMCell": nn.LSTMCell(4, 4),
    "GRUCell": nn.GRUCell(4, 4),
    "RNNCell": nn.RNNCell(4, 4),
}


def _input(module: nn.Module) -> torch.Tensor:
    shape = (BATCH, TIME, 4) if getattr(module, "batch_first", False) else (TIME, BATCH, 4)
    dtype = next(module.parameters()).dtype
    return torch.linspace(-1, 1, BATCH * TIME * 4, dtype=dtype).reshape(shape).requires_grad_()


def _steps(cell: nn.Module, x: Any) -> Any:
    """Run the cell over x [time, batch, features]; returns the last state."""
    state = None
    for step in x.unbind(0):
        state = cell(step, state)
    return state


def _first(made: Any) -> Any:
    return made if isinstance(made, torch.Tensor) else made[0]


def _assert_same(mine: nn.Module, alone: nn.Module, x: Any, given: torch.Tensor) -> None:
    pairs = [(x.grad, given.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(mine.parameters(), alone.parameters(), strict=True)]
    for found, wanted in pairs:
        torch.testing.assert_close(found.full_tensor(), wanted)


@pytest.mark.parametrize("name", [*LAYERS, *CELLS])
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_sequences_of_a_sharded_batch_need_no_communication(name: str) -> None:
    module = copy.deepcopy({**LAYERS, **CELLS}[name])
    run = _steps if name in CELLS else lambda layer, x: layer(x)
    batch = 0 if getattr(module, "batch_first", False) else 1
    given = _input(module)
    wanted = run(module, given)
    _first(wanted).square().sum().backward()

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = distribute_module(copy.deepcopy(module), mesh)
        mine.zero_grad()
        x: Any = distribute_tensor(given.detach(), mesh, [Shard(batch)], src_data_rank=None)
        x.requires_grad_()
        with Collectives() as issued:
            made = run(mine, x)
            _first(made).square().sum().backward()
        assert issued == {}
        assert _first(made).placements == (Shard(0 if name in CELLS else batch),)
        for found, each in zip(
            torch.utils._pytree.tree_leaves(made),
            torch.utils._pytree.tree_leaves(wanted),
            strict=True,
        ):
            torch.testing.assert_close(found.full_tensor(), each)
            assert name in CELLS or found.stride() == each.stride()
        _assert_same(mine, module, x, given)

    body()


@pytest.mark.parametrize("placement", [Shard(1), Shard(2)], ids=["time", "features"])
def test_an_input_sharded_otherwise_is_sharded_by_batch_once(placement: Shard) -> None:
    module = copy.deepcopy(LAYERS["GRU"])
    given = _input(module)
    wanted = module(given)[0]
    wanted.square().sum().backward()

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = distribute_module(copy.deepcopy(module), mesh)
        mine.zero_grad()
        x: Any = distribute_tensor(given.detach(), mesh, [placement], src_data_rank=None)
        x.requires_grad_()
        with Collectives() as issued:
            made = mine(x)[0]
        assert issued == {"all_to_all_single": 1}
        torch.testing.assert_close(made.full_tensor(), wanted)
        made.square().sum().backward()
        _assert_same(mine, module, x, given)

    body()


def test_sharded_weights_are_gathered_once_for_all_steps() -> None:
    module = copy.deepcopy(LAYERS["LSTM"])
    given = _input(module)
    wanted = module(given)[0]
    wanted.square().sum().backward()

    def sharded(name: str, each: nn.Module, mesh: Any) -> None:
        for key, weight in list(each.named_parameters(recurse=False)):
            setattr(each, key, nn.Parameter(distribute_tensor(weight.data, mesh, layout)))

    layout = [Replicate(), Shard(0)]

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        mine = distribute_module(copy.deepcopy(module), mesh, sharded)
        x: Any = distribute_tensor(given.detach(), mesh, [Shard(0), Shard(0)], src_data_rank=None)
        x.requires_grad_()
        with Collectives() as issued:
            made = mine(x)[0]
        assert issued == {"all_gather_into_tensor": 4}
        torch.testing.assert_close(made.full_tensor(), wanted)
        with Collectives() as issued:
            made.square().sum().backward()
        assert all(p.grad.placements[1] == Shard(0) for p in mine.parameters())  # pyright: ignore
        _assert_same(mine, module, x, given)

    body()


def test_layers_that_drop_out_draw_what_one_device_draws() -> None:
    module = nn.LSTM(4, 3, 2, batch_first=True, dropout=0.5)
    given = _input(module)
    torch.manual_seed(1)
    wanted = module(given)[0]

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = distribute_module(copy.deepcopy(module), mesh)
        x = distribute_tensor(given.detach(), mesh, [Shard(0)], src_data_rank=None)
        torch.manual_seed(1)
        made: Any = mine(x)[0]
        torch.testing.assert_close(made.full_tensor(), wanted)

    body()


def test_a_hook_may_make_the_input_a_dtensor() -> None:
    module = LAYERS["RNN"]
    given = _input(module).detach()

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        mine = distribute_module(
            copy.deepcopy(module),
            mesh,
            input_fn=lambda _, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Shard(0)]),
        )
        mine_x = distribute_tensor(given, mesh, [Shard(0)], src_data_rank=None).to_local()
        torch.testing.assert_close(mine(mine_x)[0].full_tensor(), module(given)[0])

    body()


def test_a_plain_state_that_somebody_gave_is_refused() -> None:
    """It may differ between ranks, although its numbers are zeros here."""
    module = LAYERS["GRU"]

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        mine = distribute_module(copy.deepcopy(module), mesh)
        x = distribute_tensor(_input(module).detach(), mesh, [Shard(0)], src_data_rank=None)
        with pytest.raises(MixedTensorError):
            mine(x, torch.zeros(2, BATCH, 3))

    body()


def test_modules_of_plain_tensors_are_as_ever() -> None:
    layer, x = nn.LSTM(4, 3), torch.ones(5, 2, 4)
    assert torch.equal(torch.compile(layer, backend="eager")(x)[0], layer(x)[0])
    traced = torch.fx.symbolic_trace(nn.Sequential(layer)).graph
    assert len(traced.find_nodes(op="call_module")) == 1
