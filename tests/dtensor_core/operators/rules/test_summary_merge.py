"""Reductions, scans and searches along a sharded dim: each rank shares a summary of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtensor_core import DeviceMesh, Partial, Replicate, Shard, init_device_mesh, observe
from dtensor_core.debug import ExplicitRedistributionContext, ImplicitRedistributionError, explain
from dtensor_core.placement import _StridedShard
from dtensor_core.redistribute.partial_combine import Merge
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, WIDTH = 4, 3
VALUE = PLACE = 8


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# The call, the size of a rank's summary per column, and whether the result stays sharded.
CALLS: dict[str, tuple[Callable[[Any], Any], int, bool]] = {
    "max": (lambda x: x.max(0), VALUE + PLACE, False),
    "min": (lambda x: x.min(0, keepdim=True), VALUE + PLACE, False),
    "argmax": (lambda x: x.argmax(0), VALUE + PLACE, False),
    "argmin": (lambda x: x.argmin(0, keepdim=True), VALUE + PLACE, False),
    "aminmax": (lambda x: torch.aminmax(x, dim=0), 2 * VALUE, False),
    "topk": (lambda x: x.topk(3, 0), 3 * (VALUE + PLACE), False),
    "var": (lambda x: x.var(0), 2 * VALUE, False),
    "std": (lambda x: x.std(0, correction=0), 2 * VALUE, False),
    "var_mean": (lambda x: torch.var_mean(x, 0, keepdim=True), 2 * VALUE, False),
    "logsumexp": (lambda x: x.logsumexp(0), VALUE, False),
    "softmax": (lambda x: x.softmax(0), VALUE, True),
    "log_softmax": (lambda x: x.log_softmax(0), VALUE, True),
    "cumsum": (lambda x: x.cumsum(0), VALUE, True),
    "cumprod": (lambda x: x.cumprod(0), VALUE, True),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), VALUE, True),
    "cummax": (lambda x: x.cummax(0), VALUE + PLACE, True),
    "cummin": (lambda x: x.cummin(0), VALUE + PLACE, True),
}
# Of all columns together.
REPLICATED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "argmax of all": (lambda x: x.argmax(), VALUE + PLACE),
    "aminmax of all": (lambda x: torch.aminmax(x), 2 * VALUE),
    "std of all": (lambda x: x.std(), 2 * VALUE),
    "logsumexp of all": (lambda x: x.logsumexp((0, 1), keepdim=True), VALUE),
}


@pytest.mark.parametrize("name", [*CALLS, *REPLICATED])
def test_a_rank_sends_a_row_and_no_more(name: str) -> None:
    call, summary_bytes, stays = CALLS.get(name) or (*REPLICATED[name], False)
    columns = WIDTH if name in CALLS else 1
    with fake_world(RANKS):
        x = laid_out(_t(256, WIDTH), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        plan = explain(call, x)
        found = call(x)
    assert plan.counts() == {"all_gather": 1}
    assert plan.total_bytes == RANKS * columns * summary_bytes
    for result in found if isinstance(found, tuple) else [found]:
        assert result.placements == ((Shard(0) if stays else Replicate()),)


LAYOUTS = {
    "one axis": ((4,), [Shard(0)]),
    "two axes": ((2, 2), [Shard(0), Shard(0)]),
    "another dim by the other axis": ((2, 2), [Shard(1), Shard(0)]),
    "partial sums along the other axis": ((4, 2), [Partial(), Shard(0)]),
    "in blocks": ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
}


@pytest.fixture
def _merged_if_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ranks share summaries whatever the sizes are."""
    monkeypatch.setattr(Merge, "seconds", lambda self, specs: 1e-12)


@pytest.mark.usefixtures("_merged_if_it_can_be")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*CALLS, *REPLICATED])
def test_results_and_gradients_are_those_of_one_device(name: str, layout: str) -> None:
    call = (CALLS.get(name) or REPLICATED[name])[0]
    mesh_shape, placements = LAYOUTS[layout]
    for size in (3, 5, 8):
        x = _t(size, WIDTH).requires_grad_()
        assert_agrees(call, [x], [placements], mesh_shape=mesh_shape)


EQUALS = {
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(0),
    "argmin of all": lambda x: x.argmin(),
    "cummax": lambda x: x.cummax(0),
}


