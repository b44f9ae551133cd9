"""Copies, pickles, state dicts and conversions of DTensors, and of modules that contain them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.works_with.layouts import LAYOUTS, assert_close, model, numbers, parallel

INPUT = numbers(3, 6)


def _through_pickle(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


def _through_torch(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@contextmanager
def _swapping(swap: bool) -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("through", [copy.deepcopy, _through_pickle, _through_torch])
def test_the_states_of_a_model_and_its_optimizer_come_back(through: Callable[[Any], Any]) -> None:
    @on_threads(2)
    def body() -> None:
        first, second = parallel(kept_mesh((2,))), parallel(kept_mesh((2,)))
        optimizer = torch.optim.AdamW(first.parameters())
        first(INPUT).sum().backward()
        optimizer.step()
        state = through({"model": first.state_dict(), "optimizer": optimizer.state_dict()})
        second.load_state_dict(state["model"])
        other = torch.optim.AdamW(second.parameters())
        other.load_state_dict(state["optimizer"])
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            assert two.placements == one.placements
            assert_close(two, one.full_tensor())
            assert_close(other.state[two]["exp_avg"], optimizer.state[one]["exp_avg"].full_tensor())

    body()


def test_a_copied_module_has_parameters_and_gradients_of_its_own() -> None:
    @on_threads(2)
    def body() -> None:
        first = parallel(kept_mesh((2,)))
        first(INPUT).sum().backward()
        second = copy.deepcopy(first)
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            assert isinstance(two, nn.Parameter)
            assert isinstance(two, DTensor)
            assert two.to_local().data_ptr() != one.to_local().data_ptr()
            assert_close(two.grad, one.grad.full_tensor())

    body()


@pytest.mark.parametrize(
    "how", [{"mmap": True}, {"map_location": "cpu"}, {"map_location": "meta"}], ids=str
)
def test_a_parameter_is_loaded_as_a_parameter(how: dict[str, Any], tmp_path: Path) -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        saved = nn.Parameter(distribute_tensor(numbers(8, 4), mesh, [Shard(0)]))
        torch.save(saved, tmp_path / "parameter")
        loaded = torch.load(tmp_path / "parameter", weights_only=True, **how)
        assert isinstance(loaded, nn.Parameter)
        assert loaded.requires_grad
        assert isinstance(loaded, DTensor)
        assert loaded.placements == (Shard(0),)
        local = loaded.to_local()
        assert loaded.device == local.device
        assert local.is_meta == ("meta" in how.values())


@pytest.mark.parametrize("swap", [False, True])
def test_a_plain_state_dict_loads_into_dtensors(swap: bool) -> None:
    state = {name: value + 1 for name, value in model().state_dict().items()}

    @on_threads(2)
    def body() -> None:
        mine = parallel(kept_mesh((2,)))
        mine.load_state_dict(state)
        assert mine[0].weight.placements == (Shard(0),)
        for name, parameter in mine.named_parameters():
            assert_close(parameter, state[name])
        with pytest.raises(RuntimeError, match="Missing key"):
            mine.load_state_dict({"0.weight": state["0.weight"]})
        with pytest.raises(RuntimeError, match="size mismatch"):
            mine.load_state_dict({"0.weight": torch.zeros(8, 7)}, strict=False)

    with _swapping(swap):
        body()


def test_a_state_dict_of_dtensors_is_assigned() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        first, second = parallel(mesh), parallel(mesh)
        state = {name: value.detach().clone() for name, value in first.state_dict().items()}
        second.load_state_dict(state, assign=True)
        weight = second[0].weight
        assert isinstance(weight, nn.Parameter)
        assert weight.to_local().data_ptr() == state["0.weight"].to_local().data_ptr()


@pytest.mark.parametrize("swap", [False, True])
def test_a_module_changes_its_dtype(swap: bool) -> None:
    with _swapping(swap), fake_world(4):
        mine = parallel(init_device_mesh("cpu", (4,)))
        for convert, dtype in (
            (lambda: mine.to(torch.float32), torch.float32),
            (mine.half, torch.float16),
            (mine.bfloat16, torch.bfloat16),
            (mine.double, torch.float64),
        ):
            convert()
            for parameter in mine.parameters():
                assert (parameter.dtype, parameter.to_local().dtype) == (dtype, dtype)
                assert isinstance(parameter, nn.Parameter)
            assert mine[0].weight.placements == (Shard(0),)


def test_a_model_made_without_storage_is_filled_later() -> None:
    @on_threads(2)
    def body() -> None:
        with torch.device("meta"):
            plain = model()
        mine = parallel(kept_mesh((2,)), plain)
        assert mine[0].weight.to_local().is_meta
        mine.to_empty(device="cpu")
        assert mine[0].weight.to_local().shape == (4, 6)
        mine.load_state_dict(model().state_dict())
        assert_close(mine(INPUT), model()(INPUT))
        mine[0].reset_parameters()
        mine(INPUT).sum().backward()

    body()


def test_the_data_of_a_parameter_is_replaced() -> None:
    full = numbers(8, 4)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        parameter: Any = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
        for layout, dtype in ((Shard(0), torch.float64), (Replicate(), torch.float32)):
            other = distribute_tensor(full.to(dtype) + 1, mesh, [layout])
            parameter.data = other
            assert (parameter.placements, parameter.dtype) == ((layout,), dtype)
            assert parameter.to_local().data_ptr() == other.to_local().data_ptr()
            assert_close(parameter * 2, full.to(dtype) * 2 + 2)
        parameter.data.add_(1)
        assert_close(parameter, full.float() + 2)
        with pytest.raises(MixedTensorError, match="the layout of a plain tensor on the mesh"):
            parameter.data = torch.zeros(8, 4)

    body()


def test_swapped_tensors_have_each_others_layouts() -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        one: Any = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
        two: Any = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
        torch.utils.swap_tensors(one, two)
        assert (one.placements, two.placements) == ((Replicate(),), (Shard(0),))
        assert (one + 1).to_local().equal(torch.full((4,), 2.0))


class _Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def _twice(layer: nn.Linear) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", _Twice())


@pytest.mark.parametrize(
    "change", [_twice, parametrizations.weight_norm, parametrizations.spectral_norm]
)
def test_a_parametrization_of_shards_is_that_of_the_full_tensor(
    change: Callable[[Any], Any],
) -> None:
    def run(weight: torch.Tensor, given: torch.Tensor) -> list[Any]:
        layer = nn.Linear(6, 8, bias=False)
        layer.weight = nn.Parameter(weight)
        torch.manual_seed(3)
        changed = change(layer)
        out = changed(given)
        (out**2).sum().backward()
        return [out, *(parameter.grad for parameter in changed.parameters())]

    wanted = run(numbers(8, 6), INPUT)

    @on_threads(3)
    def body() -> None:
        mesh = kept_mesh((3,))
        for layout in LAYOUTS:
            weight = distribute_tensor(numbers(8, 6), mesh, [layout])
            assert_close(run(weight, distribute_tensor(INPUT, mesh)), wanted)

    body()


def test_parameters_become_a_vector_and_parameters_again() -> None:
    full_tensors = [numbers(4, 2), numbers(8)]

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        mine = [nn.Parameter(distribute_tensor(each, mesh, [Shard(0)])) for each in full_tensors]
        vector = nn.utils.parameters_to_vector(mine)
        assert_close(vector, torch.cat([each.flatten() for each in full_tensors]))
        nn.utils.vector_to_parameters(vector * 2, mine)
        assert_close(mine, [each * 2 for each in full_tensors])

    body()
