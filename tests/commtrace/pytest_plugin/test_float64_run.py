"""A program in float64 draws the random numbers of the program in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from commtrace.pytest_plugin.float64_run import float64

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: nn.Linear(8, 16).weight.detach(),
    "embedding": lambda: nn.Embedding(5, 3).weight.detach(),
    "randn": lambda: torch.randn(40),
    "rand": lambda: torch.rand(3),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "randn_like": lambda: torch.randn_like(torch.ones(20)),
    "randint": lambda: torch.randint(0, 9, (5,)),
    "randperm": lambda: torch.randperm(7),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.4)),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 3),
    "exponential_": lambda: torch.empty(20).exponential_(),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(5)),
    "dropout": lambda: F.dropout(torch.ones(50), 0.3),
    "chosen dtype": lambda: torch.randn(4, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_equal_and_wider(name: str) -> None:
    torch.manual_seed(0)
    narrow, after = DRAWS[name](), torch.rand(1)
    torch.manual_seed(0)
    with float64():
        wide = DRAWS[name]()
    assert wide.dtype is (torch.float64 if narrow.dtype is torch.float32 else narrow.dtype)
    torch.testing.assert_close(wide, narrow, check_dtype=False, rtol=1e-6, atol=1e-6)
    assert torch.equal(torch.rand(1), after), "as many numbers were drawn"


def test_the_default_dtype_is_restored() -> None:
    with float64():
        assert torch.ones(1).dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32