@pytest.mark.usefixtures("_merged_if_it_can_be")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", EQUALS)
def test_of_equal_elements_that_of_one_device_is_found(name: str, dtype: torch.dtype) -> None:
    full = torch.tensor([[2, 0], [1, 1], [2, 0], [0, 1], [2, 1], [0, 0]]).to(dtype)
    lows = torch.full((6, 2), -torch.inf) if dtype.is_floating_point else torch.zeros(6, 2)
    nans = full.clone()
    if dtype.is_floating_point:
        nans[3] = nans[5] = torch.nan

    def body() -> None:
        for mesh, layout in ((kept_mesh((4,)), [Shard(0)]), (kept_mesh((2, 2)), [Shard(0)] * 2)):
            for each in (full, lows.to(dtype), nans):
                found = EQUALS[name](laid_out(each, mesh, layout))
                wanted = EQUALS[name](each)
                if isinstance(found, torch.Tensor):
                    found, wanted = [found], [wanted]
                for one, other in zip(found, wanted, strict=True):
                    torch.testing.assert_close(one.full_tensor(), other, equal_nan=True)

    run_threads(body, RANKS)


def test_the_gradient_of_a_softmax_sends_one_number_a_row() -> None:
    with fake_world(RANKS):
        mesh = init_device_mesh("cpu", (RANKS,))
        x = laid_out(_t(256, WIDTH).requires_grad_(), mesh, [Shard(0)])
        y, g = x.softmax(0), laid_out(_t(256, WIDTH), mesh, [Shard(0)])
        plan = explain(lambda: y.backward(g, retain_graph=True))
        assert plan.counts() == {"all_gather": 1}
        assert plan.total_bytes == RANKS * WIDTH * VALUE


def test_partial_sums_pass_a_cumulative_sum() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = laid_out(_t(5, WIDTH), kept_mesh((RANKS,)), [Partial()])
        with Collectives() as issued:
            y = x.cumsum(0)
        assert issued == {}
        assert y.placements == (Partial(),)
        torch.testing.assert_close(y.full_tensor(), _t(5, WIDTH).cumsum(0))

    body()


def test_what_topk_takes_of_equal_elements_is_up_to_its_kernel() -> None:
    with fake_world(RANKS):
        x = laid_out(_t(256), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        assert explain(lambda: x.topk(2)).total_bytes == RANKS * 2 * (VALUE + PLACE)
        narrow = x.to(torch.bfloat16)
        assert explain(lambda: narrow.topk(2)).total_bytes == 256 * narrow.element_size()


def test_a_scan_in_place_stays_where_it_is() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = laid_out(_t(7, WIDTH), kept_mesh((RANKS,)), [Shard(0)])
        y = x.cumsum_(0)
        assert y is x
        assert x.placements == (Shard(0),)
        torch.testing.assert_close(x.full_tensor(), _t(7, WIDTH).cumsum(0))

    body()


def test_what_is_announced_is_what_is_sent() -> None:
    announced: list[observe.Reason] = []
    with fake_world(RANKS), observe.listening(announced.append):
        x = laid_out(_t(256), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        x.argmax()
    (reason,) = announced
    assert (reason.operator, reason.argument, reason.step) == (
        "aten.argmax.default",
        "self",
        "all_gather",
    )
    assert reason.payload_bytes == RANKS * (VALUE + PLACE)
    assert reason.candidates[0][0] == "S(0) -> R"


def test_an_implicit_merge_is_refused_in_explicit_mode() -> None:
    with fake_world(RANKS):
        x = laid_out(_t(256, 2), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        with (
            ExplicitRedistributionContext(),
            pytest.raises(ImplicitRedistributionError, match=r"self for aten\.cumsum"),
        ):
            x.cumsum(0)


def test_ranks_outside_of_the_mesh_have_empty_results() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = DeviceMesh("cpu", [3, 1])
        x = laid_out(_t(64), mesh, [Shard(0)])
        value, place = x.max(0)
        if mesh.get_coordinate() is not None:
            assert value.full_tensor() == _t(64).max()  # pyright: ignore
            assert place.full_tensor() == _t(64).argmax()  # pyright: ignore

    body()
