"""A view whose result required communication still aliases its base: writes propagate both ways."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor
from dtensor_core.errors import StaleViewError
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

RANKS = 4
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[2:4],
    "select": lambda x: x[1],
    "view": lambda x: x.view(3, 16),
    "chunk": lambda x: x.chunk(3)[1],
    "split": lambda x: x.split([1, 5, 2])[1],
    "unbind": lambda x: x.unbind()[3],
    "slice of a slice": lambda x: x[2:6][1:],
    "transposed slice": lambda x: x[1:5].t()[1:],
    "detached slice": lambda x: x[2:4].detach(),
    "reshaped": lambda x: x.t().view(2, 3, 8)[:, 1:],
}
# The first two overlap themselves and cannot be written to.
READ_ONLY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "spread": lambda x: x[:1].expand(3, 6),
    "windows": lambda x: x.unfold(0, 3, 2),
    "diagonal": lambda x: x.diagonal(),
}


def _full() -> torch.Tensor:
    return torch.arange(48.0, dtype=torch.float64).view(8, 6)


def _sharded(placement: Any = None) -> DTensor:
    return distribute_tensor(_full(), kept_mesh((RANKS,)), [placement or Shard(0)])


def _sent(run: Callable[[], Any]) -> int:
    with Collectives() as issued:
        run()
    return issued.counts.total()


def _same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert isinstance(found, DTensor)
    torch.testing.assert_close(found.full_tensor(), wanted)


@pytest.mark.parametrize("view", [*VIEWS, *READ_ONLY])
def test_views_have_the_values_written_to_their_base(view: str) -> None:
    take = (VIEWS | READ_ONLY)[view]

    @on_threads(RANKS)
    def body() -> None:
        for placement in (Shard(0), Shard(1), Replicate()):
            x, y = _sharded(placement), _full()
            seen, wanted = take(x), take(y)
            for each in (x, y):
                each.mul_(3)
            _same(seen * 2, wanted * 2)
            for each in (x, y):
                each.detach().view(48).add_(1)
            _same(seen, wanted)

    body()


@pytest.mark.parametrize("view", VIEWS)
def test_alternating_writes_keep_tensor_and_view_equal(view: str) -> None:
    @on_threads(RANKS)
    def body() -> None:
        x, y = _sharded(), _full()
        pairs = [(x, y), (VIEWS[view](x), VIEWS[view](y)), (x[1:6], y[1:6])]
        for step in range(2):
            for pair in pairs:
                for each in pair:
                    each.add_(step + 1).mul_(2)
                for mine, wanted in pairs:
                    _same(mine, wanted)

    body()


def test_a_copy_is_fetched_only_after_its_tensor_was_written() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = _sharded()
        view: Any = x[2:4]
        assert _sent(lambda: view.sum()) == 0
        assert _sent(lambda: view.mul_(2)) == 1
        assert _sent(lambda: view.sum()) == 0
        x.add_(1)
        assert _sent(lambda: view.sum()) == 1
        assert _sent(lambda: view.sum()) == 0

    body()


def test_the_local_part_of_a_view_whose_tensor_was_written_is_refused() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = _sharded()
        view: Any = x[2:4]
        x.zero_()
        assert "written since" in repr(view)
        with pytest.raises(StaleViewError, match="take the view again") as error:
            view.to_local()
        assert str(error.value).splitlines()[0] == "the local part of f64[2,6] axis0:S(0)"
        view.redistribute(placements=view.placements)
        assert not view.to_local().any()

    body()


def test_gradients_pass_a_copy_whose_tensor_is_written_after() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        view = y[2:5]
        y.mul_(2)
        (view**2).sum().backward()
        assert x.grad is not None
        return x.grad

    def saved_before(x: torch.Tensor) -> None:
        y = x * 1
        out = (y[2:5] ** 2).sum()
        y.mul_(2)
        out.backward()

    wanted = gradient(_full().requires_grad_())

    @on_threads(RANKS)
    def body() -> None:
        _same(gradient(_sharded().requires_grad_()), wanted)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved_before(_sharded().requires_grad_())

    body()


def test_a_copy_is_stored_and_copied_without_its_tensor() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = _sharded()
        file = io.BytesIO()
        torch.save(x[2:4], file)
        assert file.tell() < 10_000
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        for other in (loaded, pickle.loads(pickle.dumps(x[2:4])), copy.deepcopy(x[2:4])):
            assert type(other) is DTensor
            other.zero_()
            _same(x, _full())

    body()


def test_in_inference_mode_parameters_have_views() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x, y = _sharded().requires_grad_(), _full()
        with torch.inference_mode():
            for take in VIEWS.values():
                _same(take(x), take(y))
            view: Any = x[2:4]
            view.add_(1)
            x.mul_(2)
            _same(view, (y[2:4] + 1) * 2)
            assert not view.is_inference()

    body()


def test_the_class_of_copies_is_equal_to_that_of_dtensors() -> None:
    @on_threads(RANKS)
    def body() -> None:
        view = _sharded()[2:4]
        assert type(view) == DTensor  # noqa: E721
        assert repr(type(view)) == repr(DTensor)

    body()


@pytest.mark.parametrize("number", [2, 2.5, True])
@pytest.mark.parametrize("view", VIEWS)
def test_a_number_is_copied_to_the_tensor_of_a_view(view: str, number: float) -> None:
    full = _full()
    VIEWS[view](full).copy_(number)  # pyright: ignore[reportArgumentType]

    @on_threads(RANKS)
    def body() -> None:
        x = _sharded()
        VIEWS[view](x).copy_(number)  # pyright: ignore[reportArgumentType]
        _same(x, full)

    body()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
def test_a_write_to_a_view_as_another_dtype_reaches_the_tensor(
    dtype: torch.dtype, placement: Any
) -> None:
    full = _full()
    full.view(dtype).add_(1)

    @on_threads(RANKS)
    def body() -> None:
        x = _sharded(placement)
        x.view(dtype).add_(1)
        assert torch.equal(x.full_tensor().view(torch.int64), full.view(torch.int64))

    body()
