"""An operator without a rule is decomposed if that sends less than gathering its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, missing_rule, observe
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.dispatch.special import fallback
from dtensor_core.dispatch.special.fallback import NO_RULE
from dtensor_core.testing import kept_mesh, on_threads, run_threads

library = torch.library.Library("underived", "DEF")
library.define("shift(Tensor self, Tensor other, float by=1.0) -> Tensor")


def _shift(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return self + other * by


library.impl("shift", _shift, "CPU")
library.impl("shift", lambda self, other, by=1.0: torch.empty_like(self), "Meta")
shift: Any = torch.ops.underived.shift.default


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fallback, "_warned", set())
    with missing_rule("replicate"):
        yield
    CACHE.forget(shift)


def _sharded(dim: int) -> DTensor:
    full = torch.arange(64.0).reshape(8, 8)
    return distribute_tensor(full, kept_mesh((4,)), [Shard(dim)], src_data_rank=None)


def _heard(run: Callable[[], Any]) -> tuple[Any, list[observe.Reason]]:
    """Run on four ranks; returns the first rank's result and the announced reasons of all."""
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        results = run_threads(run, 4)
    return results[0], reasons


DERIVED: dict[str, Callable[[Any], Any]] = {
    "rot90": lambda x: torch.rot90(x.unsqueeze(0), 1, (0, 2)),
    "expand_copy": lambda x: torch.expand_copy(x, [2, 8, 8]),
    "view_copy": lambda x: torch.view_copy(x, [8, 2, 4]),
    "unbind_copy": lambda x: torch.unbind_copy(x, 1)[3],
    "dist": lambda x: torch.dist(x, x * 2),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_needs_no_communication_when_taken_apart_has_none(name: str) -> None:
    results, reasons = _heard(lambda: [DERIVED[name](_sharded(0)) for _ in range(2)])
    assert not reasons
    assert all(result.placements != (Replicate(),) for result in results)
    value = run_threads(lambda: DERIVED[name](_sharded(0)).full_tensor(), 4)[0]
    torch.testing.assert_close(value, DERIVED[name](torch.arange(64.0).reshape(8, 8)))


def _known_as(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    monkeypatch.setitem(decomposition_table, shift, function)
    CACHE.forget(shift)


def _reasons(dims: tuple[int, int] = (0, 0), by: float = 1.0) -> list[tuple[str, str]]:
    """Return the communicating operators of a shift and the additions to their reasons.

    Also checks the result.
    """

    def run() -> torch.Tensor:
        return shift(_sharded(dims[0]), _sharded(dims[1]), by).full_tensor()

    value, reasons = _heard(run)
    full = torch.arange(64.0).reshape(8, 8)
    assert torch.equal(value, full + full * by)
    return sorted(
        {(reason.operator, reason.note) for reason in reasons if reason.operator != "redistribute"}
    )


GATHERED = [("underived.shift.default", NO_RULE)]


def test_without_a_decomposition_the_arguments_are_gathered() -> None:
    assert _reasons() == GATHERED


def test_a_decomposition_decides_operator_by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    _known_as(monkeypatch, _shift)
    assert _reasons() == []
    assert [operator for operator, _ in _reasons((0, 1))] == ["aten.add.Tensor"]


def test_one_that_sends_no_less_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def dear(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        both = self.flip((0, 1)), other.flip((0, 1))  # gathers
        return (both[0] + both[1] * by).flip((0, 1))

    _known_as(monkeypatch, dear)
    assert _reasons() == GATHERED


def test_tensors_made_from_sizes_alone_count_as_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        factors = torch.full(self.shape, by, dtype=self.dtype, device=self.device)
        return self + other * factors

    _known_as(monkeypatch, made)
    assert _reasons() == []


def test_one_that_looks_at_values_is_asked_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def branching(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return self + other * by if by < 2 else self + other.clone().mul_(by)

    _known_as(monkeypatch, branching)
    assert _reasons(by=1.5) == []
    assert _reasons(by=2.5) == GATHERED  # writes in place
    assert _reasons(by=1.5) == []


def _drawing(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return self + other * by + torch.rand(self.shape, device=self.device) * 0


def _looking(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return self + other * by if self.sum() > 0 else self


def _of_another_type(self: torch.Tensor, other: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return (self + other * by).double()


@pytest.mark.parametrize("function", [_drawing, _looking, _of_another_type])
def test_one_that_draws_looks_at_data_or_makes_something_else_is_left_out(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _known_as(monkeypatch, function)
    assert _reasons() == GATHERED


def test_the_function_of_a_custom_operator_is_not_run_on_anything_else() -> None:
    seen: list[type] = []

    @torch.library.custom_op("underived::custom", mutates_args=())
    def custom(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        assert not x.is_meta
        return x * 2

    custom.register_fake(torch.empty_like)
    value = run_threads(lambda: custom(_sharded(0)).full_tensor(), 4)[0]
    assert torch.equal(value, 2 * torch.arange(64.0).reshape(8, 8))
    assert seen == [torch.Tensor] * 4


@on_threads(4)
def test_what_is_derived_can_be_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_copy(x, [8, 2, 4]).relu()

    found = torch.compile(function, backend="aot_eager", fullgraph=True)(_sharded(0))
    assert found.placements == (Shard(0),)  # pyright: ignore
    assert torch.equal(found.full_tensor(), function(torch.arange(64.0).reshape(8, 8)))  # pyright: ignore


def test_what_is_derived_has_gradients() -> None:
    def run() -> torch.Tensor:
        x = _sharded(0).requires_grad_()
        torch.view_copy(x, [8, 2, 4]).pow(2).sum().backward()
        assert isinstance(x.grad, DTensor)
        assert x.grad.placements == (Shard(0),)
        return x.grad.full_tensor()

    assert torch.equal(run_threads(run, 4)[0], 2 * torch.arange(64.0).reshape(8, 8))


@on_threads(4)
def test_with_out_it_is_written_where_it_belongs() -> None:
    x = _sharded(0)
    out = torch.zeros_like(x).redistribute(placements=[Shard(1)])
    torch.view_copy(x, [8, 8], out=out)
    assert out.placements == (Shard(1),)
    assert torch.equal(out.full_tensor(), torch.arange(64.0).reshape(8, 8))
