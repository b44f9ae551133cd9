"""Comparison of a function with its compiled form: results, gradients, and in-place writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from dtensor_core import DTensor

needs_cpp = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor compiles C++ on CPU, and there is no C++ compiler",
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Reset dynamo around a test, because ranks and worlds change between tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    backend: str = "aot_eager",
    fullgraph: bool = True,
    **options: Any,
) -> None:
    """Assert that compiling a function changes neither results nor layouts nor gradients."""
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph, **options)
    plainly, traced = [_fresh(each) for each in arguments], [_fresh(each) for each in arguments]
    expected, found = _tensors(function(*plainly)), _tensors(compiled(*traced))
    assert len(expected) == len(found)
    for eager, got in zip(expected, found, strict=True):
        _same(eager, got)
    if any(each.requires_grad for each in expected):
        _squares(expected).backward()
        _squares(found).backward()
    for eager, got in zip(plainly, traced, strict=True):
        if isinstance(eager, torch.Tensor):
            _same(eager, got)
            assert (eager.grad is None) == (got.grad is None)
            if eager.grad is not None and got.grad is not None:
                _same(eager.grad, got.grad)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full values of a tensor."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _same(eager: torch.Tensor, got: torch.Tensor) -> None:
    assert isinstance(eager, DTensor) is isinstance(got, DTensor)
    assert eager.requires_grad == got.requires_grad
    if isinstance(eager, DTensor):
        assert isinstance(got, DTensor)
        assert got.placements == eager.placements
        assert _steps(got._local_tensor) == _steps(eager._local_tensor)
    assert got.stride() == eager.stride()
    torch.testing.assert_close(full(got), full(eager))


def _steps(tensor: torch.Tensor) -> list[int]:
    """Return the strides of dimensions with several elements; others say nothing."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _fresh(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone().requires_grad_(argument.requires_grad)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A loss whose gradients differ between elements."""
    losses = [
        (each.full_tensor() if isinstance(each, DTensor) else each).square().sum()
        for each in tensors
        if each.requires_grad
    ]
    return torch.stack(losses).sum()
